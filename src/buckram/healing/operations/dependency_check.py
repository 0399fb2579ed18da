"""The proof that no ledger depends on a bookie, and whether the other bookies could take over or get by without it.

Only metadata is read, and every record of it: one that cannot be read ends the walk, because it could name any bookie.
Whether the others can take over a bookie's ledgers, or keep Qa copies of them while it is away, is checked before
anything is changed, so that nothing is begun that cannot end.

Not here: the copying (`healing/repair/replicator`), and what keeps it from ending later
(`healing/operations/decommission`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.replicas import ask
from buckram.core.healing.needs import copied_bytes, entries_held, fewest_left, members_of, needs_of
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.placement.policy import policy_of
from buckram.core.wire.messages import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY, BookieInfoReply, GetBookieInfo
from buckram.errors import Code, MalformedRecord, NoSuchLedger
from buckram.seams import MetadataStore
from buckram.types import BookieId, Fragment, LedgerId, LedgerMetadata

_PAGE = 1000

_AT_ONCE = 64


class OperationRefused(Exception):
    """A request that is not carried out; the message says why, and what would let it go on."""


async def ledger_records(
    store: MetadataStore, ledgers: Collection[LedgerId] | None = None
) -> AsyncIterator[tuple[LedgerId, LedgerMetadata]]:
    """Yield the record of every ledger, or of those given, ascending, without deleted ones.

    Raises MalformedRecord.
    """
    if ledgers is not None:
        async for one in _read(store, list(ledgers)):
            yield one
        return
    after = -1
    while page := await store.read_ledgers(after=after, limit=_PAGE):
        for ledger, found in page:
            if isinstance(found, MalformedRecord):
                raise found
            yield ledger, found.metadata
        after = page[-1][0]


async def _read(store: MetadataStore, asked: list[LedgerId]) -> AsyncIterator[tuple[LedgerId, LedgerMetadata]]:
    for start in range(0, len(asked), _AT_ONCE):
        part = asked[start : start + _AT_ONCE]
        for ledger, found in zip(part, await asyncio.gather(*(_record(store, one) for one in part)), strict=True):
            if found is not None:
                yield ledger, found


async def _record(store: MetadataStore, ledger: LedgerId) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger)).metadata
    except NoSuchLedger:
        return None


async def ledgers_naming(
    store: MetadataStore, bookie: BookieId, ledgers: Collection[LedgerId] | None = None
) -> dict[LedgerId, int]:
    """Return every ledger (or every one of those given) that names the bookie, with the entries that it
    places there.
    """
    return {
        ledger: entries_held(metadata, bookie)
        async for ledger, metadata in ledger_records(store, ledgers)
        if bookie in members_of(metadata)
    }


def shown(ledgers: Collection[LedgerId], most: int = 10) -> str:
    """Return the first of these ledgers as text for people."""
    return ", ".join(map(str, list(ledgers)[:most])) + (", ..." if len(ledgers) > most else "")


# -- room on the other bookies --------------------------------------------------------------------------------

Shape = tuple[tuple[BookieId, ...], Quorum, str]


async def check_room(client: LedgerClient, bookie: BookieId, ledgers: Collection[LedgerId]) -> None:
    """Raise OperationRefused if a ledger finds no other bookie, or if the others have too little free space in all."""
    needed, stuck = 0, list[LedgerId]()
    known: dict[Shape, bool] = {}
    async for ledger, metadata in ledger_records(client.services.store, ledgers):
        needed += copied_bytes(metadata, needs_of(ledger, metadata, (bookie,)))
        with_it = [fragment for fragment in metadata.fragments if bookie in fragment.ensemble]
        if not all(_replaceable(client, bookie, metadata, fragment, known) for fragment in with_it):
            stuck.append(ledger)
    if stuck:
        raise OperationRefused(
            f"no other bookie can take the place of {bookie} in {len(stuck)} of its ledgers ({shown(stuck)}): their "
            "ensembles are as large as the cluster, or their placement allows no other; start one more bookie, or make "
            "one writable"
        )
    others = [one.bookie_id for one in client.services.bookies.candidates() if one.bookie_id != bookie]
    free = sum(space[0] for space in (await spaces(client, others)).values())
    if needed > free > 0:
        raise OperationRefused(
            f"{needed} bytes of bookie {bookie} are to be copied, and the {len(others)} others that are "
            f"writable have {free} bytes free: start one more bookie, or delete ledgers that are not needed"
        )


def _replaceable(
    client: LedgerClient, bookie: BookieId, metadata: LedgerMetadata, fragment: Fragment, known: dict[Shape, bool]
) -> bool:
    bookies = client.services.bookies
    policy, quorum = policy_of(metadata.custom_metadata, bookies.policy), quorum_of(metadata)
    shape = fragment.ensemble, quorum, str(policy)
    if shape not in known:
        failed = {fragment.ensemble.index(bookie): bookie}
        known[shape] = bool(bookies.replace(fragment.ensemble, failed, write_quorum=quorum.write_quorum, policy=policy))
    return known[shape]


async def spaces(client: LedgerClient, bookies: Collection[BookieId]) -> dict[BookieId, tuple[int, int]]:
    """Return the free and total bytes of all bookies that answer."""
    question = GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE)
    replies = await asyncio.gather(*(ask(client.services.pool, bookie, question) for bookie in bookies))
    return {
        bookie: (reply.free_bytes or 0, reply.total_bytes or 0)
        for bookie, reply in zip(bookies, replies, strict=True)
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK
    }


async def below_ack_quorum(
    client: LedgerClient, bookie: BookieId, living: Collection[BookieId]
) -> list[tuple[LedgerId, int, int]]:
    """Return ledgers of which some entry would have fewer than Qa copies on `living` without the bookie, with that and
    Qa.
    """
    found: list[tuple[LedgerId, int, int]] = []
    there = frozenset(living) - {bookie}
    async for ledger, metadata in ledger_records(client.services.store):
        left = fewest_left(metadata, bookie, there)
        if left is not None and left < metadata.ack_quorum:
            found.append((ledger, left, metadata.ack_quorum))
    return found
