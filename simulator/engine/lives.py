"""The result of one life, its beginning, and the guards that record broken invariants and failed tasks during it.

Not here: sums over many lives (`simulator/engine/swarm.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from buckram.errors import InvariantViolation
from buckram.runtime.process.tasks import TaskScope
from simulator.engine.checkers.report import Violation
from simulator.engine.checkers.safety import Records
from simulator.engine.loop import Crashed
from simulator.engine.plan import Plan
from simulator.engine.trace import Echo
from simulator.engine.world import World


@dataclass(slots=True)
class LifeResult:
    """The result of one life. `virtual_s` is its length in virtual seconds, `replay` a command that repeats it."""

    seed: int
    plan: str
    violations: list[Violation]
    evaluated: dict[str, int]
    reached: dict[str, int]
    acked: int
    crashes: int
    faults: int
    steps: int
    virtual_s: float
    trace_hash: str
    lines: list[str] = field(default_factory=list)
    replay: str = ""


def life_result(world: World, seed: int, plan: object, acked: int) -> LifeResult:
    """Return the result of a life that has ended, from its world and its report."""
    report = world.report
    return LifeResult(
        seed,
        str(plan),
        report.violations,
        report.evaluated,
        report.reached,
        acked,
        world.crashes,
        world.faults,
        world.loop.steps,
        world.loop.time(),
        world.trace.digest,
        list(world.trace.lines),
    )


class report_broken_invariants(AbstractContextManager[None]):  # a class that is used like a function
    """Report each InvariantViolation when it is created, even if it is caught later.

    `excused`: words that are in the text of those that somebody in the life provokes, who writes as no program does.
    """

    def __init__(self, world: World, *, excused: str = "") -> None:
        self._world, self._excused = world, excused
        self._original = InvariantViolation.__init__

    def __enter__(self) -> None:
        world, original, excused = self._world, self._original, self._excused

        def report(error: InvariantViolation, *args: object) -> None:
            original(error, *args)
            if excused and excused in str(args):
                return
            world.report.violate(str(args[0]).split(":")[0] if args else "invariant", f"checked in the code: {args}")

        InvariantViolation.__init__ = report  # type: ignore[method-assign,assignment]  # for the time of a life

    def __exit__(self, *exc: object) -> None:
        InvariantViolation.__init__ = self._original  # type: ignore[method-assign]  # as it was


def life_world(
    seed: int | str,
    cluster: Plan,
    echo: Echo | None,
    names: tuple[Iterable[str], Iterable[str]] = ((), ()),
    *,
    records_only: bool = True,
    beside: World | None = None,
) -> World:
    """Return the world of a life, which also counts these invariants and situations.

    `records_only`: of the checkers of ledgers only that of their metadata runs, since the others take time. `beside`:
    the world of the life's first cluster, if this is that of another one.
    """
    world = World(seed, echo=echo, configs=cluster.configs, metadata=cluster.metadata, pace=cluster.pace, beside=beside)
    if records_only:
        world.fabric.observers.remove(world.judge.wire)
        world.judge.checkers = [checker for checker in world.judge.checkers if isinstance(checker, Records)]
    world.report.evaluated |= dict.fromkeys(names[0], 0)
    world.report.reached |= dict.fromkeys(names[1], 0)
    return world


async def bring_up(world: World, bookies: int) -> None:
    """Start a cluster without faults."""
    await world.store(world.loop.world, world.rng).initialise()
    for n in range(1, bookies + 1):
        world.add_machine(f"b{n}")
    await boot_all(world)


async def boot_all(world: World, startless: str = "ends") -> None:
    """Start all bookies of a new cluster, before any fault; that one does not start violates `startless`."""
    started = await asyncio.gather(*[world.boot(machine) for machine in world.machines.values()])
    if not all(started):
        refused = [machine.refused for machine in world.machines.values()]
        world.report.violate(startless, f"a new cluster does not start: {refused}")


@contextmanager
def watch_tasks(world: World) -> Iterator[None]:
    """Report a violation if a task of a TaskScope fails, which is only logged in production.

    Disk errors that are passed to the scope's owner are no violation: the owner stops what needs the disk.
    """
    original = TaskScope._ended

    def noticed(self: TaskScope, task: asyncio.Task[object]) -> None:
        error = None if task.cancelled() else task.exception()
        handled = isinstance(error, OSError) and self._on_error is not None
        if error is not None and not handled and not isinstance(error, Crashed):
            world.report.violate("uncaught", f"task {task.get_name()} failed: {error!r}")
        original(self, task)

    TaskScope._ended = noticed  # type: ignore[method-assign]  # for the time of a life
    try:
        yield
    finally:
        TaskScope._ended = original  # type: ignore[method-assign]  # as it was
