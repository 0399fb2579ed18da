"""Check that the other bookies can take over a bookie's ledgers, or that these keep Qa copies while it is away.

Checked before anything is changed, so that nothing is begun that cannot end. Not here: the copying, and what keeps it
from ending later (`healing/operations/decommission`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.replicas import ask
from buckram.core.healing.needs import copied_bytes, fewest_left, needs_of
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.placement.policy import policy_of
from buckram.core.wire.messages import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY, BookieInfoReply, GetBookieInfo
from buckram.errors import Code
from buckram.healing.operations.dependency_check import OperationRefused, ledger_records, shown
from buckram.types import BookieId, Fragment, LedgerId, LedgerMetadata

Shape = tuple[tuple[BookieId, ...], Quorum, str]


async def check_room(client: LedgerClient, bookie: BookieId, ledgers: Collection[LedgerId]) -> None:
    """Raise Refused if a ledger finds no other bookie, or all others together have less free than is to be copied."""
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
            f"{needed} bytes of bookie {bookie} are to be copied, and the {len(others)} others that are writable have "
            f"{free} free: start one more bookie, or delete what nobody needs"
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
