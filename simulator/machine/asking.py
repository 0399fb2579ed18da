"""Questions to replicas from outside their processes; a client finds the leader by trying hosts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import ClassVar, Generic, TypeVar

from buckram.errors import BuckramError
from simulator.engine.world import Died
from simulator.machine.stage import Handle, ReplicaStage

H = TypeVar("H", bound=Handle)
T = TypeVar("T")


class Asking(Generic[H]):
    """The questions of one client to replicas: it remembers which host led last."""

    answers: ClassVar[tuple[type[BuckramError], ...]] = ()
    """Errors that are the answer of a leader."""

    def __init__(self, stage: ReplicaStage[H], name: str) -> None:
        self.replicas, self.world, self.name = stage, stage.world, name
        self.rng = random.Random(f"{stage.machines.seed} {name}")
        self.applied = 0
        """Offset below which lies everything that this client was told."""
        self._last = ""
        """The host to ask first, which answered the last question; empty if that failed."""

    async def ask(self, question: Callable[[H], Awaitable[T]], within_s: float = 0.0) -> T:
        """Ask the host that led last, or another one.

        Raises the question's own error, Died if the process dies, or TimeoutError if no answer comes within `within_s`
        (0: a random choice of 1 or 5 seconds) or no replica is open.
        """
        hosts = self.replicas.living()
        if not hosts:
            raise TimeoutError
        if self._last not in hosts or self.rng.random() < 0.1:
            self._last = self.rng.choice(hosts)
        try:
            return await self.ask_at(self._last, question, within_s or self.rng.choice((1.0, 5.0)))
        except self.answers:
            raise
        except (BuckramError, TimeoutError, Died):
            self._last = ""
            raise

    async def ask_at(self, host: str, question: Callable[[H], Awaitable[T]], within_s: float) -> T:
        handle = self.replicas.open[host]

        async def ask() -> tuple[T | BuckramError, int]:
            # Errors are returned as values: after a time-out no task is left to retrieve an exception.
            try:
                return await question(handle), handle.applied
            except BuckramError as error:
                return error, 0

        async with asyncio.timeout(within_s):
            answer, applied = await self.world.join(self.world.processes[host], ask(), "ask")
        if isinstance(answer, BuckramError):
            raise answer
        self.applied = max(self.applied, applied)
        return answer


__all__ = ["Asking"]
