"""`ServiceKeys`: a KeyStore whose operations a bookie carries out, and its connection to that bookie.

A session is a connection, with requests and replies by id, events, and keep-alives. It ends as a whole: everything
outstanding then fails, once, those who wait for changes are notified, and the next operation connects again, to another
bookie if that one is gone. Reads that got no answer are repeated; a change is not, because it may have happened. The
packets are metadata/service/packets, the bookie's side is bookie/service/metadata/metadata_service.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from buckram.addresses import join
from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge
from buckram.core.wire.messages import BadPacket
from buckram.errors import AccessRefused, ForkedClient, MetadataError, MetadataUnavailable, WrongCluster
from buckram.metadata.service.error_codec import decode_error
from buckram.metadata.service.packets import (
    Event,
    KeyReply,
    KeyRequest,
    Names,
    Refusal,
    RequestKind,
    Welcome,
    decode_reply,
    encode_request,
)
from buckram.metadata.service.uri import ServiceUri
from buckram.metadata.tree.key_grammar import check_key, check_multi, check_op, check_parent
from buckram.runtime.net.security.secure_network import LoginRefused
from buckram.runtime.net.security.tls import CertificateRefused
from buckram.seams import Network, Notify
from buckram.types import Create, Delete, KeyOp, KeyValue, SetValue

MAX_WAITING = 10_000
_BEATS = 3
"""Number of keep-alives in the time after which the bookie would take a silent session for dead."""
OnEvent = Callable[[Event], None]


class ConnectionEnded(Exception):
    """The connection ended before the answer: the request may have been carried out.

    Only ServiceKeys sees it, which asks again or raises MetadataUnavailable.
    """


class ServiceConnection(asyncio.Protocol):
    """A connection; `on_event` is called with each event of the bookie, `on_lost` once when the connection
    has ended.
    """

    def __init__(self, where: str, max_frame_bytes: int, on_event: OnEvent, on_lost: Callable[[], None]) -> None:
        self.where = where
        self.error = ""
        """Reason why it can no longer be used; empty while it can."""
        self._on_event, self._on_lost = on_event, on_lost
        self._chunks = ChunkBuffer(max_frame_bytes)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[KeyReply]] = {}
        self._last_id = 0
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._beat: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._heard = self._sent = 0.0
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self.fail(f"the connection ended{f': {exc}' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        if self.error:
            return
        self._heard = self._loop.time()
        try:
            buffer, offset = self._chunks.push(data), 0
            while end := self._chunks.next_frame(buffer, offset):
                self._received(buffer[offset + PREFIX_BYTES : end])
                offset = end
            self._chunks.keep(buffer, offset)
        except (BadPacket, FrameTooLarge) as error:
            self.fail(f"it answered with what is no metadata reply: {error}")

    def eof_received(self) -> bool:
        return False

    def _received(self, packet: bytes) -> None:
        request_id, found = decode_reply(packet)
        if isinstance(found, Event):
            self._on_event(found)
            return
        waiter = self._waiting.pop(request_id, None)
        if waiter is None:
            raise BadPacket(f"an answer to request {request_id}, which was not made")
        if waiter.done():
            return  # the caller was cancelled
        if isinstance(found, Refusal):
            waiter.set_exception(decode_error(found.status, found.fields))
        else:
            waiter.set_result(found)

    def keep_alive(self, timeout_s: float) -> None:
        """Send keep-alives often enough for a session with this timeout, and expect answers in that time."""
        self._timeout_s = timeout_s
        self._heard = self._loop.time()
        self._beat = self._loop.call_later(timeout_s / _BEATS, self._on_beat)

    def _on_beat(self) -> None:
        now, pause = self._loop.time(), self._timeout_s / _BEATS
        # Only a silent bookie counts, not a late loop of our own, which has read nothing meanwhile.
        if self._waiting and now - max(self._heard, self._sent) > self._timeout_s:
            self.fail(f"no answer for {now - self._heard:.1f} s")
            return
        if not self._waiting:
            self._sent = now
            self._write(KeyRequest(RequestKind.PING)).add_done_callback(_seen)
        elif self._heard > self._sent:
            self._sent = now  # it is at work; the time runs from its last word
            self._write(KeyRequest(RequestKind.PING)).add_done_callback(_seen)
        self._beat = self._loop.call_later(pause, self._on_beat)

    async def call(self, request: KeyRequest) -> KeyReply:
        """Send a request and wait for the reply.

        Raises ConnectionEnded, or the error that the bookie answers with. Cancelling abandons the answer.
        """
        if self.error:
            raise ConnectionEnded(f"{self.where}: {self.error}")
        if len(self._waiting) >= MAX_WAITING:
            raise MetadataUnavailable(f"{self.where}: {MAX_WAITING} requests wait for an answer; try again later")
        if not self._waiting:
            self._sent = self._loop.time()
        return await self._write(request)

    def _write(self, request: KeyRequest) -> asyncio.Future[KeyReply]:
        self._last_id += 1
        waiter = self._waiting[self._last_id] = self._loop.create_future()
        packet = encode_request(self._last_id, request)
        if len(self._waiting) == 1 and request.kind is RequestKind.GET:
            assert self._transport is not None
            self._transport.write(packet)
        else:  # requests of one turn of the loop leave in one write, and their changes have one commit
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(packet)
        return waiter

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.error and self._transport is not None:
            self._transport.write(b"".join(out))

    def fail(self, why: str) -> None:
        """End the connection: everything outstanding fails. Idempotent."""
        if self.error:
            return
        self.error = why
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionEnded(f"{self.where}: {why}"))
        self._on_lost()

    async def wait_gone(self) -> None:
        """Wait until the transport has reported that it is gone, a second at most."""
        if self._transport is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._gone.wait()
            except TimeoutError:
                return


def _seen(answer: asyncio.Future[KeyReply]) -> None:
    if not answer.cancelled():
        answer.exception()


CONNECT_S = 5.0
SESSION_S = 10.0
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Maximum bytes of an answer: more than any bookie sends with its own limit."""
_ASKED = 3
"""Number of attempts of a read before it fails."""


class ServiceKeys:
    """One session, begun with the first operation. For one loop and one process."""

    def __init__(self, uri: ServiceUri, network: Network, *, session_s: float = SESSION_S) -> None:
        self._uri, self._network, self._session_s = uri, network, session_s
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._connection: ServiceConnection | None = None
        self._connecting: asyncio.Task[ServiceConnection] | None = None
        self._next_host = 0
        self._watches: dict[tuple[RequestKind, str], dict[Notify, None]] = {}
        self._lost: list[Notify] = []
        self._has_session_keys = False
        self._closed = False
        self.welcome: Welcome | None = None
        """The bookie's description of the cluster; None before the first connection."""

    async def start(self) -> Welcome:
        """Connect now, to know the cluster. Raises MetadataUnavailable, WrongCluster."""
        await self._connected()
        assert self.welcome is not None
        return self.welcome

    async def prepare(self) -> None:
        """Do nothing: a bookie serves only what is set up."""

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._change_one(Create(key, bytes(value), ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._change_one(SetValue(key, bytes(value), version))

    async def delete(self, key: str, version: int) -> None:
        await self._change_one(Delete(key, version))

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        check_multi(ops)
        await self._change(tuple(ops))

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        check_key(key)
        request = KeyRequest(RequestKind.GET, key, watch=watch is not None)
        return cast("KeyValue", await self.ask(request, (RequestKind.VALUE_CHANGED, key), watch))

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        check_parent(parent, limit)
        found: list[str] = []
        while True:
            rest = limit - len(found)
            request = KeyRequest(RequestKind.CHILDREN, parent, after, rest, watch is not None and not found)
            page = cast("Names", await self.ask(request, (RequestKind.CHILDREN_CHANGED, parent), watch))
            found += page.names
            if not page.more or len(found) >= limit:
                return found
            after = found[-1]

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        check_parent(parent, limit)
        return cast("list[tuple[str, KeyValue]]", await self.ask(KeyRequest(RequestKind.VALUES, parent, after, limit)))

    async def sync(self) -> None:
        await self.ask(KeyRequest(RequestKind.SYNC))

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        connecting, connection = self._connecting, self._connection
        self._watches.clear()
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
            connection = self._connection
        if connection is None or connection.error:
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.call(KeyRequest(RequestKind.CLOSE))
        except (MetadataError, ConnectionEnded, TimeoutError):
            pass  # the bookie ends the session of a connection that is gone
        connection.fail("this metadata store was closed")
        await connection.wait_gone()

    async def ask(
        self, request: KeyRequest, place: tuple[RequestKind, str] | None = None, watch: Notify | None = None
    ) -> KeyReply:
        """Make a request that changes nothing, or may be repeated: it is sent again if the answer was lost."""
        for left in reversed(range(_ASKED)):
            connection = self._usable() or await self._connected()
            if place is not None and watch is not None:
                self._watches.setdefault(place, {})[watch] = None  # before the bookie can send an event
            try:
                return await connection.call(request)
            except ConnectionEnded as error:
                if self._closed or not left:
                    raise MetadataUnavailable(str(error)) from None
        raise AssertionError("the last attempt returns or raises")

    async def tell(self, request: KeyRequest) -> KeyReply:
        """Make a request that must not be carried out twice.

        Raises MetadataUnavailable if there is no answer.
        """
        return await _told(self._usable() or await self._connected(), request)

    async def _change_one(self, op: KeyOp) -> int:
        check_op(op)
        return cast("int", await self._change((op,)))

    async def _change(self, ops: tuple[KeyOp, ...]) -> KeyReply:
        connection = self._usable() or await self._connected()
        if any(isinstance(op, Create) and op.ephemeral for op in ops):
            self._has_session_keys = True  # also if the answer gets lost
        return await _told(connection, KeyRequest(RequestKind.CHANGE, ops=ops))

    # Connections

    def _usable(self) -> ServiceConnection | None:
        """Return the connection if it can be used at once, and this object, too; else None."""
        connection = self._connection
        return (
            None if connection is None or connection.error or self._closed or os.getpid() != self._pid else connection
        )

    async def _connected(self) -> ServiceConnection:
        if os.getpid() != self._pid:
            raise ForkedClient(f"{self._uri} was opened before this process was forked: connect again in the child")
        if self._closed:
            raise MetadataUnavailable("this metadata store was closed")
        if self._connection is not None and not self._connection.error:
            return self._connection
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect(), name="metadata service: connect")
            self._connecting.add_done_callback(self._attempt_ended)
        return await asyncio.shield(self._connecting)

    def _attempt_ended(self, attempt: asyncio.Task[ServiceConnection]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # each caller gets it

    async def _connect(self) -> ServiceConnection:
        """Connect to the first bookie that serves the cluster, beginning with the one that did last.

        Raises AccessRefused if a bookie refused the login or certificate, else MetadataUnavailable.
        """
        problems, refused = [], False
        hosts = self._uri.hosts
        for _ in hosts:
            host, port = hosts[self._next_host % len(hosts)]
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await self._connect_to(host, port)
            except (OSError, ConnectionEnded, MetadataUnavailable, TimeoutError) as error:
                refused = refused or isinstance(error, LoginRefused | CertificateRefused)
                why = str(error) or f"no answer within {CONNECT_S:g} s"
                where = join(host, port)
                problems.append(why if why.startswith(where) else f"{where}: {why}")
                self._next_host += 1
        if refused:
            raise AccessRefused(str(self._uri), "; ".join(problems))
        raise MetadataUnavailable(f"no bookie of {self._uri} serves metadata: {'; '.join(problems)}")

    async def _connect_to(self, host: str, port: int) -> ServiceConnection:
        connection = ServiceConnection(join(host, port), MAX_FRAME_BYTES, self._on_event, self._on_lost)
        try:
            await self._network.connect(host, port, lambda: connection)
            wanted = round(self._session_s * 1000)
            welcome = await connection.call(KeyRequest(RequestKind.HELLO, self._uri.cluster, number=wanted))
            assert isinstance(welcome, Welcome)
            self._check_cluster(connection.where, welcome)
        except BaseException:
            connection.fail("not connected")
            raise
        self.welcome = welcome
        connection.keep_alive(welcome.timeout_ms / 1000)
        self._connection = connection
        return connection

    def _check_cluster(self, where: str, welcome: Welcome) -> None:
        before = self.welcome.instance_id if self.welcome else ""
        expected = self._uri.cluster or before or welcome.instance_id
        if welcome.instance_id != expected:
            raise WrongCluster(f"{where} serves cluster {welcome.instance_id}, not {expected}: name its own bookies")

    # Events from bookies

    def _on_event(self, event: Event) -> None:
        if self._closed:
            return
        if event.kind is RequestKind.SESSION_LOST:
            self._session_lost()
        else:
            _notify(self._watches.pop((event.kind, event.key), ()))

    def _on_lost(self) -> None:
        if not self._closed and self._connection is not None and self._connection.error:
            self._connection = None
            self._loop.call_soon(self._session_lost)

    def _session_lost(self) -> None:
        if self._closed:
            return
        had, self._has_session_keys = self._has_session_keys, False
        waiting, self._watches = self._watches, {}
        if had:
            _notify(self._lost)
        _notify(dict.fromkeys(notify for notifies in waiting.values() for notify in notifies))


async def _told(connection: ServiceConnection, request: KeyRequest) -> KeyReply:
    try:
        return await connection.call(request)
    except ConnectionEnded as error:
        raise MetadataUnavailable(str(error)) from None


def _notify(notifies: Iterable[Notify]) -> None:
    for notify in list(notifies):
        notify()
