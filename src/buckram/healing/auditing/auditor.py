"""The auditor: elected among all candidates, it marks the ledgers of lost bookies when their delay is over.

Every candidate follows registrations, so that a new auditor goes on counting where the last one died. Marks may be made
twice: replicators look at each ledger themselves. Not here: copying (`healing/repair/replicator`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.config import HealingConfig
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.healing.lost_bookies import HealingBrake, Losses
from buckram.core.healing.needs import members_of
from buckram.core.healing.operator_requests import Countdown, OperatorRequest
from buckram.core.placement.topology import LEVELS
from buckram.errors import (
    ClusterNotInitialised,
    ConfigError,
    MalformedRecord,
    MetadataError,
    StoreReplaced,
)
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.records.operator_requests import change_wish, read_wishes
from buckram.metadata.records.underreplication import Delay, Underreplication
from buckram.types import BookieId, LedgerId, Versioned

log = logging.getLogger("buckram.healing")
_PAGE = 1000
_AT_ONCE = 64
_LOOK_S = 60.0
"""Longest time between two looks at everything, seconds, whatever watches say."""


@dataclass(slots=True)
class Index:
    """Counts of one walk over all records."""

    ledgers: int = 0
    named: Counter[BookieId] = field(default_factory=Counter)
    """Number of ledgers that name a bookie."""
    marked: int = 0
    unreadable: int = 0
    """Records and marks that cannot be read."""


def brake_levels(words: str) -> tuple[str, ...]:
    """Return the levels of a topology that `[healing] brake_levels` names, the widest first. Raises ConfigError."""
    levels = words.replace(",", " ").split()
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise ConfigError(f"[healing] brake_levels: {unknown[0]!r} is no level; known: {', '.join(LEVELS)}")
    return tuple(level for level in LEVELS if level in levels)


class Auditor:
    """One candidate. `run` never ends by itself; cancel it, then `close`."""

    def __init__(self, client: LedgerClient, name: str, config: HealingConfig) -> None:
        self._client, self._store, self._config = client, client.services.store, config
        keys, root = self._store.keys, self._store.root
        self._tree = Underreplication(keys, root, name)
        self._election = Election(keys, root, name)
        self._board = HealingStatusStore(self._store)
        self._brake_levels = brake_levels(config.brake_levels)
        self._losses = Losses(config.lost_bookie_delay_s)
        self._countdown = Countdown()
        self._changed = asyncio.Event()
        self._audited: frozenset[BookieId] = frozenset()
        """Lost and leaving bookies whose ledgers are marked."""
        self._last_audit_at = 0.0
        self._brake: HealingBrake | None = None
        self._named: list[BookieId] = []
        """Bookies that ledgers named at the last walk."""
        self._delay: Delay | None = None
        """Delay before a lost bookie is audited, as last read; None before the first read."""
        self._asked = self._hurry = False
        """`_asked`: an audit was requested and is not done yet; `_hurry`: it shall not wait for the delay of lost
        bookies.
        """
        self._is_elected = asyncio.Event()
        self.elected = False
        self.name = name

    async def until_elected(self) -> None:
        """Return when this candidate is elected; at once while it is."""
        while not self.elected:
            self._is_elected.clear()
            await self._is_elected.wait()

    async def run(self) -> None:
        """Stand for election, follow the bookies, and audit while elected. Ends with InvariantViolation only."""
        delays = Delays(STORE_WATCH)
        prepared = False
        while True:
            self._changed.clear()
            try:
                if not prepared:
                    await self._tree.prepare()
                    prepared = True
                wait_s = await self._step()
                delays.reset()
            except (StoreReplaced, ClusterNotInitialised):
                raise
            except MetadataError as error:
                log.warning("auditor %s: %s", self.name, error)
                self.elected = False
                wait_s = delays.take()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def close(self) -> None:
        """Take the vote back, so that another is elected at once."""
        self.elected = False
        with suppress(MetadataError):
            await self._election.withdraw()

    # -- one look -----------------------------------------------------------------------------------------

    async def _step(self) -> float:
        """Look at everything once; return the seconds until it has to be looked at again if nothing changes."""
        notify, loop = self._changed.set, asyncio.get_running_loop()
        await self._follow_delay()  # before the bookies: whoever requests an audit has already noticed a missing one
        there = await self._store.bookies(notify)
        # A bookie whose cookie was deleted is known as long as ledgers name it.
        known = [*dict.fromkeys([*await self._store.known_bookies(), *self._named])]
        wishes = await read_wishes(self._store, notify)
        leaving = frozenset(bookie for bookie, wish in wishes.items() if wish.leave)
        now = loop.time()
        self._countdown.seen(wishes, now)
        self._losses.leaving(leaving)
        self._losses.resting(self._countdown.resting(now))
        self._losses.seen(known, [b for b, _ in there.everybody()], now, self._domains())
        living = frozenset(bookie for bookie in leaving if there.find(bookie) is not None)
        self._audited &= living | frozenset(self._losses.lost)
        if self._hurry:
            log.info("auditor %s: an audit was asked for", self.name)
            self._losses.hurry()
            self._hurry = False
        self._losses.allow(await self._board.allowed(notify))
        elected = await self._election.elected(notify)
        if elected and not self.elected:
            log.info("auditor %s is elected", self.name)
            self._losses.adopt(await self._board.brake())
            if self._delay is None or self._delay.version < 0:
                await self._tree.begin_delay(self._config.lost_bookie_delay_s)
            self._audited, self._asked = frozenset(), True
        self.elected = elected
        if not elected:
            self._asked = False
            return _LOOK_S
        self._is_elected.set()
        await self._count_down(wishes, now)
        look_s = self._look_s(wishes, loop.time())
        if not await self._tree.enabled(notify):
            return look_s
        await self._publish_brake()
        due = self._losses.due(now) | (living if self._brake is None else frozenset())
        periodic = now - self._last_audit_at >= self._config.bookie_check_interval_s
        if due - self._audited or ((self._asked or periodic) and self._brake is None):
            await self._audit(due)
            self._audited, self._last_audit_at, self._asked = due, now, False
        next_due = self._losses.next_due_at(now)  # not from now on: one may have become due during the audit
        return look_s if next_due is None else min(look_s, max(0.0, next_due - loop.time()))

    def _domains(self) -> dict[BookieId, tuple[str, ...]]:
        """Return the fault domains that matter for the brake, of every bookie whose place is known."""
        topology = self._client.services.bookies.topology
        return {
            bookie: tuple(f"{level} {name}" for level in self._brake_levels if (name := topology.domain(bookie, level)))
            for bookie in topology.locations
        }

    async def _count_down(self, wishes: dict[BookieId, OperatorRequest], now: float) -> None:
        """Write down what is left of each maintenance, and end those that are over."""
        for bookie, wish in wishes.items():
            if self._countdown.changed(bookie, wish, now) is not None:
                changed = await change_wish(self._store, bookie, partial(self._countdown.changed, bookie, now=now))
                wishes[bookie] = changed
                if not changed.rest:
                    log.info("auditor %s: the maintenance of bookie %s is over", self.name, bookie)
        self._countdown.seen(wishes, now)

    def _look_s(self, wishes: dict[BookieId, OperatorRequest], now: float) -> float:
        """Return the seconds until the next look if nothing changes: at most `_LOOK_S`, less if a maintenance ends
        sooner.
        """
        next_at = self._countdown.next_at(wishes, now)
        return _LOOK_S if next_at is None else min(_LOOK_S, max(0.0, next_at - now))

    async def _follow_delay(self) -> None:
        """Read the delay, and notice a requested audit: writing the delay anew asks for one, as Apache's tools do.

        The same value written again also asks to audit lost bookies without waiting for their delay.
        """
        delay = await self._tree.read_delay(self._config.lost_bookie_delay_s, self._changed.set)
        before, self._delay = self._delay, delay
        self._losses.set_delay(delay.seconds)
        if before is not None and before.version != delay.version:
            self._asked = True
            self._hurry |= before.version >= 0 and before.seconds == delay.seconds

    async def _publish_brake(self) -> None:
        """Publish the brake if it changed. Before it is pulled, a walk counts which of these bookies ledgers still
        name: old ones may be long replaced.
        """
        brake = self._losses.brake()
        if brake is not None and brake != self._brake:
            await self._walk(())
            brake = self._losses.brake()
        if brake != self._brake:
            if brake is not None:
                log.warning("auditor %s: copying has stopped: %s (%s)", self.name, brake.why, ", ".join(brake.bookies))
            else:
                log.info("auditor %s: copying is allowed again", self.name)
        await self._board.set_brake(brake)
        self._brake = brake

    # -- the audit ----------------------------------------------------------------------------------------

    async def _audit(self, due: Collection[BookieId]) -> None:
        """Mark every ledger that names one of the bookies `due`."""
        index = await self._walk(due)
        if not due:
            return
        names = ", ".join(sorted(due))
        log.info(
            "auditor %s: %d of %d ledgers lack copies: %s lost or leaving",
            self.name,
            index.marked,
            index.ledgers,
            names,
        )
        if index.marked:
            await self._board.marked()

    async def _walk(self, due: Collection[BookieId]) -> Index:
        """Read every record.

        One that cannot be read is counted and left out; a listing that fails ends the walk (M10).
        """
        index, after = Index(), -1
        while page := await self._store.read_ledgers(after=after, limit=_PAGE):
            lacking = [one for ledger, found in page if (one := self._look(ledger, found, due, index)) is not None]
            for start in range(0, len(lacking), _AT_ONCE):
                part = lacking[start : start + _AT_ONCE]
                await asyncio.gather(*(self._mark(ledger, names, index) for ledger, names in part))
            after = page[-1][0]
        self._named = sorted(bookie for bookie, ledgers in index.named.items() if ledgers)
        if not index.unreadable:
            self._losses.named(self._named)
        return index

    def _look(
        self, ledger: LedgerId, found: Versioned | MalformedRecord, due: Collection[BookieId], index: Index
    ) -> tuple[LedgerId, list[BookieId]] | None:
        """Return the ledger and those of its bookies that are due; None if there are none."""
        index.ledgers += 1
        if isinstance(found, MalformedRecord):
            index.unreadable += 1
            log.warning("auditor %s: %s", self.name, found)
            return None
        members = members_of(found.metadata)
        index.named.update(members)
        names = [bookie for bookie in members if bookie in due]
        return (ledger, names) if names else None

    async def _mark(self, ledger: LedgerId, names: list[BookieId], index: Index) -> None:
        index.marked += 1
        try:
            await self._tree.mark(ledger, names, self._client.services.runtime.clock.wall_us() // 1000)
        except MalformedRecord as error:  # it is marked already, and replicators report why it waits
            index.unreadable += 1
            log.warning("auditor %s: %s", self.name, error)
