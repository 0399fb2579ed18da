"""Owners of ledgers: the namespace, the stream and the number of copies of each, read from metadata once and kept.

A ledger's namespace and stream never change, so what was read stays right. What could not be read is nobody's until
it is read (`bookie/service/security/entry_access.py`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from buckram.core.ledgers.metadata import birth_of
from buckram.core.security.namespace_rules import granted_name_of_ledger, namespace_of_ledger
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata

MOST = 100_000
_COUNT_S = 2.0
"""Least time between two counts of the bookies, for records that claim more copies than there are bookies, seconds."""


class Owner(NamedTuple):
    """The owner of a ledger as metadata gave it at loop time `at`. `namespace` is "" without an owner. `copies`: number
    of bookies that get each entry. `birth` is b"" if the record has none. `stream`: its full name, "" for a ledger of
    its own."""

    namespace: str
    copies: int = 1
    birth: bytes = b""
    at: float = 0.0
    stream: str = ""

    @property
    def granted_name(self) -> str:
        """Return the name that grants use: the stream's, or the namespace of a ledger without one."""
        return self.stream or self.namespace


NOBODY = Owner("")
ABSENT = Owner("", -1)
"""Owner of an id that had no ledger when metadata was asked. A ledger may get the id at any time."""


def owner_of_ledger(metadata: LedgerMetadata, now: float) -> Owner:
    namespace, name = namespace_of_ledger(metadata.custom_metadata), granted_name_of_ledger(metadata.custom_metadata)
    stream = "" if name == namespace else name
    return Owner(namespace, max(1, metadata.write_quorum), birth_of(metadata), now, stream)


class Owners:
    """A cache of at most MOST ledgers."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: dict[LedgerId, Owner] = {}
        self.get = self._known.get
        """The owner of a ledger; None while it is not known."""
        self._count, self._counted_until = 0, float("-inf")

    def note(self, ledger_id: LedgerId, owner: Owner) -> None:
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[ledger_id] = owner

    def namespace_of(self, ledger_id: LedgerId) -> str:
        """Return the namespace of a ledger as far as it is known, else ""."""
        owner = self.get(ledger_id)
        return "" if owner is None else owner.namespace

    def nobodys(self, ledger_id: LedgerId, *, absent: bool = False) -> None:
        """Record that a ledger does not exist or could not be read: it has no owner until a `look` finds one."""
        self.note(ledger_id, ABSENT if absent else NOBODY)

    async def look(self, ledger_id: LedgerId) -> Owner:
        """Read it now. NoSuchLedger, MetadataError."""
        await self._store.sync()
        found = (await self._store.read_ledger(ledger_id)).metadata
        owner = owner_of_ledger(found, asyncio.get_running_loop().time())
        if 0 < await self._bookies(owner.copies) < owner.copies:
            owner = owner._replace(copies=self._count)
        self.note(ledger_id, owner)
        return owner

    async def _bookies(self, wanted: int) -> int:
        """Return the number of bookies, counted anew only if the last count is below `wanted`: a record may claim any
        number of copies, and each of them gets its part of the rates."""
        now = asyncio.get_running_loop().time()
        if self._count < wanted and now >= self._counted_until:
            self._count, self._counted_until = len(await self._store.known_bookies()), now + _COUNT_S
        return self._count
