"""Shared state of the actors of a life of pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.pipeline.checkpoint import Files
from simulator.pipeline.model import Model
from simulator.pipeline.plan import PipelinePlan

T = TypeVar("T")


@dataclass(slots=True)
class Stage:
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    pipeline: PipelinePlan
    model: Model
    files: Files = field(default_factory=Files)
    killed: dict[tuple[str, int], str] = field(default_factory=dict)
    """Where the driver of a batch died, by checkpoint and number, until the batch is run again."""
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """The inputs of which something was destroyed, in order."""
    trimmed: bool = False
    """True if some input was freed up to its cursors."""
    interrupt: Callable[[], Awaitable[None]] | None = None
    """Does something to inputs between the planning of a batch and its tasks."""
    events: int = 0
    """Number of times that somebody spoiled something."""
    over: bool = False
    """Set when faults, kills and spoiling are to stop."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        return self.pipeline.cluster

    def situation(self, name: str) -> None:
        self.world.report.situation(name)

    def note(self, who: str, text: str) -> None:
        self.world.trace.note(who, text)

    def lose(self, stream: str) -> None:
        """Note that records of an input are about to be destroyed."""
        self.lost.append(stream)
        self.events += 1

    def lock(self, stream: str) -> asyncio.Lock:
        """Return the lock of whoever appends to a stream, or destroys some of it: the model has to see all of it."""
        return self.locks.setdefault(stream, asyncio.Lock())

    def background(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start what may outlive whoever started it."""
        task = asyncio.create_task(work, name=name)
        self.tasks = [one for one in self.tasks if not one.done()]
        self.tasks.append(task)
        return task


__all__ = ["Stage"]
