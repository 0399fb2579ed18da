"""The metadata session of one connection: what each request does, after `KeyAccess` allowed it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.metadata.change_gate import USES, ChangeGate
from buckram.bookie.service.metadata.key_checks import KeyJudge
from buckram.bookie.service.metadata.ledger_requests import LedgerQuota, LedgerRequests
from buckram.bookie.service.security.audit_events import REFUSAL_ERRORS, AuditedChanges
from buckram.core.security.key_access import KeyAccess, KeyUse
from buckram.core.security.namespace_rules import head_in
from buckram.core.streams.metadata.purposes import change_refusal
from buckram.errors import (
    AccessRefused,
    KeyExists,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.service.packets import Event, KeyReply, KeyRequest, RequestKind, encode_event, names_that_fit
from buckram.metadata.tree.key_grammar import PromptKeys
from buckram.metadata.tree.store import TreeStore
from buckram.seams import KeyStore, Notify
from buckram.types import Create, Delete, KeyOp, KeyValue, LedgerId, SetValue

_TURNS = 100
"""Maximum number of attempts to create streams while others create streams of the namespace first."""
MAX_WATCHES = 20_000
"""Keys that one connection may watch."""


class Creations(LedgerQuota, Protocol):
    """Holds what is created to quotas (`bookie/accounting/creation_quotas.py`). Raises QuotaExceeded on entering."""

    def keys(self, ops: Sequence[KeyOp]) -> AbstractAsyncContextManager[Sequence[KeyOp]] | None:
        """Return a context for a change that creates streams whose number is limited, else None. It yields operations
        to add to the change."""
        ...


class Shared(Protocol):
    """State that all connections of a bookie share (`bookie/service/metadata/metadata_service.py:SharedStore`)."""

    @property
    def store(self) -> TreeStore: ...
    @property
    def creations(self) -> Creations | None: ...
    @property
    def noting(self) -> AuditedChanges | None: ...
    def watch(self, place: tuple[RequestKind, str], session: KeySession) -> Notify: ...
    def forget(self, session: KeySession) -> None: ...


class KeySession:
    """`heard`, `in_work` and `timeout_s` belong to the service."""

    def __init__(
        self,
        session: Session,
        shared: Shared,
        open_store: Callable[[], Awaitable[TreeStore]],
        access: KeyAccess,
        room: int,
        timeout_s: float,
    ) -> None:
        self.heard, self.in_work, self.timeout_s = 0.0, 0, timeout_s
        self.places: dict[tuple[RequestKind, str], Notify] = {}
        """Watches that the client waits for."""
        self._session, self._shared, self._open_store = session, shared, open_store
        self._rules, self._room = access.rules(session.principal), room
        self._own: TreeStore | None = None
        self._heads = f"{shared.store.own}/streams/heads/"
        rules, noting = self._rules, shared.noting
        self._judge = KeyJudge(session, rules, self._present)
        self._ledgers = LedgerRequests(
            session, self._judge, self._present, shared.creations, noting, room, self._fitting
        )
        self._prompt = _prompt(shared.store)
        self._gate = (
            None
            if rules is None
            else ChangeGate(self._judge, rules, self._present, lambda: self._prompt, self._ledgers.has_unused)
        )
        self._opening = asyncio.Lock()
        self._closed = False

    def prompt_for(self, request: KeyRequest) -> PromptKeys | None:
        """Return keys that a read can be answered from without waiting; None if `carry_out` has to. A read does not
        overtake earlier requests of the client."""
        refused = request.watch or self.in_work or self._closed or self._judge.is_secret(request.key)
        return None if refused else self._prompt

    def may_see(self, key: str, found: KeyValue) -> bool:
        """Return whether the client may have what was read for it; if not, `carry_out` decides and gives the reason."""
        rules = self._rules
        if rules is None:
            return True
        if rules.refusal(key, KeyUse.READ, found.value) != "":
            return False
        rules.learn(key, found.value)
        return True

    def may_hear(self, key: str) -> bool:
        """Return whether the client may be told that there is no such key; if not, `carry_out` decides as it does for
        a value. Whose a ledger was is not known any more."""
        rules = self._rules
        return rules is None or (not rules.is_ledger(key) and rules.refusal(key, KeyUse.READ) == "")

    def prompt_for_change(self, ops: Sequence[KeyOp]) -> PromptKeys | None:
        """Return keys that a change can be begun on at once; None if it needs a look at what is there: then `carry_out`
        does it."""
        if self._closed or self._prompt is None:
            return None
        if self._gate is not None:
            return self._prompt if self._gate.at_once.allows(ops) else None
        if self._shared.noting is not None:
            return None
        return None if any(map(self._needs_a_look, ops)) else self._prompt

    def changed_at_once(self, ops: Sequence[KeyOp]) -> None:
        """Note for the audit trail that a change was carried out which `prompt_for_change` gave the keys for."""
        if (noting := self._shared.noting) is not None:
            noting.done(self._session, ops, {})

    def _needs_a_look(self, op: KeyOp) -> bool:
        """Return whether a change needs a look first: at a secret, a first session key, a new stream (for quotas and
        uids), or the deletion of a ledger or a stream."""
        first = isinstance(op, Create) and op.ephemeral and self._own is None
        removes = isinstance(op, Delete) and self._store.layout.ledger_of(op.key) is not None
        return first or removes or self._makes_stream(op) or self._deletes_stream(op) or self._judge.is_secret(op.key)

    def _makes_stream(self, op: KeyOp) -> bool:
        return isinstance(op, Create) and op.key.startswith(self._heads)

    def _deletes_stream(self, op: KeyOp) -> bool:
        """Return whether a change may begin or complete the deletion of a stream. Every head that this software writes
        says whether it is being deleted."""
        marks = isinstance(op, SetValue) and b'"deleting":false' not in op.value
        return (marks or isinstance(op, Delete)) and op.key.startswith(self._heads)

    async def carry_out(self, request: KeyRequest) -> KeyReply:
        """Return the reply, or raise what the store or `KeyAccess` says; the audit trail has each refusal."""
        try:
            return await self._carried_out(request)
        except REFUSAL_ERRORS as error:
            if (noting := self._shared.noting) is not None:
                noting.refused(self._session, request, error)
            raise

    async def _carried_out(self, request: KeyRequest) -> KeyReply:
        match request.kind:
            case RequestKind.GET:
                return await self._get(request)
            case RequestKind.CHILDREN:
                await self._judge.check(request.key, KeyUse.LIST)
                watch = self._watch((RequestKind.CHILDREN_CHANGED, request.key)) if request.watch else None
                return names_that_fit(await self._children(request, watch), self._room)
            case RequestKind.VALUES:
                await self._judge.check(request.key, KeyUse.LIST)
                return self._fitting(await self._values(request))
            case RequestKind.CHANGE:
                return await self._change(request.ops)
            case RequestKind.SYNC:
                await self._keys.sync()
                return None
            case RequestKind.CLOSE:
                await self.close()
                return None
            case RequestKind.INSTANCE_ID:
                return await self._store.instance_id()
            case RequestKind.HELLO:
                raise MetadataError("this connection has a metadata session already")
            case _:
                return await self._ledgers.carry_out(request)

    async def _get(self, request: KeyRequest) -> KeyValue:
        key, rules = request.key, self._rules
        self._judge.refuse_secrets(key)
        # A ledger's record names its owner; what was known of the id may be of another ledger.
        why = "" if rules is None or rules.is_ledger(key) else rules.refusal(key, KeyUse.READ)
        if (why is not None and why != "") or (why is None and key.startswith(f"{self._store.own}/")):
            await self._judge.check(key, KeyUse.READ)
        place = (RequestKind.VALUE_CHANGED, key)
        watch = self._watch(place) if request.watch else None
        found = await self._keys.get(key, watch)
        if rules is not None:
            try:
                await self._judge.check(key, KeyUse.READ, found.value)
            except AccessRefused:
                self.places.pop(place, None)  # nor is the client told when it changes
                raise
            rules.learn(key, found.value)
        return self._seen(found)

    async def _children(self, request: KeyRequest, watch: Notify | None) -> list[str]:
        """Return names below a key; of namespaces and streams those that the principal may read; empty only when there
        are no more."""
        rules, after = self._rules, request.after
        while True:
            names = await self._keys.children(request.key, after=after, limit=request.limit, watch=watch)
            if rules is None or not self._lists_names(request.key):
                return names
            seen = [name for name in names if rules.refusal(f"{request.key}/{name}", KeyUse.READ) == ""]
            if seen or not names:
                return seen
            after, watch = names[-1], None

    def _lists_names(self, key: str) -> bool:
        """Return whether the names right below a key are those of namespaces or streams."""
        return key.startswith(self._heads) or key in self._judge.places.listed

    async def _values(self, request: KeyRequest) -> list[tuple[str, KeyValue]]:
        """Return the children that the principal may read, with their values; empty only when there are no more."""
        rules, after = self._rules, request.after
        while True:
            found = await self._keys.children_with_values(request.key, after=after, limit=request.limit)
            seen = [
                (name, self._seen(value))
                for name, value in found
                if rules is None or rules.refusal(f"{request.key}/{name}", KeyUse.READ, value.value) == ""
            ]
            if seen or not found:
                return seen
            after = found[-1][0]

    async def _change(self, ops: Sequence[KeyOp]) -> KeyReply:
        asked, noting = ops, self._shared.noting
        present: Mapping[str, KeyValue | None] = {}
        if self._gate is not None:
            ops, present = await self._gate.judged(ops)
        else:
            for op in ops:
                self._judge.refuse_secrets(op.key)
        for op in ops:
            await self._check_purpose(op, present.get(op.key))
        done, before = await self._counted(ops, present)
        if noting is not None:
            noting.done(self._session, ops, before)
        for op in ops:
            if isinstance(op, Create) and self._rules is not None:
                self._rules.learn(op.key, op.value)
        return 0 if len(asked) == 1 < len(ops) else done

    async def _counted(
        self, ops: Sequence[KeyOp], present: Mapping[str, KeyValue | None]
    ) -> tuple[KeyReply, Mapping[str, bytes]]:
        """Carry a change out within the quotas; returns what the store says, and what `noting` knows from before."""
        noting, creations = self._shared.noting, self._shared.creations
        for left in reversed(range(_TURNS)):
            limited = None if creations is None else creations.keys(ops)
            async with limited or nullcontext(()) as also:
                before = {} if noting is None else await noting.before(ops, present)
                try:
                    done = await self._changed([*ops, *also] if also else ops)
                    return 0 if also and len(ops) == 1 else done, before
                except (KeyExists, NoSuchKey, VersionConflict) as error:
                    if error.key not in [op.key for op in also] or not left:
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def _changed(self, ops: Sequence[KeyOp]) -> KeyReply:
        if self._own is None and any(isinstance(op, Create) and op.ephemeral for op in ops):
            await self._open_own()
        keys, ledgers = self._keys, self._removed(ops)
        if ledgers and len(ops) > 1:
            await self._store.ledgers.remove_with(ops, ledgers)
            return None
        if len(ops) != 1:
            await keys.multi(ops)
            return None
        match ops[0]:
            case Create(key, value, ephemeral):
                return await keys.create(key, value, ephemeral=ephemeral)
            case SetValue(key, value, version):
                return await keys.set(key, value, version)
            case Delete(_, version) if ledgers:
                await self._store.ledgers.remove(ledgers[0], version)
                return None
            case Delete(key, version):
                await keys.delete(key, version)
                return None
            case check:
                await keys.multi([check])
                return None

    def _removed(self, ops: Sequence[KeyOp]) -> list[LedgerId]:
        """Return the ledgers whose records a change deletes: their deletion is recorded along with it, for clients of
        any release."""
        found = [self._store.layout.ledger_of(op.key) for op in ops if isinstance(op, Delete)]
        return [one for one in found if one is not None]

    async def _check_purpose(self, op: KeyOp, present: KeyValue | None) -> None:
        """Raise AccessRefused for a head that makes another thing of a stream, and for the deletion of a stream that
        takes a machine, a database or all objects along, unless the head names that as the reason."""
        heads = self._heads
        if not op.key.startswith(heads):
            return
        changes = isinstance(op, SetValue) and self._rules is not None
        if not changes and not self._deletes_stream(op):
            return
        try:
            before = head_in(op.key, (present or await self._keys.get(op.key)).value)
            after = head_in(op.key, op.value) if isinstance(op, SetValue) else None
        except (NoSuchKey, MalformedRecord):
            return  # The store reports it, or the head cannot be read.
        if why := change_refusal(op.key.removeprefix(heads), before, after):
            raise self._judge.refused(op.key, USES[type(op)], why)

    def _present(self) -> TreeStore:
        return self._own or self._shared.store

    @property
    def _store(self) -> TreeStore:
        return self._present()

    @property
    def _keys(self) -> KeyStore:
        return self._store.keys

    def _seen(self, found: KeyValue) -> KeyValue:
        """Return a value as the client sees it: what the shared session owns is not the client's own."""
        return replace(found, owned=False) if found.owned and self._own is None else found

    def _fitting(self, found: list[tuple[str, KeyValue]]) -> list[tuple[str, KeyValue]]:
        """Return the leading children that fit in a frame, at least one; a page may be shorter than asked for."""
        room = self._room
        for at, (name, value) in enumerate(found):
            room -= len(name.encode()) + len(value.value) + 16
            if room < 0:
                return found[: max(at, 1)]
        return found

    # Watches and the end

    def _watch(self, place: tuple[RequestKind, str]) -> Notify:
        if place not in self.places and len(self.places) >= MAX_WATCHES:
            raise MetadataUnavailable(f"{place[1]}: this connection watches {MAX_WATCHES} keys, the limit")
        own = self._own is not None
        notify = self._shared.watch(place, self) if not own else self.places.get(place)
        if notify is None or (own and not isinstance(notify, _OwnWatch)):
            notify = _OwnWatch(self, place)
        self.places[place] = notify
        return notify

    def changed(self, place: tuple[RequestKind, str]) -> None:
        """Tell the client of a change; a watch fires once."""
        if self.places.pop(place, None) is not None:
            self._session.send(encode_event(Event(*place)))

    async def _open_own(self) -> None:
        async with self._opening:
            if self._own is not None:
                return
            own = await self._open_store()
            try:
                await own.keys.sync()  # it may be behind what the shared one has shown
            except BaseException:
                await own.close()
                raise
            if self._closed:
                await own.close()
                raise MetadataUnavailable("this metadata session has ended")
            own.keys.on_session_lost(self._own_lost)
            self._own, self._prompt = own, _prompt(own)

    def _own_lost(self) -> None:
        self.places.clear()
        self._session.send(encode_event(Event(RequestKind.SESSION_LOST, "")))

    async def close(self) -> None:
        """End the session: its keys are deleted, and no watch fires any more. Idempotent."""
        self._closed = True
        self._shared.forget(self)
        self.places.clear()
        async with self._opening:
            own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(MetadataError):
                await own.close()


def _prompt(store: TreeStore) -> PromptKeys | None:
    return store.keys if isinstance(store.keys, PromptKeys) else None


class _OwnWatch:
    """The notification of a watch in the session's own store; one object for each place."""

    def __init__(self, session: KeySession, place: tuple[RequestKind, str]) -> None:
        self._session, self._place = session, place

    def __call__(self) -> None:
        self._session.changed(self._place)
