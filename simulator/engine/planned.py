"""Lives and subjects that follow a plan drawn from a seed: what all subjects of the simulator have in common.

A subject derives from `PlannedLife` its actors, its ending and what it watches, and from `PlannedSubject` its names and
its planted bugs. Not here: what the engine needs of any subject (`subject.py`), and the subjects.
"""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from simulator.engine.faults import FaultRunner
from simulator.engine.hunting import Kill, Mutant, first_caught, report_kills
from simulator.engine.lives import LifeResult, boot_all, life_result, life_world, report_broken_invariants
from simulator.engine.loop import Stuck
from simulator.engine.plan import Plan
from simulator.engine.swarm import Totals
from simulator.engine.trace import Echo
from simulator.engine.world import Machine

MAX_SEED = 50_000


class LifePlan(Protocol):
    """A plan of lives in a cluster."""

    @property
    def cluster(self) -> Plan: ...


P = TypeVar("P", bound=LifePlan)


class PlannedLife(ABC, Generic[P]):
    """One life: the cluster, the actors and the faults of a plan in one simulated world. `run_one` runs it.

    A subclass sets `faults` when it is made, begins its actors in `begin`, and ends them in `end`.
    """

    faults: FaultRunner
    invariants: ClassVar[Iterable[str]] = ()
    situations: ClassVar[Iterable[str]] = ()
    """The invariants and situations that the subject adds to those of ledgers."""
    excused: ClassVar[str] = ""
    """Words in the text of invariants that an actor breaks on purpose, who writes as no program does."""
    startless: ClassVar[str] = "ends"
    """The invariant that is violated if a new cluster does not start."""

    def __init__(self, plan: P, seed: int | str, echo: Echo | None = None, *, records_only: bool = True) -> None:
        """Make the world. `records_only`: of the checkers of ledgers only that of their metadata runs."""
        self.plan = plan
        self.world = life_world(seed, plan.cluster, echo, (self.invariants, self.situations), records_only=records_only)
        self.awaited: list[asyncio.Task[None]] = []
        """The actors that end by themselves."""
        self._tasks: list[asyncio.Task[None]] = []
        self._supervised = False

    # -- what a subject brings ------------------------------------------------------------------------------

    @abstractmethod
    async def begin(self) -> None:
        """Prepare what actors need, and start them."""

    @abstractmethod
    async def end(self) -> None:
        """Heal, and check what must be true in the end."""

    @abstractmethod
    async def be_busy(self) -> None:
        """Wait until actors have done what they were to do, or the time for it is over."""

    @property
    @abstractmethod
    def acked(self) -> int:
        """Return how many changes were acknowledged to clients."""

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        """Return the contexts in which the life runs: spies, and smaller limits for the code under test."""
        return ()

    async def prepare_store(self) -> None:
        """Prepare the metadata store before any bookie starts."""
        await self.world.store(self.world.loop.world, self.world.rng).initialise()

    def add_bookie(self, number: int) -> Machine:
        cluster = self.plan.cluster
        return self.world.add_machine(f"b{number}", cluster.location(number), site=cluster.site(number))

    def trouble(self) -> Coroutine[Any, Any, None]:
        """Return the run of the plan's faults."""
        return self.faults.run()

    # -- the life -------------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that lasts until the life ends, at most."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    def supervise(self) -> None:
        """Have all bookies restarted that die, unless this was called before."""
        if not self._supervised:
            self._supervised = True
            for machine in self.world.machines.values():
                self.start(self.faults.supervise(machine), f"supervise {machine.name}")

    async def run(self) -> None:
        world = self.world
        world.broken = asyncio.Event()
        world.trace.note("plan", str(self.plan))
        await self.prepare_store()
        for number in range(1, self.plan.cluster.bookies + 1):
            self.add_bookie(number)
        await boot_all(world, self.startless)
        work = asyncio.create_task(self._live(), name="life")
        broken = asyncio.create_task(world.broken.wait(), name="broken")
        await asyncio.wait([work, broken], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()

    async def _live(self) -> None:
        await self.begin()
        self.supervise()
        chaos = asyncio.create_task(self.trouble(), name="faults")
        await self.be_busy()
        await chaos
        await self.end()
        for task in self._tasks:
            task.cancel()

    def result(self) -> LifeResult:
        return life_result(self.world, self.plan.cluster.seed, self.plan, self.acked)

    def run_to_the_end(self) -> LifeResult:
        """Run the life and close its world. An invariant that the code itself finds broken counts, too."""
        with ExitStack() as stack:
            for context in self.watched():
                stack.enter_context(context)
            stack.enter_context(report_broken_invariants(self.world, excused=self.excused))
            try:
                self.world.loop.run_until_complete(self.run())
            except Stuck as stuck:
                self.world.report.violate("stuck", str(stuck))
            result = self.result()
            self.world.close()
        return result


class OwnTotals(Totals):
    """Counts of one subject's invariants and situations; violations of anything."""

    def add(self, result: LifeResult) -> None:
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in self.evaluated}
        result.reached = {name: count for name, count in result.reached.items() if name in self.reached}
        Totals.add(self, result)


class PlannedSubject(ABC, Generic[P]):
    """An engine.subject.Subject, made of plans, lives and mutants."""

    option: ClassVar[str]
    invariants: ClassVar[Iterable[str]]
    situations: ClassVar[Iterable[str]]
    mutants: ClassVar[Mapping[str, Any]]
    """The planted bugs by name, each an engine.hunting.Mutant of such plans."""
    catching: ClassVar[Iterable[str]] = ()
    """Further invariants whose violation means that a planted bug is caught."""

    @abstractmethod
    def plan(self, seed: int) -> P:
        """Return the plan of the seed's life."""

    @abstractmethod
    def life(self, plan: P, echo: Echo | None) -> PlannedLife[P]:
        """Return a life of this plan, which has not begun."""

    @abstractmethod
    def fault_names(self) -> list[str]: ...

    def directed(self, mutant: Any) -> Kill | None:
        """Run what is directed at the mutant, before any random life. Return None if it does not catch it."""
        return None

    # -- what follows from it -------------------------------------------------------------------------------

    def totals(self) -> Totals:
        return OwnTotals(evaluated=dict.fromkeys(self.invariants, 0), reached=dict.fromkeys(self.situations, 0))

    def planned_faults(self, seed: int) -> list[str]:
        return self.plan(seed).cluster.faults

    def run(
        self,
        seed: int,
        *,
        plan: P | None = None,
        echo: Echo | None = None,
        mutant: AbstractContextManager[None] | None = None,
    ) -> LifeResult:
        """Run the life of the seed, or of another plan.

        Python's garbage collection is off meanwhile: the time of finalisers must not depend on history.
        """
        enabled = gc.isenabled()
        gc.disable()
        try:
            with ExitStack() as stack:
                if mutant is not None:
                    stack.enter_context(mutant)
                return self.life(plan or self.plan(seed), echo).run_to_the_end()
        finally:
            if enabled:
                gc.enable()

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan = self.plan(seed)
        if faults is not None:
            plan.cluster.faults = faults
        gc.freeze()  # What was there before this life, modules above all, is no garbage of it.
        try:
            result = self.run(seed, plan=plan, echo=echo)
            gc.collect()  # These lives are large.
        finally:
            gc.unfreeze()
        return result

    def kill(self, name: str, budget: int | None = None) -> Kill:
        """Run what is directed at the mutant, then lives that suit it, until an invariant is violated."""
        mutant: Mutant[P] = self.mutants[name]
        found = self.directed(mutant)
        if found is not None:
            return found
        counted = (*self.invariants, *self.catching)
        lives, most = 0, mutant.seeds if budget is None else min(budget, mutant.seeds)
        for seed in range(MAX_SEED):
            if lives >= most:
                break
            plan = self.plan(seed)
            if not mutant.suits(plan):
                continue
            lives += 1
            caught = first_caught(self.run(seed, plan=plan, mutant=mutant.apply()).violations, counted)
            if caught is not None:
                return Kill(name, caught.invariant, f"seed {seed}", lives, str(caught))
            if lives % 10 == 0:
                gc.collect()
        return Kill(name, "", "", lives, "")

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return report_kills(self.kill, self.mutants, budget, jobs, only)


__all__ = ["LifePlan", "OwnTotals", "PlannedLife", "PlannedSubject"]
