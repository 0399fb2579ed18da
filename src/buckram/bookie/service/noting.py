"""Notes for the audit trail what clients change in the metadata store: which change of which key is which event.

Not here: the list of events (`bookie/audit_log.py`), events of a bookie's other requests (who fenced, who could not log
in: `bookie/service/fencing.py`, `bookie/service/server.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from buckram.bookie.service.session import Session
from buckram.core.ledgers.metadata_codec import parse
from buckram.core.security.namespaces import head_in, namespace_of_ledger
from buckram.core.tenants.audit import DONE, REFUSED
from buckram.errors import BuckramError, MetadataError
from buckram.metadata.store import TreeStore
from buckram.types import Create, Delete, KeyOp, LedgerState, SetValue


class Notes(Protocol):
    """Takes events (`bookie/audit_log.py`)."""

    def note(
        self, session: Session, action: str, what: str, namespace: str = "", result: str = DONE, detail: str = ""
    ) -> None: ...


class Noting:
    """`store` is the one that is changed."""

    def __init__(self, log: Notes, store: TreeStore) -> None:
        self._log, self._store = log, store
        self._heads = f"{store.own}/streams/heads/"
        self._records = f"{store.own}/streams/namespaces/"

    async def before(self, ops: Sequence[KeyOp]) -> dict[str, bytes]:
        """What has to be known from before a change: heads that it changes, and ledgers that it deletes."""
        found: dict[str, bytes] = {}
        for op in ops:
            head = isinstance(op, SetValue) and op.key.startswith(self._heads)
            if head or (isinstance(op, Delete) and self._store.layout.ledger_of(op.key) is not None):
                with suppress(MetadataError):
                    found[op.key] = (await self._store.keys.get(op.key)).value
        return found

    def done(self, session: Session, ops: Sequence[KeyOp], before: Mapping[str, bytes]) -> None:
        """The change was carried out."""
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
        """A ledger was created."""
        self._log.note(session, "create", f"ledger {ledger_id}", _namespace(value))

    def refused(self, session: Session, action: str, key: str, why: str) -> None:
        """A request about a key was refused."""
        actions = {"create": "create", "set": "policy", "delete": "delete"}
        if action in actions:
            self._log.note(session, actions[action], f"key {key}", "", REFUSED, why)

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
                if parse(op.value).state is LedgerState.IN_RECOVERY:
                    self._log.note(session, "recover", f"ledger {ledger_id}", _namespace(op.value))


def _namespace(value: bytes | None) -> str:
    if value is not None:
        with suppress(BuckramError):
            return namespace_of_ledger(parse(value).custom_metadata)
    return ""
