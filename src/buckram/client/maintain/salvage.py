"""Ledgers that bookies hold and the metadata store does not know: finding them, and making records for them again.

What a bookie holds says neither the quorums nor the order of an ensemble. The record that is made names every holder in
every write set and lets one answer be enough: whatever the ledger was made with, a copy is found where it is, and
recovery says "no such entry" only after every holder has said so. Bookies know which ledger of its id it is, its birth:
the record gets it back, so that they take it for the one that they hold. The password is not known to anybody but its
owner; custom metadata and which stream it was part of are not known to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from buckram.addresses import address_of_id
from buckram.config import NetConfig
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.deletions import BUCKET, NONE_DELETED, Deleted, bucket_of
from buckram.core.ledgers.metadata import created, creation_time_of, is_certain
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.wire.availability import EntryList
from buckram.core.wire.introduction import Expected, Introduction
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo, ListEntries, ListEntriesReply, Read, ReadReply
from buckram.errors import (
    BookieError,
    Code,
    DigestMismatch,
    InvalidArgument,
    KeyExists,
    LedgerExists,
    NoSuchLedger,
    ReadFailed,
)
from buckram.metadata.maintain.acceptance import suspects
from buckram.metadata.tree.removals import all_recorded
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.net.introductions import FixedIdentities, Introductions
from buckram.runtime.net.pool import BookiePool
from buckram.seams import Runtime
from buckram.types import BookieAddress, BookieId, DigestType, EntryId, LedgerId

_AT_ONCE = 64
MOST_ASKED = 2_000_000
"""Ids are asked for one by one; from there on name the ledgers."""
_DIGESTS = (DigestType.CRC32C, DigestType.MAC, DigestType.CRC32, DigestType.DUMMY)


@dataclass(slots=True)
class Found:
    """A ledger that metadata does not know, and who holds which entries of it: (first, count)."""

    ledger_id: LedgerId
    holders: dict[BookieId, list[tuple[EntryId, int]]] = field(default_factory=dict)
    births: dict[BookieId, bytes] = field(default_factory=dict)
    """Birth of the ledger that a holder has under the id, for holders that know it."""

    @property
    def last_entry(self) -> EntryId:
        return max((first + count - 1 for runs in self.holders.values() for first, count in runs), default=-1)


class Salvage:
    """Asks the bookies at `addresses`, registered or not. Use `opened`."""

    def __init__(
        self, pool: BookiePool, store: TreeStore, addresses: Mapping[BookieId, BookieAddress], cluster: str
    ) -> None:
        self._pool, self._store, self._addresses, self._cluster = pool, store, addresses, cluster
        self.silent: dict[BookieId, str] = {}
        """Bookies that did not answer, and why: what they hold is not among what was found."""

    async def find(self) -> list[Found]:
        """Find all of them but those that were deleted on purpose, ascending. Raises InvalidArgument if the ids that
        bookies hold are too many to ask about."""
        highest = max([await self._highest(one) for one in self._addresses], default=-1)
        known: set[LedgerId] = set()
        after = -1
        while page := await self._store.list_ledgers(after=after):
            known.update(page)
            after = page[-1]
        return await self._look(self._missing(highest, known, await all_recorded(self._store)))

    def _missing(self, highest: LedgerId, known: set[LedgerId], recorded: dict[int, Deleted]) -> list[LedgerId]:
        """Return the ids up to `highest` that metadata does not know, and whose deletion is not recorded."""
        missing: list[LedgerId] = []
        for bucket in range(bucket_of(highest) + 1):
            deleted = recorded.get(bucket, NONE_DELETED)
            if len(deleted) < BUCKET:
                ids = range(bucket * BUCKET, min((bucket + 1) * BUCKET, highest + 1))
                missing += [one for one in ids if one not in known and one not in deleted]
            if len(missing) > MOST_ASKED:
                raise InvalidArgument(
                    f"bookies hold ledgers up to {highest}, more than {MOST_ASKED} ids that metadata does not know: "
                    "name the ledgers, `buckram cluster salvage LEDGER...`"
                )
        return missing

    async def look(self, ledgers: list[LedgerId]) -> list[Found]:
        """Return what the bookies hold of these ledgers, without those that were deleted on purpose."""
        recorded = await all_recorded(self._store)
        return await self._look([one for one in ledgers if one not in recorded.get(bucket_of(one), NONE_DELETED)])

    async def _look(self, ledgers: list[LedgerId]) -> list[Found]:
        found: list[Found] = []
        for start in range(0, len(ledgers), _AT_ONCE):
            some = ledgers[start : start + _AT_ONCE]
            found += [one for one in await asyncio.gather(*map(self._look_at, some)) if one.holders]
        return found

    async def _look_at(self, ledger_id: LedgerId) -> Found:
        found = Found(ledger_id)
        for bookie_id in self._addresses:
            if bookie_id in self.silent:
                continue
            try:
                reply = await self._pool.call(bookie_id, ListEntries(ledger_id))
            except BookieError as error:
                self.silent[bookie_id] = str(error)
                continue
            if isinstance(reply, ListEntriesReply) and reply.code is Code.OK:
                runs = list(EntryList.decode(reply.availability).runs())
                if runs:
                    found.holders[bookie_id] = runs
                    found.births |= {bookie_id: reply.birth} if reply.birth else {}
        return found

    async def _highest(self, bookie_id: BookieId) -> LedgerId:
        request = GetBookieInfo(0, Introduction(self._cluster, bookie_id, "", 0))
        try:
            reply = await self._pool.call(bookie_id, request)
        except BookieError as error:
            self.silent[bookie_id] = str(error)
            return -1
        if not isinstance(reply, BookieInfoReply) or reply.identity is None:
            self.silent[bookie_id] = "it does not say what it holds: software of another make or an older release"
            return -1
        return reply.identity.highest_ledger

    async def bring_back(self, found: Found, password: bytes, digest: DigestType | None, birth: bytes = b"") -> None:
        """Make a record, to be recovered by whoever has the password. LedgerExists, ReadFailed (no entry opens with
        that password and digest; nothing was made), NoSuchLedger, LedgerIdUsed (its deletion is recorded);
        InvalidArgument where bookies hold several ledgers of the id and `birth` does not say which one is meant."""
        birth = birth or _only_birth(found)
        holders = sorted(one for one in found.holders if found.births.get(one, birth) == birth)
        if not holders:
            raise NoSuchLedger(found.ledger_id)
        kind = digest or await self._digest_of(found, holders, password)
        time = creation_time_of(birth)
        record = created(
            len(holders),
            len(holders),
            1,
            holders,
            digest_type=kind,
            password=password,
            creation_time_ms=time,
            birth=birth if is_certain(birth) else b"",
        )
        try:
            # An id that was given before, which nobody else may choose.
            await self._store.ledgers.create(found.ledger_id, serialise(record), chosen=False)
        except KeyExists:
            raise LedgerExists(found.ledger_id) from None

    async def _digest_of(self, found: Found, holders: list[BookieId], password: bytes) -> DigestType:
        for bookie_id in holders:
            entry = found.holders[bookie_id][0][0]
            reply = await self._pool.call(bookie_id, Read(found.ledger_id, entry))
            if not isinstance(reply, ReadReply) or reply.body is None:
                continue
            for kind in _DIGESTS:
                try:
                    Digest(kind, password).open(found.ledger_id, entry, reply.body)
                except DigestMismatch:
                    continue
                return kind
        raise ReadFailed(
            found.ledger_id, "no entry of it opens with this password: give the ledger's own, and --digest"
        )


def _only_birth(found: Found) -> bytes:
    """Return the one birth that the holders have, b"" if none knows it."""
    births = sorted(set(found.births.values()))
    if len(births) <= 1:
        return b"".join(births)
    held = "; ".join(
        f"{birth.hex()} at {', '.join(sorted(one for one, its in found.births.items() if its == birth))}"
        for birth in births
    )
    raise InvalidArgument(
        f"bookies hold {len(births)} ledgers that had id {found.ledger_id}, by birth: {held}; name the one that "
        "is to come back with --birth"
    )


async def bookie_addresses(store: TreeStore) -> dict[BookieId, BookieAddress]:
    """Return the address of every reachable bookie, in a list of bookies or not."""
    found = {
        one.bookie_id: address for one in await suspects(store) if (address := address_of_id(one.address)) is not None
    }
    listed = await store.bookies()
    for group in (listed.writable, listed.readonly):
        found |= {name: info.address for name, info in group.items() if info.address is not None}
    return found


@asynccontextmanager
async def opened(
    runtime: Runtime, net: NetConfig, store: TreeStore, addresses: Mapping[BookieId, BookieAddress]
) -> AsyncIterator[Salvage]:
    cluster = await store.instance_id()
    expected = {bookie: Expected(Introduction(cluster, bookie)) for bookie in addresses}
    # A ledger's record will name its holders: what another bookie at an address holds is not theirs.
    pool = BookiePool(runtime, net, addresses.get, introductions=Introductions(FixedIdentities(expected)))
    try:
        yield Salvage(pool, store, addresses, cluster)
    finally:
        await pool.close()
