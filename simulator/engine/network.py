"""The simulated network: seams.Network over links with delays, resets and blocks, with asyncio transports on top.

As with TCP, a connection keeps its order and loses nothing unless it is reset. The seed chooses how much of what was
under way still arrives after a reset, and the two ends learn of it at different times. Chunks are split and merged.
Hosts have the names of their processes.

Not here: when links are blocked, and which (`simulator/engine/faults/links.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from buckram.seams import Listener
from simulator.engine.loop import Crashed, Process, SimLoop
from simulator.engine.transport import Connection, Endpoint, Pipe

Factory = Callable[[], asyncio.Protocol]
"""Creates the protocol of one connection, as in asyncio."""


class WireObserver(Protocol):
    """Sees whole frames when they are sent and delivered. `to_server`: the frame is a request, otherwise an answer."""

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None: ...
    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None: ...


class Tamperer(Protocol):
    """A lying server: it changes whole frames between an honest process and the network."""

    def request(self, conn: Connection, frame: bytes) -> bytes | None:
        """Return the frame that the honest process gets, None for none. May call conn.answer(frame) itself."""
        ...

    def answer(self, conn: Connection, frame: bytes) -> bytes | None:
        """Return the frame that the client gets, None for none."""
        ...


class SimListener:
    """A seams.Listener."""

    def __init__(self, fabric: Fabric, process: Process, host: str, port: int, factory: Factory) -> None:
        self.fabric, self.process, self.host, self.factory = fabric, process, host, factory
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self.fabric.forget_listener(self)


class Fabric:
    """All links of one life and the state of each."""

    def __init__(self, loop: SimLoop, rng: random.Random, latency_s: tuple[float, float] = (0.0001, 0.001)) -> None:
        self.loop, self.rng, self.trace = loop, rng, loop.trace
        self.latency_s = latency_s
        self.observers: list[WireObserver] = []
        self.tamperers: dict[str, Tamperer] = {}
        self.connections: list[Connection] = []
        self.split_chance = 0.1
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._blocked: dict[tuple[str, str], float] = {}
        """Blocked links (source, target), with the time since which each is blocked."""
        self._extra_s: dict[tuple[str, str], float] = {}
        self._dark: dict[str, bool] = {}
        self._waiting: dict[tuple[str, str], list[Callable[[], object]]] = {}
        self._next_port = 3181
        self._serial = 0

    def face(self, process: Process, host: str | None = None) -> SimNetwork:
        return SimNetwork(self, process, host or process.name)

    # what faults do

    def block(self, source: str, target: str) -> None:
        """Deliver nothing from source to target until unblock(). The other direction is not affected."""
        if (source, target) not in self._blocked:
            self._blocked[source, target] = self.loop.time()
            self.trace.note("network", f"cut {source} -> {target}")

    def unblock(self, source: str, target: str) -> None:
        if self._blocked.pop((source, target), None) is not None:
            self.trace.note("network", f"heal {source} -> {target}")
            for go in self._waiting.pop((source, target), []):
                go()

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Delay everything that is sent from now on by `extra_s` seconds; 0 ends this."""
        self._extra_s[source, target] = extra_s
        self.trace.note("network", f"{source} -> {target} is {extra_s:.3f} s slower")

    def heal(self) -> None:
        """Unblock all links, and end all extra delays."""
        for source, target in list(self._blocked):
            self.unblock(source, target)
        self._extra_s.clear()

    def set_dark(self, host: str, dark: bool) -> None:
        """Set whether a host has no power. Such a host does not answer; one whose process died refuses and resets."""
        self._dark[host] = dark

    def reset(self, conn: Connection) -> None:
        """Reset a connection. Neither end knows how much of what was under way has arrived."""
        self.trace.note("network", f"reset {conn}")
        conn.break_off(self.rng)

    # what links know

    def blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def blocked_before(self, time: float, target: str) -> set[str]:
        """Return the hosts from which nothing has been delivered to the target since that time or before."""
        return {source for (source, to), since in self._blocked.items() if to == target and since <= time}

    def dark(self, host: str) -> bool:
        return self._dark.get(host, False)

    def delay(self, source: str, target: str) -> float:
        low, high = self.latency_s
        delay = low + (high - low) * self.rng.random()
        return delay + self._extra_s.get((source, target), 0.0) if self._extra_s else delay

    def when_open(self, source: str, target: str, go: Callable[[], object]) -> None:
        """Call `go` now, or when the link is unblocked."""
        if (source, target) in self._blocked:
            self._waiting.setdefault((source, target), []).append(go)
        else:
            go()

    # listening and connecting

    def add_listener(self, process: Process, host: str, port: int, factory: Factory) -> SimListener:
        if port == 0:
            while (host, self._next_port) in self._listeners:
                self._next_port += 1
            port, self._next_port = self._next_port, self._next_port + 1
        if (host, port) in self._listeners:
            raise OSError(98, f"address already in use: {host}:{port}")
        listener = SimListener(self, process, host, port, factory)
        self._listeners[host, port] = listener
        process.on_death(lambda: self.forget_listener(listener))
        return listener

    def forget_listener(self, listener: SimListener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def dial(self, process: Process, source: str, host: str, port: int, done: Dialled, ghost: bool) -> None:
        """Open a connection: `done` gets it, or the refusal, as code of the process that connects."""
        loop = self.loop

        def arrive() -> None:
            listener = self._listeners.get((host, port))
            if listener is None:
                if not self.dark(host):
                    refused = ConnectionRefusedError(111, f"connection refused: {host}:{port}")
                    back(lambda: done(None, refused))
                return
            conn = self._open(process, source, listener, ghost)
            conn.server_end.start_in_process(listener.factory)
            back(lambda: self._established(conn, done))

        def back(go: Callable[[], None]) -> None:
            def run() -> None:
                self.when_open(host, source, lambda: loop.call_soon(go, context=process.context))

            loop.call_later(self.delay(host, source), run, context=loop.world.context)

        loop.call_later(
            self.delay(source, host), lambda: self.when_open(source, host, arrive), context=loop.world.context
        )

    def _established(self, conn: Connection, done: Dialled) -> None:
        if conn.client_end.closed:
            done(None, ConnectionResetError(104, f"connection reset: {conn}"))
        else:
            done(conn, None)

    def _open(self, process: Process, source: str, listener: SimListener, ghost: bool) -> Connection:
        self._serial += 1
        conn = Connection(self._serial, source, listener.host, listener.port, ghost)
        client = Endpoint(self, conn, process, source, 40_000 + self._serial, listener.host, listener.port)
        server = Endpoint(self, conn, listener.process, listener.host, listener.port, source, 40_000 + self._serial)
        conn.client_end, conn.server_end = client, server
        client.out, server.out = Pipe(self, conn, client, server, True), Pipe(self, conn, server, client, False)
        self.connections.append(conn)
        self.trace.note("network", f"open {conn}")
        return conn

    def forget(self, conn: Connection) -> None:
        if conn in self.connections:
            self.connections.remove(conn)


class Dialled(Protocol):
    """Gets the open connection, or the error why there is none."""

    def __call__(self, conn: Connection | None, error: OSError | None, /) -> None: ...


class SimNetwork:
    """seams.Network as one process sees it."""

    def __init__(self, fabric: Fabric, process: Process, host: str, ghost: bool = False) -> None:
        self._fabric, self._process, self._host, self._ghost = fabric, process, host, ghost

    def as_ghost(self) -> SimNetwork:
        """Return a network for replays of old requests of this host, whose answers reach no client."""
        return SimNetwork(self._fabric, self._fabric.loop.world, self._host, ghost=True)

    async def connect(self, host: str, port: int, factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self._process.check_alive()
        answer: asyncio.Future[tuple[asyncio.Transport, asyncio.Protocol]] = self._fabric.loop.create_future()

        def done(conn: Connection | None, error: OSError | None) -> None:
            if answer.done():
                if conn is not None:  # the caller has stopped waiting
                    conn.client_end.start(asyncio.Protocol)
                    conn.client_end.abort()
            elif conn is None:
                assert error is not None
                answer.set_exception(error)
            else:
                protocol = conn.client_end.start(factory)
                answer.set_result((conn.client_end, protocol))

        self._fabric.dial(self._process, self._host, host, port, done, self._ghost)
        return await answer

    async def listen(self, host: str, port: int, factory: Factory) -> Listener:
        if self._process.dead:
            raise Crashed(self._process.name)
        return self._fabric.add_listener(self._process, self._host, port, factory)
