"""The line between a client and a simulated ZooKeeper: a direct call, or the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from buckram.sim.engine.loop import Process
from buckram.sim.engine.metadata import HOST
from buckram.sim.engine.network import Fabric


class Line(Protocol):
    """What lies between a client and the server."""

    name: str

    def check_alive(self) -> None:
        """Raises in a process that is dead."""
        ...

    def send(self, arrive: Callable[[], None]) -> None: ...
    def answer(self, deliver: Callable[[], None]) -> None: ...
    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer of the client."""
        ...

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        """`run` at the server, `after_s()` after the client's death."""
        ...


class DirectLine:
    """No distance and no failures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()

    def check_alive(self) -> None:
        """It always is."""

    def send(self, arrive: Callable[[], None]) -> None:
        self._loop.call_soon(arrive)

    def answer(self, deliver: Callable[[], None]) -> None:
        self._loop.call_soon(deliver)

    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, run)

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        """It does not die."""


class FabricLine:
    """Through the simulated network, from a simulated process."""

    def __init__(self, fabric: Fabric, process: Process, lateness: Callable[[], float] = lambda: 0.0) -> None:
        self.name = process.name
        self._lateness, self._last = lateness, {True: 0.0, False: 0.0}
        self._fabric, self._loop, self._process = fabric, fabric.loop, process

    def check_alive(self) -> None:
        self._process.check_alive()

    def send(self, arrive: Callable[[], None]) -> None:
        self._carry(self.name, HOST, arrive, there=True)

    def answer(self, deliver: Callable[[], None]) -> None:
        loop, context = self._loop, self._process.context
        self._carry(HOST, self.name, lambda: loop.call_soon(deliver, context=context), there=False)

    def _carry(self, source: str, target: str, done: Callable[[], object], *, there: bool) -> None:
        """One connection keeps its order: what is late holds up what comes behind it."""
        fabric, loop = self._fabric, self._loop
        at = self._last[there] = max(self._last[there], loop.time() + fabric.delay(source, target) + self._lateness())
        loop.call_at(at, fabric.when_open, source, target, done, context=loop.world.context)

    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, run, context=self._process.context)

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        loop = self._loop

        def died() -> None:
            loop.call_later(after_s(), run, context=loop.world.context)

        self._process.on_death(died)
