"""`ServiceStore`: the MetadataStore of a process that reaches it through bookies.

The places and ids of ledgers depend on the store behind the bookies, so a bookie is asked for those, too
(`ServiceTree`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

from buckram.errors import (
    AccessRefused,
    ClusterNotInitialised,
    InvalidArgument,
    LedgerIdRefused,
    MalformedRecord,
    NoSuchLedger,
)
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.service.packets import KeyRequest, Names, RequestKind
from buckram.metadata.tree.layout import Layout
from buckram.metadata.tree.ledger_tree import ONE_FOLDER, Fresh
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.ledger_managers import MANAGERS
from buckram.types import MAX_LEDGER_ID, KeyOp, KeyValue, LedgerId, LedgerMetadata, Versioned

_TAKEOVER_MARGIN_S = 2.0


class ServiceTree:
    """A LedgerTree whose methods are one request each."""

    def __init__(self, keys: ServiceKeys) -> None:
        self._keys = keys

    async def key(self, ledger_id: LedgerId) -> str:
        welcome = self._keys.welcome
        _check_id(ledger_id)
        if welcome is not None and welcome.manager == ONE_FOLDER:
            return Layout(welcome.root, welcome.own).ledger(ledger_id)
        if welcome is not None and welcome.manager in MANAGERS:
            return f"{welcome.root}/{MANAGERS[welcome.manager].path(ledger_id)}"
        return cast("str", await self._keys.ask(KeyRequest(RequestKind.LEDGER_KEY, number=ledger_id)))

    async def create(self, ledger_id: LedgerId, record: bytes, *, chosen: bool, fresh: Fresh | None = None) -> int:
        """Make the record; the bookie knows which ids it gave to this session, and looks the others up whatever `fresh`
        is.
        """
        _check_id(ledger_id)
        request = KeyRequest(RequestKind.LEDGER_CREATE, number=ledger_id, watch=chosen, value=record)
        return cast("int", await self._keys.tell(request))

    async def remove(self, ledger_id: LedgerId, version: int) -> None:
        """Delete the record; the bookie records the deletion, but one of an older release does not."""
        key, welcome = await self.key(ledger_id), self._keys.welcome
        await self._keys.delete(key, version)
        if welcome is None or welcome.manager != ONE_FOLDER:  # where there is nothing to tidy up
            await self.removed(key)

    async def remove_with(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        await self._keys.multi(ops)

    def forget_ids(self) -> None:
        """Do nothing: the bookie takes the ids."""

    async def raise_next_id(self, above: LedgerId) -> None:
        _check_id(above)
        await self._keys.ask(KeyRequest(RequestKind.RAISE_NEXT_ID, number=above))

    async def allocate(self) -> LedgerId:
        return cast("int", await self._keys.ask(KeyRequest(RequestKind.ALLOCATE)))

    async def next_id(self) -> LedgerId:
        return cast("int", await self._keys.ask(KeyRequest(RequestKind.NEXT_ID)))

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        found = cast("Names", await self._keys.ask(KeyRequest(RequestKind.LEDGERS, number=after, limit=limit)))
        return [_ledger(name) for name in found.names]

    async def records(self, after: LedgerId, limit: int) -> list[tuple[LedgerId, KeyValue]]:
        found = await self._keys.ask(KeyRequest(RequestKind.RECORDS, number=after, limit=limit))
        return [(_ledger(name), value) for name, value in cast("list[tuple[str, KeyValue]]", found)]

    async def removed(self, key: str) -> None:
        await self._keys.ask(KeyRequest(RequestKind.REMOVED, key))

    async def manager_name(self) -> str:
        return cast("str", await self._keys.ask(KeyRequest(RequestKind.MANAGER_NAME)))

    async def strays(self) -> list[str]:
        return cast("Names", await self._keys.ask(KeyRequest(RequestKind.STRAYS))).names


class ServiceStore(TreeStore):
    """The cluster that bookies serve. Owns the keys: closing the store closes them."""

    def __init__(
        self, keys: ServiceKeys, uri: str, rng: random.Random, *, takeover_wait_s: float | None = None
    ) -> None:
        welcome = keys.welcome
        assert welcome is not None
        wait_s = welcome.timeout_ms / 1000 + _TAKEOVER_MARGIN_S if takeover_wait_s is None else takeover_wait_s
        self._service = keys
        super().__init__(
            keys,
            uri,
            rng,
            layout=Layout(welcome.root, welcome.own),
            ledgers=ServiceTree(keys),
            takeover_wait_s=wait_s,
        )

    async def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Versioned:
        """Create a ledger as any store does.

        Raises LedgerIdRefused for an id of a session that is over, unless that session has made the ledger and the
        reply was lost.
        """
        try:
            return await super().create_ledger(ledger_id, metadata)
        except LedgerIdRefused as refused:
            try:
                found = await self.read_ledger(ledger_id)
            except (NoSuchLedger, MalformedRecord, AccessRefused):
                raise refused from None
            if not metadata.creator_token or found.metadata.creator_token != metadata.creator_token:
                raise
            return found

    async def instance_id(self) -> str:
        try:
            return cast("str", await self._service.ask(KeyRequest(RequestKind.INSTANCE_ID)))
        except ClusterNotInitialised:
            raise ClusterNotInitialised(self.uri) from None


def _check_id(ledger_id: LedgerId) -> None:
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise InvalidArgument(f"ledger id {ledger_id}: must be between 0 and {MAX_LEDGER_ID}")


def _ledger(name: str) -> LedgerId:
    if not (name.isascii() and name.isdigit()):
        raise MalformedRecord(f"a bookie lists a ledger as {name[:40]!r}, which is no number")
    return int(name)
