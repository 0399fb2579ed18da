"""Notes for the audit trail what clients change in the metadata store: which change of which key is which event.

Every request that a client is refused is noted as well, in one place, whoever refused it; so are requests about
entries. Nothing of it is on the way of what is not refused.

Not here: the list of events (`bookie/accounting/audit_queue.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from buckram.bookie.service.connections.session import Session
from buckram.core.security.namespace_rules import head_in, namespace_of_ledger, record_in
from buckram.core.tenants.audit_trail import DONE, REFUSED
from buckram.errors import (
    AccessRefused,
    BuckramError,
    InvalidArgument,
    LedgerIdRefused,
    MalformedRecord,
    MetadataError,
    QuotaExceeded,
    ValueTooLarge,
)
from buckram.metadata.service.packets import KeyRequest, RequestKind
from buckram.metadata.tree.store import TreeStore
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, LedgerId, LedgerState, SetValue

REFUSAL_ERRORS = (AccessRefused, InvalidArgument, MalformedRecord, QuotaExceeded, ValueTooLarge)
"""Errors that refuse a request for what it is, and not for the state of things."""
_ACTIONS: dict[type, str] = {Create: "create", SetValue: "policy", Delete: "delete", CheckVersion: "read"}
_ACTIONS_OF_REQUESTS = {
    RequestKind.LEDGER_CREATE: "create",
    RequestKind.ALLOCATE: "create",
    RequestKind.RAISE_NEXT_ID: "policy",
    RequestKind.REMOVED: "delete",
    RequestKind.CHILDREN: "list",
    RequestKind.VALUES: "list",
    RequestKind.LEDGERS: "list",
    RequestKind.RECORDS: "list",
    RequestKind.STRAYS: "list",
}


class AuditSink(Protocol):
    """Takes events (`bookie/accounting/audit_queue.py`)."""

    def note(
        self, session: Session, action: str, what: str, namespace: str = "", result: str = DONE, detail: str = ""
    ) -> None: ...


WRONG_KEY = "it does not know the ledger's password"


class OnRefused(Protocol):
    """Takes a request about a ledger that was refused: what it would have done, one of the trail's actions, and why."""

    def __call__(self, session: Session, action: str, ledger_id: LedgerId, why: str, /) -> None: ...


class NotedEntries:
    """Notes refused requests about entries, by whichever part of the bookie refused them. `namespace_of`: of a ledger,
    as far as it is known, else ""."""

    def __init__(self, log: AuditSink, namespace_of: Callable[[LedgerId], str]) -> None:
        self._log, self._namespace_of = log, namespace_of

    def fenced(self, session: Session, ledger_id: LedgerId) -> None:
        self._log.note(session, "fence", f"ledger {ledger_id}", self._namespace_of(ledger_id))

    def refused(self, session: Session, action: str, ledger_id: LedgerId, why: str) -> None:
        """Note a refused request about entries; called as OnRefused."""
        self._log.note(session, action, f"ledger {ledger_id}", self._namespace_of(ledger_id), REFUSED, why)


def note_unknown(log: AuditSink, session: Session, why: str) -> None:
    """Note that a peer who has not logged in was refused something."""
    log.note(session, "login", "bookie", result=REFUSED, detail=why)


class AuditedChanges:
    """`store` is the one that is changed."""

    def __init__(self, log: AuditSink, store: TreeStore) -> None:
        self._log, self._store = log, store
        self._heads = f"{store.own}/streams/heads/"
        self._records = f"{store.own}/streams/namespaces/"

    async def before(self, ops: Sequence[KeyOp], present: Mapping[str, KeyValue | None]) -> dict[str, bytes]:
        """Return values from before a change that the note of it needs: heads that it sets, and records of ledgers that
        it deletes.

        `present`: values of keys that were read already.
        """
        found: dict[str, bytes] = {}
        for op in ops:
            head = isinstance(op, SetValue) and op.key.startswith(self._heads)
            if head or (isinstance(op, Delete) and self._store.layout.ledger_of(op.key) is not None):
                with suppress(MetadataError):
                    found[op.key] = (present.get(op.key) or await self._store.keys.get(op.key)).value
        return found

    def done(self, session: Session, ops: Sequence[KeyOp], before: Mapping[str, bytes]) -> None:
        """Note a change that was carried out."""
        for op in ops:
            if op.key.startswith(self._heads):
                self._head(session, op, before.get(op.key))
            elif op.key.startswith(self._records):
                name = op.key.removeprefix(self._records)
                action = {Create: "create", SetValue: "policy", Delete: "delete"}.get(type(op))
                if action is not None:
                    self._log.note(session, action, f"namespace {name}", name)
            else:
                self._ledger(session, op, before.get(op.key))

    def created(self, session: Session, ledger_id: int, value: bytes) -> None:
        """Note the creation of a ledger."""
        self._log.note(session, "create", f"ledger {ledger_id}", _namespace(value))

    def refused(self, session: Session, request: KeyRequest, error: BuckramError) -> None:
        """Note a refused request. The key is the error's, or the first that the request would use."""
        key: str = getattr(error, "place", "") or getattr(error, "key", "")
        ops = [op for op in request.ops if not isinstance(op, CheckVersion)] or request.ops
        named = (one for one in ops if one.key == key or key.startswith(f"{one.key} ("))
        op = next(named, ops[0] if ops else None)
        action = _ACTIONS_OF_REQUESTS.get(request.kind, "read") if op is None else _ACTIONS[type(op)]
        if isinstance(error, LedgerIdRefused):
            what = key
        elif op is not None and not (key and isinstance(error, AccessRefused)):
            what = f"key {op.key}"
        elif key or request.key:
            what = f"key {key or request.key}"
        else:
            what = f"ledger {request.number}" if request.number >= 0 else "ledgers"
        namespace = error.namespace if isinstance(error, QuotaExceeded) else ""
        why = error.found if isinstance(error, AccessRefused) else str(error)
        self._log.note(session, action, what, namespace, REFUSED, why)

    def _head(self, session: Session, op: KeyOp, before: bytes | None) -> None:
        name = op.key.removeprefix(self._heads)
        namespace, what = name.partition("/")[0], f"stream {name}"
        if isinstance(op, Create):
            self._log.note(session, "create", what, namespace)
        elif isinstance(op, Delete):
            self._log.note(session, "delete", what, namespace)
        elif isinstance(op, SetValue) and before is not None:
            with suppress(BuckramError):
                earliest, was = head_in(op.key, op.value).earliest, head_in(op.key, before).earliest
                if earliest > was:
                    self._log.note(session, "truncate", what, namespace, DONE, f"offsets {was} to {earliest - 1}")

    def _ledger(self, session: Session, op: KeyOp, before: bytes | None) -> None:
        ledger_id = self._store.layout.ledger_of(op.key)
        if ledger_id is None:
            return
        if isinstance(op, Delete):
            self._log.note(session, "delete", f"ledger {ledger_id}", _namespace(before))
        elif isinstance(op, SetValue):
            with suppress(BuckramError):
                if record_in(op.value).state is LedgerState.IN_RECOVERY:
                    self._log.note(session, "recover", f"ledger {ledger_id}", _namespace(op.value))


def _namespace(value: bytes | None) -> str:
    if value is not None:
        with suppress(BuckramError):
            return namespace_of_ledger(record_in(value).custom_metadata)
    return ""
