"""Observers of repairs, audits and recoveries of healing during a life, which wrap the functions that begin them.

Planted bugs are applied before, so the judge observes their effects. Not here: bookies' stores (`spies.py`), and what a
subject judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from buckram.client.maintain.recover import recover_ledger
from buckram.client.read.reader import Reader
from buckram.healing.auditing.auditor import Auditor, Index
from buckram.healing.repair import ledger_repair
from buckram.healing.repair.ledger_repair import LedgerRepair, Outcome
from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.loop import PROCESS
from simulator.engine.planting import patched
from simulator.engine.world import World

UNDER_WAY_S = 5.0
"""Time after a change during which requests may come from a process that has not learned of it, seconds."""
STOPPED_S = 1.0
"""Time after the end of its session during which a worker may still change something, seconds."""


class Audits(Protocol):
    """What a subject learns of attempts and audits."""

    auditing: int
    """Number of audits that are reading the ledgers now."""

    def began(self, who: str, ledger: LedgerId, /) -> None:
        """Note that a replicator begins to look at a ledger."""

    def there(self) -> list[LedgerId]:
        """Return the ledgers that an audit that begins now has to see, unless they are deleted."""
        ...

    def audited(self, who: str, before: list[LedgerId], seen: int, /) -> None:
        """Check an audit that ended; `before`: what `there` returned when it began."""


class Attempts:
    """Ends the attempts of dead processes after UNDER_WAY_S, since their last requests may arrive late."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ending: Counter[tuple[int, tuple[str, LedgerId]]] = Counter()
        """Attempts of dead processes that still count for a while, by the counter and its key."""

    def process_ended(self, who: str) -> None:
        facts = self._world.judge.facts
        for counts in (facts.repairing, facts.recovering):
            for key, count in counts.items():
                ended = count - self._ending[id(counts), key] if key[0] == who else 0
                if ended > 0:
                    self._ending[id(counts), key] += ended
                    self._world.loop.call_later(UNDER_WAY_S, partial(self._take, counts, key, ended))

    def _take(self, counts: dict[tuple[str, LedgerId], int], key: tuple[str, LedgerId], count: int) -> None:
        counts[key] -= count
        self._ending[id(counts), key] -= count


@contextmanager
def watch_healing(world: World, rules: Audits) -> Iterator[None]:
    """Tell the rules and the judge which process repairs, moves, recovers or audits what."""
    run, move, walk = LedgerRepair.run, LedgerRepair.move, Auditor._walk
    recover = recover_ledger
    judge = world.judge

    def host() -> str:
        return PROCESS.get(world.loop.world).name

    def ends_later(who: str, ledger: LedgerId) -> None:
        """End an attempt a moment later: requests that it sent may still be carried out (H5), or after a cut."""
        process, context = PROCESS.get(world.loop.world), world.loop.world.context

        def end() -> None:
            if world.fabric.blocked(who, "meta"):
                context.run(world.loop.call_later, STOPPED_S, end)
            elif not process.dead:  # of a dead process `Attempts` ends it
                judge.repair(who, ledger, begins=False)

        context.run(world.loop.call_later, STOPPED_S, end)

    async def attempt(who: str, ledger: LedgerId, work: Awaitable[Outcome]) -> Outcome:
        judge.repair(who, ledger, begins=True)
        try:
            outcome = await work
        except BaseException:
            ends_later(who, ledger)
            raise
        judge.repair(who, ledger, begins=False)
        world.trace.note(who, f"ledger {ledger}: {outcome.replaced} replaced, {outcome.reasons}")
        return outcome

    async def watched_run(self: LedgerRepair, ledger: LedgerId, named: Collection[BookieId]) -> Outcome:
        who = host()
        rules.began(who, ledger)
        world.trace.note(who, f"looks at ledger {ledger}, {named}")
        return await attempt(who, ledger, run(self, ledger, named))

    async def watched_move(
        self: LedgerRepair, ledger: LedgerId, moves: Collection[tuple[EntryId, BookieId, BookieId]]
    ) -> Outcome:
        who = host()
        world.trace.note(who, f"moves of ledger {ledger}: {moves}")
        return await attempt(who, ledger, move(self, ledger, moves))

    async def watched_recover(*arguments: Any, **options: Any) -> Reader:
        who, ledger = host(), arguments[1]
        judge.recovery_started(who, ledger)
        found: Reader | None = None
        try:
            found = await recover(*arguments, **options)
        finally:
            end = None if found is None else found.last_confirmed
            judge.recovery_ended(who, ledger, end, None if found is None else found.length)
        return found

    async def watched_walk(self: Auditor, due: Collection[BookieId]) -> Index:
        who, before = host(), rules.there()
        rules.auditing += 1
        try:
            index = await walk(self, due)
        finally:
            rules.auditing -= 1
        rules.audited(who, before, index.ledgers)
        return index

    with patched(
        (LedgerRepair, "run", watched_run),
        (LedgerRepair, "move", watched_move),
        (Auditor, "_walk", watched_walk),
        (ledger_repair, "recover_ledger", watched_recover),
    ):
        yield
