"""Requests that are about ledgers and their ids, which only who opened the store can answer.

Ids are given to a connection, and a principal that is held to grants creates ledgers under these alone: a record under
another one could be that of a deleted ledger, of which bookies still have entries, or stand in the way of the counter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.metadata.key_checks import KeyJudge
from buckram.bookie.service.security.audit_events import AuditedChanges
from buckram.core.security.key_access import KeyUse
from buckram.core.security.namespace_rules import namespace_of_ledger, record_in
from buckram.core.security.write_limits import record_creation_refusal
from buckram.core.streams.names import DEFAULT_NAMESPACE, check_name
from buckram.errors import InvalidArgument, KeyExists, LedgerIdRefused, LedgerIdUsed, MetadataError, NoSuchKey
from buckram.metadata.service.packets import KeyReply, KeyRequest, RequestKind, names_that_fit
from buckram.metadata.tree.key_grammar import MAX_PAGE
from buckram.metadata.tree.ledger_tree import Fresh
from buckram.metadata.tree.store import TreeStore
from buckram.types import KeyValue, LedgerId

OF_IDS = {
    RequestKind.ALLOCATE: KeyUse.CREATE,
    RequestKind.NEXT_ID: KeyUse.READ,
    RequestKind.RAISE_NEXT_ID: KeyUse.SET,
    RequestKind.LEDGERS: KeyUse.LIST,
    RequestKind.RECORDS: KeyUse.LIST,
    RequestKind.STRAYS: KeyUse.LIST,
}
"""Use of the root of all ledgers that each request about ids or lists of ledgers counts as."""
OF_NOBODY = (RequestKind.LEDGER_KEY, RequestKind.MANAGER_NAME)
"""Requests that every principal may make: how ledgers are kept, not which there are."""
_MAX_GIVEN = 100_000
"""Maximum number of unused ids of a connection that are remembered; beyond it the oldest ones are forgotten."""


class LedgerQuota(Protocol):
    """Holds ledgers to quotas (`bookie/accounting/creation_quotas.py`)."""

    def ledger(self, value: bytes) -> AbstractAsyncContextManager[None]:
        """Hold the creation of a ledger with this record to its namespace's quota. Raises QuotaExceeded."""
        ...


class LedgerRequests:
    """`room`: bytes of a frame. `fitting` takes of a listing what has room."""

    def __init__(
        self,
        session: Session,
        judge: KeyJudge,
        store: Callable[[], TreeStore],
        quota: LedgerQuota | None,
        noting: AuditedChanges | None,
        room: int,
        fitting: Callable[[list[tuple[str, KeyValue]]], list[tuple[str, KeyValue]]],
    ) -> None:
        self._session, self._judge, self._store = session, judge, store
        self._quota, self._noting, self._room, self._fitting = quota, noting, room, fitting
        self._given: dict[LedgerId, Fresh | None] = {}
        """Ids that this connection was given and has not used: what holds unless the metadata were restored since, or
        None once it tried to."""
        self._namespaces: dict[str, None] = {}
        """Namespaces that were found to exist when a ledger was made in them."""

    def has_unused(self, ledger: LedgerId) -> bool:
        """Return whether the connection was given this id and never tried to make a ledger with it; so there is
        none."""
        return self._given.get(ledger) is not None

    async def carry_out(self, request: KeyRequest) -> KeyReply:
        check, store = self._judge.check, self._store()
        tree, limit = store.ledgers, min(max(request.limit, 1), MAX_PAGE)
        if request.kind in OF_IDS:
            await check(store.root, OF_IDS[request.kind])
        match request.kind:
            case RequestKind.LEDGER_KEY:
                return await tree.key(request.number)
            case RequestKind.LEDGER_CREATE:
                return await self._create(store, request)
            case RequestKind.ALLOCATE:
                return await self._allocate(store)
            case RequestKind.NEXT_ID:
                return await tree.next_id()
            case RequestKind.RAISE_NEXT_ID:
                await tree.raise_next_id(request.number)
                return None
            case RequestKind.LEDGERS:
                return names_that_fit([str(one) for one in await tree.page(request.number, limit)], self._room)
            case RequestKind.RECORDS:
                return self._fitting([(str(one), found) for one, found in await tree.records(request.number, limit)])
            case RequestKind.REMOVED:
                await check(request.key, KeyUse.DELETE)
                if store.layout.ledger_of(request.key) is None:
                    raise self._judge.refused(request.key, KeyUse.DELETE, "it is not the record of a removed ledger")
                await tree.removed(request.key)
                return None
            case RequestKind.MANAGER_NAME:
                return await tree.manager_name()
            case RequestKind.STRAYS:
                return names_that_fit(await tree.strays(), self._room)
            case other:
                raise MetadataError(f"{other.name} is no request of a client")

    async def _allocate(self, store: TreeStore) -> LedgerId:
        since = await store.since()
        self._given[number := await store.ledgers.allocate()] = since
        if len(self._given) > _MAX_GIVEN:
            del self._given[next(iter(self._given))]
        return number

    async def _create(self, store: TreeStore, request: KeyRequest) -> int:
        number, value, key = request.number, request.value, await store.ledgers.key(request.number)
        await self._judge.check(key, KeyUse.CREATE, value)
        limited = self._judge.rules is not None
        if limited:
            if why := record_creation_refusal(value):
                raise self._judge.refused(key, KeyUse.CREATE, why)
            await self._check_namespace(store, key, value)
            if number not in self._given:
                raise LedgerIdRefused(number)
        # Before anything is waited for: an id is used once, also by requests that come at the same time.
        fresh = self._given.pop(number, None)
        tried = False
        try:
            async with nullcontext() if self._quota is None else self._quota.ledger(value):
                tried = True
                version = await store.create_record(number, value, chosen=request.watch and not limited, fresh=fresh)
        except (KeyExists, LedgerIdUsed):
            raise
        except BaseException:
            if limited:  # It may have been made, so a repetition has to look for it.
                self._given[number] = None if tried else fresh
            raise
        if self._noting is not None:
            self._noting.created(self._session, number, value)
        return version

    async def _check_namespace(self, store: TreeStore, key: str, value: bytes) -> None:
        """Check that the namespace of a new ledger exists, because usage is counted by namespace. A grant may be for
        all names that fit a pattern, which would have no end."""
        name = namespace_of_ledger(record_in(value).custom_metadata)
        if name in self._namespaces or name == DEFAULT_NAMESPACE:
            return
        try:
            await store.keys.get(f"{store.own}/streams/namespaces/{check_name('namespace', name)}")
        except (NoSuchKey, InvalidArgument):
            raise self._judge.refused(key, KeyUse.CREATE, f"there is no namespace {name[:200]}: create it") from None
        self._namespaces[name] = None
