"""The connection between a client and a simulated ZooKeeper: direct calls, or the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from simulator.engine.loop import Process
from simulator.engine.metadata import HOST
from simulator.engine.network import Fabric


class ZkConnection(Protocol):
    """Carries what client and server send. `name` is the client's."""

    name: str

    def check_alive(self) -> None:
        """Raise Crashed if the client's process is dead."""
        ...

    def send(self, arrive: Callable[[], None]) -> None:
        """Run `arrive` at the server when a message of the client has arrived there."""
        ...

    def answer(self, deliver: Callable[[], None]) -> None:
        """Run `deliver` at the client when a message of the server has arrived there."""
        ...

    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        """Start a timer of the client."""
        ...

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        """Run `run` at the server, `after_s()` seconds after the client's process died."""
        ...


class DirectConnection:
    """A connection without delay and faults."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()

    def check_alive(self) -> None:
        """Nothing to do: this client does not die."""

    def send(self, arrive: Callable[[], None]) -> None:
        self._loop.call_soon(arrive)

    def answer(self, deliver: Callable[[], None]) -> None:
        self._loop.call_soon(deliver)

    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, run)

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        """Nothing to do: this client does not die."""


class FabricConnection:
    """A connection from a simulated process through the simulated network."""

    def __init__(
        self,
        fabric: Fabric,
        process: Process,
        extra_delay_s: Callable[[], float] = lambda: 0.0,
        host: str = HOST,
    ) -> None:
        self.name = process.name
        self._extra_delay_s, self._last = extra_delay_s, {True: 0.0, False: 0.0}
        self._fabric, self._loop, self._process, self._host = fabric, fabric.loop, process, host

    def check_alive(self) -> None:
        self._process.check_alive()

    def send(self, arrive: Callable[[], None]) -> None:
        self._carry(self.name, self._host, arrive, there=True)

    def answer(self, deliver: Callable[[], None]) -> None:
        loop, context = self._loop, self._process.context
        self._carry(self._host, self.name, lambda: loop.call_soon(deliver, context=context), there=False)

    def _carry(self, source: str, target: str, done: Callable[[], object], *, there: bool) -> None:
        """Carry a message. A connection keeps its order, so a late message delays those behind it."""
        fabric, loop = self._fabric, self._loop
        at = self._last[there] = max(
            self._last[there], loop.time() + fabric.delay(source, target) + self._extra_delay_s()
        )
        loop.call_at(at, fabric.when_open, source, target, done, context=loop.world.context)

    def later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, run, context=self._process.context)

    def on_death(self, after_s: Callable[[], float], run: Callable[[], None]) -> None:
        loop = self._loop

        def died() -> None:
            loop.call_later(after_s(), run, context=loop.world.context)

        self._process.on_death(died)
