"""Directed schedules: the result of one, how one is run in a world of its own, and the plan of a life without faults.

Not here: the schedules (`simulator/ledgers/scenarios`, `simulator/streams/scenarios.py`).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from buckram.config import ClientConfig, NetConfig
from buckram.types import DigestType
from simulator.engine.checkers.report import Violation
from simulator.engine.lives import report_broken_invariants
from simulator.engine.loop import Stuck
from simulator.engine.plan import Plan
from simulator.engine.world import Configs, World


class ScheduleFailed(AssertionError):
    """The schedule did not come about, or its outcome is wrong in a way that no invariant names."""


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """`failed`: why the schedule could not be carried out, or ended wrong; violations count in any case."""

    violations: list[Violation]
    failed: str
    evaluated: dict[str, int]
    trace_hash: str
    lines: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations and not self.failed


async def until_violated(world: World, work: Awaitable[None], failures: tuple[type[BaseException], ...]) -> str:
    """Run the work until it ends or an invariant is violated; `world.broken` must be set.

    Return the error that ended the work if it is one of `failures`, otherwise "". Other errors are raised.
    """
    assert world.broken is not None
    task = asyncio.ensure_future(work)
    broken = asyncio.ensure_future(world.broken.wait())
    await asyncio.wait([task, broken], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        try:
            task.result()
        except failures as error:
            return f"{type(error).__name__}: {error}"
    return ""


def run_schedule(
    make_world: Callable[[], World],
    schedule: Callable[[World], Coroutine[Any, Any, str]],
    watched: Callable[[World], AbstractContextManager[None]],
    mutant: AbstractContextManager[None] | None,
) -> ScheduleResult:
    """Run a schedule, which returns why it failed or "", in a world of its own, with the mutant if there is one.

    Python's garbage collection is off meanwhile, as in lives.
    """
    failed, enabled = "", gc.isenabled()
    gc.disable()
    try:
        with mutant or nullcontext():
            world = make_world()
            world.broken = asyncio.Event()
            with watched(world), report_broken_invariants(world):
                try:
                    failed = world.loop.run_until_complete(schedule(world))
                except Stuck as stuck:
                    world.report.violate("stuck", str(stuck))
                report, trace = world.report, world.trace
                result = ScheduleResult(
                    list(report.violations), failed, report.evaluated, trace.digest, list(trace.lines)
                )
                world.close()
    finally:
        if enabled:
            gc.enable()
    return result


def quiet_plan(shape: tuple[int, int, int], *, request_timeout_s: float = 2.0, wire: int = 2) -> Plan:
    """Return the plan of a life without faults. `shape` is (E, Qw, Qa), `wire` the version of the wire protocol."""
    configs = Configs(
        net=NetConfig(connect_timeout_s=1.0, request_timeout_s=request_timeout_s, sweep_interval_s=0.1),
        client=ClientConfig(wire_protocol=wire, quarantine_s=0.5, speculative_read_ms=50.0),
    )
    return Plan(0, 0, shape, DigestType.CRC32C, configs, [])
