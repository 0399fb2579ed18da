"""Rebalancing: members of fragments move from the fullest bookies to the emptiest, as after bookies were added.

The caller does the copying, a few ledgers at a time, each under the lock that replicators take. No state is kept: if a
run ends in the middle, the next call goes on from what the records say then. Not here: which places to move
(`core/healing/balance`), and the move of one (`healing/repair/ledger_repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

from buckram.client.ledger_client import LedgerClient
from buckram.core.healing.balance import Balance, BookieSpace, Move
from buckram.core.placement.policy import policy_of
from buckram.errors import (
    BuckramError,
    HandleClosed,
    InvalidArgument,
    KeyExists,
    MetadataError,
    NoSuchKey,
    NoSuchLedger,
)
from buckram.healing.operations.decommission import DecommissionProgress, OnProgress
from buckram.healing.operations.dependency_check import OperationRefused, ledger_records, spaces
from buckram.healing.repair.ledger_repair import LedgerRepair
from buckram.healing.repair.member_verdicts import OpenLedgers
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.operator_requests import read_wishes
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, LedgerId

_AT_ONCE = 4
WITHIN = 0.1


@dataclass(slots=True)
class Rebalanced:
    """Result of a run, or plan of a dry run. `failed`: ledgers of which something could not be moved, and why."""

    before: Mapping[BookieId, int]
    after: Mapping[BookieId, int]
    """The bytes that records place on each bookie."""
    even: bool
    moves: list[Move] = field(default_factory=list)
    """Moves that were made; in a dry run those that would be made."""
    entries: int = 0
    bytes: int = 0
    failed: dict[LedgerId, str] = field(default_factory=dict)


async def rebalance(
    client: LedgerClient, on_progress: OnProgress, *, within: float = WITHIN, rate: int = 0, dry_run: bool = False
) -> Rebalanced:
    """Move until no bookie is further than `within` of the mean from it, or nothing that may be moved helps.

    At most `rate` bytes in a second; 0: no limit. Raises InvalidArgument; Refused while nothing may be copied, while
    another rebalancing runs, and where fewer than two bookies could take part.
    """
    if not 0.01 <= within <= 1.0:
        raise InvalidArgument(f"bookies within {within:.0%} of the mean: needs 1% to 100%")
    await client.services.store.sync()
    await client.services.bookies.refresh()
    await _check_allowed(client)
    if dry_run:
        balance = await _survey(client, within)
        before, moves = dict(balance.held), balance.moves()
        return Rebalanced(before, balance.held, balance.even, moves)
    async with _alone(client):
        return await _Rebalance(client, on_progress, within, rate).run()


class _Rebalance:
    def __init__(self, client: LedgerClient, on_progress: OnProgress, within: float, rate: int) -> None:
        self._client, self._store, self._on_progress = client, client.services.store, on_progress
        self._within = within
        self._repair = LedgerRepair(client, OpenLedgers(client, 0.0), Pace(rate or None))
        self._tree = Underreplication(self._store.keys, self._store.root, "rebalance")
        self._running: list[asyncio.Timeout] = []
        self._sessions = 0

    async def run(self) -> Rebalanced:
        """Plan, move, and plan anew, until there is nothing to move."""
        await self._tree.prepare()
        self._store.on_session_lost(self._session_lost)
        balance = await _survey(self._client, self._within)
        found = Rebalanced(dict(balance.held), balance.held, balance.even)
        while True:
            now, moves = dict(balance.held), balance.moves()
            work = [list(group) for _, group in groupby(sorted(moves, key=_by_ledger), key=_by_ledger)]
            work = [part for part in work if part[0].ledger not in found.failed]
            if not work:
                found.after, found.even = now, balance.even
                return found
            known = len(found.moves) + len(found.failed)
            await self._carry_out(work, found)
            await _check_allowed(self._client)
            if len(found.moves) + len(found.failed) == known:
                raise OperationRefused(
                    "nothing could be moved as planned, because others change the same ledgers: try again"
                )
            balance = await _survey(self._client, self._within)

    async def _carry_out(self, work: list[list[Move]], found: Rebalanced) -> None:
        total = sum(map(len, work))
        left_bytes = sum(move.bytes for part in work for move in part)
        done, began = 0, asyncio.get_running_loop().time()
        moved_before = found.bytes

        def tell() -> None:
            passed = asyncio.get_running_loop().time() - began
            speed = (found.bytes - moved_before) / passed if passed > 0 else 0.0
            self._on_progress(DecommissionProgress(done, total, speed, left_bytes / speed if speed else None))

        async def mover() -> None:
            nonlocal done, left_bytes
            while work:
                await _check_allowed(self._client)
                if not work:
                    return
                part = work.pop()
                await self._ledger(part, found)
                done += len(part)
                left_bytes -= sum(move.bytes for move in part)
                tell()

        tell()
        async with TaskScope("rebalance") as scope:
            movers = [scope.spawn(mover(), "moves") for _ in range(min(_AT_ONCE, len(work)))]
            await asyncio.wait(movers, return_when=asyncio.FIRST_EXCEPTION)
            for task in movers:
                if task.done():
                    task.result()

    async def _ledger(self, moves: list[Move], found: Rebalanced) -> None:
        """Move places of one ledger, unless somebody else holds its lock."""
        ledger, sessions = moves[0].ledger, self._sessions
        if await self._tree.read_mark(ledger) is not None:
            found.failed[ledger] = "it lacks copies, which are restored first: see `buckram autorecovery status`"
            return
        try:
            if not await self._tree.lock(ledger):
                found.failed[ledger] = f"{await self._tree.lock_holder(ledger) or 'another process'} works on it"
                return
            if sessions == self._sessions:
                await self._move(moves, found)
            else:
                found.failed[ledger] = _SESSION
        finally:
            await self._tree.unlock(ledger)

    async def _move(self, moves: list[Move], found: Rebalanced) -> None:
        ledger = moves[0].ledger
        session_lost = asyncio.timeout(None)
        self._running.append(session_lost)
        try:
            async with session_lost:
                outcome = await self._repair.move(ledger, [(move.first, move.source, move.target) for move in moves])
        except NoSuchLedger:
            return  # deleted meanwhile
        except TimeoutError:
            if not session_lost.expired():
                raise
            found.failed[ledger] = _SESSION
            return
        except (MetadataError, HandleClosed):
            raise
        except BuckramError as error:
            found.failed[ledger] = str(error)
            return
        finally:
            self._running.remove(session_lost)
        found.entries += outcome.copied.entries
        found.bytes += outcome.copied.bytes
        found.moves += moves[: outcome.replaced]
        if not outcome.whole:
            found.failed[ledger] = "; ".join(reason.text for reason in outcome.reasons)

    def _session_lost(self) -> None:
        """End the moves of a lost session: all its locks are gone, so replicators may work on these ledgers by now."""
        self._sessions += 1
        now = asyncio.get_running_loop().time()
        for session_lost in self._running:
            session_lost.reschedule(now)


_SESSION = "the session with the metadata store ended, and the lock with it: run it again"


def _by_ledger(move: Move) -> LedgerId:
    return move.ledger


async def _survey(client: LedgerClient, within: float) -> Balance:
    """Return the balance of the bookies, read from the record of every ledger.

    Bookies that leave, rest or do not answer take no part, nor do ledgers that name them.
    """
    services = client.services
    there = await services.store.bookies()
    wishes = await read_wishes(services.store)
    takers = {one.bookie_id for one in services.bookies.candidates() if not one.avoid}
    asked = [b for b, _ in there.everybody() if not (b in wishes and (wishes[b].leave or wishes[b].rest))]
    found = await spaces(client, asked)
    if len(found) < 2 or not any(bookie in takers for bookie in found):
        raise OperationRefused(
            f"{len(found)} bookies can take part, and two are needed: start one more bookie, or end a maintenance"
        )
    balance = Balance(
        {bookie: BookieSpace(free, total, bookie in takers) for bookie, (free, total) in found.items()},
        services.bookies.topology,
        within,
    )
    async for ledger, metadata in ledger_records(services.store):
        balance.add(ledger, metadata, policy_of(metadata.custom_metadata, services.bookies.policy))
    return balance


async def _check_allowed(client: LedgerClient) -> None:
    store = client.services.store
    if not await Underreplication(store.keys, store.root, "").enabled():
        raise OperationRefused(
            "autorecovery is disabled, so no ledger is copied: enable it with `buckram autorecovery enable`"
        )
    brake = await HealingStatusStore(store).brake()
    if brake is not None:
        raise OperationRefused(
            f"{brake.why} ({', '.join(brake.bookies)}): start them, or `buckram autorecovery proceed`"
        )


@asynccontextmanager
async def _alone(client: LedgerClient) -> AsyncIterator[None]:
    """Run only if no other rebalancing does: two at the same time would undo each other's moves. Raises Refused."""
    keys, key = client.services.store.keys, f"{client.services.store.own}/healing/rebalance"
    try:
        await keys.create(key, b"", ephemeral=True)
    except KeyExists:
        raise OperationRefused(
            "another process rebalances this cluster already; if it was killed, try again when its session has ended"
        ) from None
    try:
        yield
    finally:
        with suppress(NoSuchKey):
            await keys.delete(key, (await keys.get(key)).version)
