"""BookiePool: the only way a client reaches bookies. It decides which connection a request takes.

Per bookie there is a connection for the wire that adds and reads use and, when that is v2, a v3 one for all requests
whose answers v2 lacks or could confuse: fencing reads, recovery adds, LACs, force, info, lists, long polls. Connections
are made by the first request that needs them; a failed attempt fails what waited for it, and no more. Nothing is sent
on one before its peer has said that it is the bookie that is meant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from buckram.config import NetConfig
from buckram.core.wire.acks import AckSink, SentRun
from buckram.core.wire.adds import RECOVERY_ADD
from buckram.core.wire.client_protocol import LacPacket
from buckram.core.wire.messages import BatchRead, Pull, Read, Reply, Request
from buckram.errors import (
    BookieError,
    BookieTooBusy,
    BookieUnavailable,
    BuckramError,
    HandleClosed,
    InvalidArgument,
    WrongBookie,
)
from buckram.runtime.net.connection import MAX_UNSENT_BYTES, Connection, OnLac, OnReply, PendingRequest, again
from buckram.runtime.net.introductions import Introductions
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Runtime
from buckram.types import BookieAddress, BookieId

_log = logging.getLogger("buckram.net")
__all__ = ["AckSink", "AddLane", "BookiePool"]

MOST_LANES = 64
"""Connections of one client to each bookie besides the common ones."""
Outcome = Connection | BuckramError
_Send = tuple[bytes, bytes, Sequence[SentRun], bool]


class _Endpoint:
    """The connection of one bookie, wire version and lane: none, being made, or open. Adds wait here for it."""

    def __init__(self, pool: BookiePool, bookie_id: BookieId, version: int) -> None:
        self._pool = pool
        self.bookie_id = bookie_id
        self.version = version
        self.connection: Connection | None = None
        self.losses = 0
        self.last_wrong = ""
        """The last wrong bookie that was found in its place, as it was logged."""
        self._connecting: asyncio.Future[Outcome] | None = None
        self._met = ""
        self._waiting: list[tuple[_Send, str]] = []
        self._waiting_bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._waiting_bytes + (self.connection.pending_bytes if self.connection is not None else 0)

    def current(self) -> Connection | None:
        """Return the open connection, or None if the bookie is no longer there or another one is in its place."""
        connection = self.connection
        if connection is not None:
            address = self._pool.resolve(self.bookie_id)
            if address is not connection.address:
                return self._examined(connection, address)
        return connection

    def review(self) -> None:
        """End the connection if it no longer leads to the right bookie, by present knowledge of the bookies."""
        if self.connection is not None:
            self._examined(self.connection, self._pool.resolve(self.bookie_id))

    def _examined(self, connection: Connection, address: BookieAddress | None) -> Connection | None:
        """Return the connection if it may stay, and None otherwise.

        One to the bookie's earlier address may finish its requests, unless another bookie may be there by now.
        """
        why = None if self._pool.introductions is None else self._pool.introductions.mismatch(connection)
        if address is None:
            why = BookieUnavailable(self.bookie_id, f"is not registered at {connection.address}, or another bookie is")
        elif address != connection.address and connection.introduction is not None and connection.identity is None:
            why = BookieUnavailable(self.bookie_id, f"no longer at {connection.address}")
        elif why is None and address == connection.address:
            connection.address = address  # the same in a list that was read anew
            return connection
        self.connection = None
        self.losses += 1
        if why is None:
            connection.retire()
        else:
            connection.disown(why)
        return None

    def send(self, send: _Send, at_once: bool) -> int:
        """Send, or keep it until there is a connection; return the bytes that the operating system has not taken."""
        connection = self.current()
        if connection is not None:
            try:
                return connection.send_adds(*send, at_once)
            except BookieError as error:
                self._pool.fail_soon(self.bookie_id, send[2], error)
        elif self._waiting_bytes + len(send[0]) > MAX_UNSENT_BYTES:
            busy = BookieTooBusy(self.bookie_id, f"{self._waiting_bytes} bytes wait for a connection already")
            self._pool.fail_soon(self.bookie_id, send[2], busy)
        else:
            self._waiting.append((send, self.meant()))
            self._waiting_bytes += len(send[0])
            self.connect()
        return self.pending_bytes

    def meant(self) -> str:
        """Return the incarnation that a request made now is for, or "" for any.

        That is the registered one or, if none is registered, the one that answered last: a request that waits for a
        connection must not reach an incarnation that was born in the meantime.
        """
        known = self._pool.introductions
        return ("" if known is None else known.incarnation(self.bookie_id)) or self._met

    def connect(self) -> asyncio.Future[Outcome]:
        """Return the future of the attempt that is under way, or begin a new one."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_future()
            self._pool.start_connecting(self)
        return self._connecting

    def connected(self, outcome: Outcome) -> None:
        """Take note that the attempt ended, and hand over what waited for it."""
        connecting, self._connecting = self._connecting, None
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if isinstance(outcome, Connection):
            self.connection, self.last_wrong = outcome, ""
            self._met = outcome.incarnation
        for send, meant in waiting:
            if isinstance(outcome, Connection):
                try:
                    outcome.check_incarnation(meant)
                    outcome.send_adds(*send)
                except BookieError as error:
                    self._pool.fail_soon(self.bookie_id, send[2], error)
            else:
                self._pool.fail_soon(self.bookie_id, send[2], outcome)
        if connecting is not None and not connecting.done():
            connecting.set_result(outcome)

    @property
    def connecting(self) -> bool:
        return self._connecting is not None


class AddLane:
    """Adds to one bookie: the hot path. It stays valid as long as its pool, and connects by itself."""

    def __init__(self, pool: BookiePool, bookie_id: BookieId, name: str = "") -> None:
        self.bookie_id = bookie_id
        self._pool = pool
        self._main = pool.endpoint(bookie_id, pool.wire_protocol, name)
        self._v3 = pool.endpoint(bookie_id, 3)

    def send(
        self,
        frames: bytes,
        acks: bytes,
        runs: Sequence[SentRun],
        *,
        deferred_sync: bool = False,
        at_once: bool = False,
        copies_on_v2: bool = False,
    ) -> int:
        """Queue v2 ADD frames; return the bytes that the operating system has not taken yet.

        `acks` are the OK answers that are expected (`core/wire/adds.py:ack_frames`), 28 bytes each, in their order. All
        frames of one turn of the loop leave in one write; with `at_once` they leave now. The sinks get the outcome of
        every entry of `runs` exactly once, never from inside this call. All frames of one call have the same flags.
        Frames with deferred sync, or with the recovery flag, travel on the v3 wire; with `copies_on_v2` the latter stay
        on v2, which Buckram's bookies accept.
        """
        if not runs:
            return 0
        if self._pool.closed:
            self._pool.fail_soon(self.bookie_id, runs, _closed())
            return 0
        if deferred_sync or (frames[7] & RECOVERY_ADD and not copies_on_v2):
            return self._v3.send((frames, acks, runs, deferred_sync), at_once)
        return self._main.send((frames, acks, runs, False), at_once)

    def precede(self, packet: bytes) -> bool:
        """Send a packet about an add that is sent in this turn; False, and nothing is sent, where there is no bookie
        that knows it."""
        connection = self._main.current()
        return connection is not None and connection.precede(packet)

    def takes_lacs(self) -> bool:
        """Return whether the bookie is connected and takes explicit LACs as packets."""
        connection = self._main.current()
        return connection is not None and connection.takes_lacs

    def send_lacs(self, packets: Sequence[LacPacket]) -> None:
        """Send explicit LACs, in one piece; `BookiePool.on_lac` is told of the replies. They are lost without a word if
        there is no connection, or too much is outstanding on it."""
        connection = self._main.current()
        if connection is not None:
            with suppress(BookieError):
                connection.send_lacs(packets)

    @property
    def pending_bytes(self) -> int:
        """The bytes handed to `send` that the operating system has not taken yet."""
        total = self._main.pending_bytes
        return total if self._v3 is self._main else total + self._v3.pending_bytes


ResolveAddress = Callable[[BookieId], BookieAddress | None]
"""Gives a bookie's present address, or None while it is not registered. Called at every request: must be cheap."""


class BookiePool:
    """The connections of one client to all bookies, made when they are needed.

    `resolve` returns a bookie's address, or None while it is not registered; it is called for every request.
    `wire_protocol` (2 or 3) is for adds and plain reads. `introductions` knows which bookie to expect at an address;
    without it, any bookie that answers is accepted.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: NetConfig,
        resolve: ResolveAddress,
        *,
        wire_protocol: int = 2,
        introductions: Introductions | None = None,
    ) -> None:
        if wire_protocol not in (2, 3):
            raise InvalidArgument(f"wire_protocol is {wire_protocol}: 2 or 3 are possible")
        self.wire_protocol = wire_protocol
        self.resolve = resolve
        self.introductions = introductions
        self.closed = False
        self.on_lac: OnLac | None = None
        """Told of the replies to explicit LACs that lanes sent as packets."""
        self._runtime = runtime
        self._config = config
        self._scope = TaskScope("bookie pool")
        self._endpoints: dict[tuple[BookieId, int, str], _Endpoint] = {}
        self._lanes: dict[tuple[BookieId, str], AddLane] = {}
        self._names: dict[str, None] = {}
        """Names of lanes that have a connection of their own, in the order of their first use; at most MOST_LANES."""
        self._connections: dict[Connection, _Endpoint] = {}
        self._failed: list[tuple[BookieId, Sequence[SentRun], BuckramError]] = []
        stats = runtime.stats
        self._opened = stats.counter("buckram_client_connections_total", "connections to bookies opened")
        self._refused = stats.counter("buckram_client_connection_failures_total", "failed attempts to connect")
        self._lost = stats.counter("buckram_client_connections_lost_total", "connections that ended")
        self._wrong_bookies = stats.counter(
            "buckram_client_wrong_bookies_total", "connections that another bookie answered"
        )

    def endpoint(self, bookie_id: BookieId, version: int, lane: str = "") -> _Endpoint:
        key = (bookie_id, version, lane)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints[key] = _Endpoint(self, bookie_id, version)
        return endpoint

    def lane(self, bookie_id: BookieId, name: str = "") -> AddLane:
        """Return a lane of a bookie; it is always the same object.

        A lane with a name has a connection of its own, so that others never wait for its adds. There are MOST_LANES of
        them at most; lanes with more names share these.
        """
        if name and name not in self._names:
            if len(self._names) < MOST_LANES:
                self._names[name] = None
            else:
                name = list(self._names)[sum(name.encode()) % MOST_LANES]
        lane = self._lanes.get((bookie_id, name))
        if lane is None:
            lane = self._lanes[bookie_id, name] = AddLane(self, bookie_id, name)
        return lane

    def pending_bytes(self, bookie_id: BookieId) -> int:
        """Return how many bytes for this bookie the operating system has not taken yet."""
        return sum(one.pending_bytes for (bookie, _, _), one in self._endpoints.items() if bookie == bookie_id)

    def losses(self, bookie_id: BookieId) -> int:
        """Return how often a v3 connection (force, deferred sync) ended: a new process may answer on the next one."""
        return self.endpoint(bookie_id, 3).losses

    async def call(
        self, bookie_id: BookieId, request: Request, *, timeout_s: float | None = None, protocol: int | None = None
    ) -> Reply:
        """Send one request and return its reply; a reply with an error code is returned, not raised.

        Raises BookieUnavailable (no connection, or it ended), RequestTimeout, ProtocolError, BookieTooBusy (too much is
        outstanding here) and HandleClosed (the pool is closed). The time-out counts from sending and is checked by a
        sweep, so it may take half a second longer. Cancelling abandons the wait, not the request. `protocol` forces a
        version of the wire protocol.
        """
        if self.closed:
            raise _closed()
        endpoint = self.endpoint(bookie_id, self._version(request, protocol))
        connection = endpoint.current()
        if connection is None:
            meant = endpoint.meant()
            outcome = await asyncio.shield(endpoint.connect())
            if not isinstance(outcome, Connection):
                raise again(outcome)
            connection = outcome
            connection.check_incarnation(meant)
        return await connection.call(request, self._within_s(request) if timeout_s is None else timeout_s)

    def ask(self, bookie_id: BookieId, request: Request, on_reply: OnReply) -> PendingRequest | None:
        """Send one request without a task: `on_reply` gets the reply or the error.

        Returns None if no connection is open; use `call` then. Errors with which nothing was sent, such as
        BookieTooBusy, are raised from here.
        """
        connection = None if self.closed else self.endpoint(bookie_id, self._version(request, None)).current()
        return None if connection is None else connection.ask(request, self._within_s(request), on_reply)

    def _within_s(self, request: Request) -> float:
        timeout_s = self._config.request_timeout_s
        if isinstance(request, Read) and request.previous_lac is not None:
            timeout_s += (request.timeout_ms or 0) / 1000
        return timeout_s

    def _version(self, request: Request, protocol: int | None) -> int:
        if protocol is not None:
            if protocol not in (2, 3):
                raise InvalidArgument(f"protocol is {protocol}: 2 or 3 are possible")
            return protocol
        if isinstance(request, BatchRead | Pull):
            return 2
        if isinstance(request, Read) and not request.fence and request.previous_lac is None and request.entry_id >= 0:
            return self.wire_protocol
        return 3

    def start_connecting(self, endpoint: _Endpoint) -> None:
        address = None if self.closed else self.resolve(endpoint.bookie_id)
        if address is None:
            # Later, so that nobody hears of the failure from inside the call that caused it.
            error = _closed() if self.closed else BookieUnavailable(endpoint.bookie_id, "is not registered")
            asyncio.get_running_loop().call_soon(endpoint.connected, error)
            return
        self._scope.spawn(self._connect(endpoint, address), f"connect to {endpoint.bookie_id}")

    async def _connect(self, endpoint: _Endpoint, address: BookieAddress) -> None:
        connection = Connection(endpoint.bookie_id, address, endpoint.version, self._config, self._on_lost, self.on_lac)
        outcome: Outcome = connection
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._runtime.network.connect(address.host, address.port, lambda: connection)
                if self.introductions is not None:
                    await self.introductions.exchange(connection)
        except BuckramError as error:
            outcome = error
            self._not_there(endpoint, connection, error)
        except Exception as error:  # A host name may be nonsense, a loop in trouble: those who wait must hear of all.
            why = str(error) or f"no connection within {self._config.connect_timeout_s:g} s"
            outcome = BookieUnavailable(endpoint.bookie_id, f"cannot connect to {address}: {why}")
        finally:
            if not isinstance(outcome, Connection) or connection.error is not None or self.closed:
                connection.fail(_closed() if self.closed else BookieUnavailable(endpoint.bookie_id, "not connected"))
        if outcome is connection and connection.error is not None:
            outcome = BookieUnavailable(endpoint.bookie_id, f"{address} closed the connection at once")
        if outcome is connection:
            self._opened.inc()
            self._connections[connection] = endpoint
        else:
            self._refused.inc()
        endpoint.connected(outcome)

    def _not_there(self, endpoint: _Endpoint, connection: Connection, error: BuckramError) -> None:
        if isinstance(error, WrongBookie):
            self._wrong_bookies.inc()
            if str(error) != endpoint.last_wrong:  # not at every attempt
                endpoint.last_wrong = str(error)
                _log.warning("%s", error)
        connection.fail(error)

    def review(self) -> None:
        """Examine all connections, after the list of bookies, or what they say of themselves, has changed."""
        for endpoint in list(self._endpoints.values()):
            endpoint.review()

    def _on_lost(self, connection: Connection) -> None:
        endpoint = self._connections.pop(connection, None)
        if endpoint is not None:
            self._lost.inc()
            endpoint.losses += 1
            if endpoint.connection is connection:
                endpoint.connection = None

    def fail_soon(self, bookie_id: BookieId, runs: Sequence[SentRun], error: BuckramError) -> None:
        """Tell the sinks in the next loop turn."""
        if not self._failed:
            asyncio.get_running_loop().call_soon(self._report_failed)
        self._failed.append((bookie_id, runs, error))

    def _report_failed(self) -> None:
        failed, self._failed = self._failed, []
        for bookie_id, runs, error in failed:
            for sink, slot, first, last in runs:
                sink.add_failed(slot, bookie_id, first, last, error)

    async def close(self) -> None:
        """End all connections; outstanding requests fail with HandleClosed. Idempotent."""
        self.closed = True
        await self._scope.close()
        for endpoint in list(self._endpoints.values()):
            if endpoint.connecting:
                endpoint.connected(_closed())
        connections = list(self._connections)
        for connection in connections:
            connection.fail(_closed())
        self._report_failed()
        for connection in connections:
            await connection.wait_gone()


def _closed() -> HandleClosed:
    return HandleClosed("the client is closed; connect again")
