"""One simulated connection: two asyncio transports and a pipe in each direction. Links and faults: `network.py`."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from simulator.engine.loop import Process

if TYPE_CHECKING:
    from simulator.engine.network import Fabric

KERNEL_BYTES = 64 * 1024
"""Bytes of a connection in transit and at the receiver before the sender's own buffer grows."""


class Frames:
    """Splits a byte stream into frames by their 4-byte length prefixes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        data = self._rest + data if self._rest else data
        frames, at, end = [], 0, len(data)
        while end - at >= 4:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            if end - at < size:
                break
            frames.append(data[at : at + size])
            at += size
        self._rest = data[at:]
        return frames


class Connection:
    """One connection, as observers know it. `ghost`: it replays old requests, and their answers reach no client."""

    client_end: Endpoint
    server_end: Endpoint

    def __init__(self, serial: int, client: str, server: str, port: int, ghost: bool) -> None:
        self.serial, self.client, self.server, self.port, self.ghost = serial, client, server, port, ghost

    def __str__(self) -> str:
        return f"#{self.serial} {self.client} -> {self.server}:{self.port}{' (replay)' if self.ghost else ''}"

    @property
    def bookie(self) -> str:
        """Return the name of the listening process, which may differ from the one of the host at this address."""
        return self.server_end.process.name

    @property
    def broken(self) -> bool:
        """Return whether one end or both are closed."""
        return self.client_end.closed or self.server_end.closed

    def answer(self, frame: bytes) -> None:
        """Send an answer without the server's process, as a lying bookie does."""
        self.server_end.out.send(frame)

    def break_off(self, rng: random.Random) -> None:
        for end in (self.client_end, self.server_end):
            end.out.drop_tail(rng)
            end.lose_later(rng.choice((0.0, rng.random() * 0.01, rng.random() * 3.0)))


class Pipe:
    """Bytes under way from one end to the other, in order. An item that is None or an error ends the stream."""

    def __init__(self, fabric: Fabric, conn: Connection, source: Endpoint, target: Endpoint, to_server: bool) -> None:
        self.fabric, self.conn, self.source, self.target, self.to_server = fabric, conn, source, target, to_server
        self.flight: deque[bytes | BaseException | None] = deque()
        self.pending = 0
        self.sealed = False
        self._last = 0.0
        self._sent, self._delivered, self._tampered = Frames(), Frames(), Frames()
        self._at_tamperer = Frames()

    def write(self, data: bytes) -> None:
        """Send bytes of the sender's transport, through the tamperer if the server has one."""
        tamperer = None if self.to_server else self.fabric.tamperers.get(self.conn.server)
        if tamperer is not None:
            changed = [tamperer.answer(self.conn, frame) for frame in self._tampered.feed(data)]
            data = b"".join([frame for frame in changed if frame is not None])
            if not data:
                return
        self.send(data)

    def send(self, data: bytes) -> None:
        if self.fabric.observers:
            for frame in self._sent.feed(data):
                for observer in self.fabric.observers:
                    observer.frame_sent(self.conn, self.to_server, frame)
        self._push(data)

    def end(self, reason: BaseException | None) -> None:
        """Send a FIN (None) or a reset behind everything that is under way."""
        self._push(reason)

    def _push(self, item: bytes | BaseException | None) -> None:
        if isinstance(item, bytes):
            if self.sealed:
                return
            self.pending += len(item)
        self.flight.append(item)
        loop = self.fabric.loop
        self._last = max(self._last, loop.time() + self.fabric.delay(self.source.host, self.target.host))
        loop.call_at(self._last, self._due, context=loop.world.context)

    def _due(self) -> None:
        self.fabric.when_open(self.source.host, self.target.host, self._arrive)

    def _arrive(self) -> None:
        if not self.flight:
            return
        item = self.flight.popleft()
        fabric, loop = self.fabric, self.fabric.loop
        if not isinstance(item, bytes):
            loop.call_soon(self.target.peer_ended, item, context=self.target.process.context)
            return
        roll = fabric.rng.random()
        if roll < fabric.split_chance and len(item) > 1:
            cut = 1 + int(fabric.rng.random() * (len(item) - 1))
            self.flight.appendleft(item[cut:])
            item = item[:cut]
            self._last = max(self._last, loop.time() + fabric.delay(self.source.host, self.target.host))
            loop.call_at(self._last, self._due, context=loop.world.context)
        elif roll > 1 - fabric.split_chance and self.flight and isinstance(self.flight[0], bytes):
            following = self.flight.popleft()
            assert isinstance(following, bytes)
            item += following
        fabric.trace.mix_bytes(item)
        if self.target.process.dead or self.target.closed:
            self.consumed(len(item))
            if not fabric.dark(self.target.host):
                self.target.refuse()
            return
        loop.call_soon(self.target.feed, item, context=self.target.process.context)

    def drop_tail(self, rng: random.Random) -> None:
        """Lose a random part at the end of what is under way, also in the middle of a chunk."""
        keep = rng.randrange(len(self.flight) + 1)
        while len(self.flight) > keep:
            self.flight.pop()
        if self.flight and isinstance(self.flight[-1], bytes) and rng.random() < 0.5:
            last = self.flight[-1]
            self.flight[-1] = last[: rng.randrange(len(last) + 1)]
            self.pending -= len(last) - len(self.flight[-1])
        self.sealed = True

    def consumed(self, count: int) -> None:
        """Count bytes that the receiver's code has got: resume a sender that is paused by backpressure."""
        self.pending -= count
        source = self.source
        if source.writing_paused and self.buffered <= source.low_water:
            self.fabric.loop.call_soon(source.resume_writer, context=source.process.context)

    @property
    def buffered(self) -> int:
        return max(0, self.pending - KERNEL_BYTES)

    def delivered(self, data: bytes) -> bytes:
        """Show the observers what the receiver is about to get. Return what it gets, which a liar may change."""
        tamperer = self.fabric.tamperers.get(self.conn.server) if self.to_server else None
        if self.fabric.observers:
            for frame in self._delivered.feed(data):
                for observer in self.fabric.observers:
                    observer.frame_delivered(self.conn, self.to_server, frame)
        if tamperer is None:
            return data
        seen = [tamperer.request(self.conn, frame) for frame in self._at_tamperer.feed(data)]
        return b"".join([frame for frame in seen if frame is not None])


class Endpoint(asyncio.Transport):
    """The transport of one end. It belongs to a process and dies with it."""

    out: Pipe

    def __init__(
        self, fabric: Fabric, conn: Connection, process: Process, host: str, port: int, peer: str, peer_port: int
    ) -> None:
        super().__init__(extra={"peername": (peer, peer_port), "sockname": (host, port)})
        self.fabric, self.conn, self.process, self.host = fabric, conn, process, host
        self.protocol: asyncio.BaseProtocol | None = None
        self.closed = False
        self.writing_paused = False
        self.low_water, self.high_water = 16 * 1024, 64 * 1024
        self._closing = False
        self._reading_paused = False
        self._inbox: deque[bytes] = deque()
        self._ended: list[BaseException | None] = []
        self._loss_reported = False
        process.on_death(self._process_died)

    # life

    def start_in_process(self, factory: Callable[[], asyncio.Protocol]) -> None:
        self.fabric.loop.call_soon(self.start, factory, context=self.process.context)

    def start(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        protocol = factory()
        self.protocol = protocol
        protocol.connection_made(self)
        for data in list(self._inbox):
            if self._reading_paused or self._closing:
                break
            self._inbox.popleft()
            self._hand_over(data)
        if self._ended and not self._inbox and not self._closing:
            self._eof()
        return protocol

    @property
    def peer(self) -> Endpoint:
        return self.conn.server_end if self is self.conn.client_end else self.conn.client_end

    def _process_died(self) -> None:
        """Close the connection of a dead process, as its kernel does; a host without power sends nothing."""
        if self.closed:
            return
        self.closed = self._closing = True
        self.out.drop_tail(self.fabric.rng)
        if not self.fabric.dark(self.host):
            self.out.end(ConnectionResetError(104, "connection reset by peer"))
        self.fabric.forget(self.conn)

    def refuse(self) -> None:
        """Reset the connection, as the kernel does when bytes arrive for an end that is closed."""
        self.out.end(ConnectionResetError(104, "connection reset by peer"))

    def lose_later(self, delay_s: float) -> None:
        error = ConnectionResetError(104, "connection reset")
        self.fabric.loop.call_later(delay_s, self._lose, error, context=self.process.context)

    def peer_ended(self, reason: BaseException | None) -> None:
        if self.closed or self.process.dead:
            return
        if reason is not None:
            self._lose(reason)
        elif self._inbox or self.protocol is None:
            self._ended.append(None)
        else:
            self._eof()

    def _eof(self) -> None:
        protocol = self.protocol
        assert isinstance(protocol, asyncio.Protocol)
        if not protocol.eof_received():
            self.close()

    def _lose(self, reason: BaseException | None) -> None:
        if self._loss_reported or self.process.dead:
            return
        self._loss_reported = self.closed = self._closing = True
        self._inbox.clear()
        self.fabric.forget(self.conn)
        if self.protocol is not None:
            self.protocol.connection_lost(reason if isinstance(reason, Exception) else None)

    # receiving

    def feed(self, data: bytes) -> None:
        """Take bytes that have reached the kernel of this end."""
        if self.closed:
            return
        if self._reading_paused or self.protocol is None or self._inbox:
            self._inbox.append(data)
        else:
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        pipe, protocol = self.peer.out, self.protocol
        assert isinstance(protocol, asyncio.Protocol)
        pipe.consumed(len(data))
        data = pipe.delivered(data)
        if not data:
            return
        try:
            protocol.data_received(data)
        except Exception as error:  # what asyncio's own transports do
            message = f"data_received failed on {self.conn}"
            self.fabric.loop.call_exception_handler({"message": message, "exception": error})
            self.abort()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self.fabric.loop.call_soon(self._drain_inbox)

    def _drain_inbox(self) -> None:
        while self._inbox and not self._reading_paused and not self._closing:
            self._hand_over(self._inbox.popleft())
        if not self._inbox and self._ended and not self._closing:
            self._ended.clear()
            self._eof()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    # sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.process.dead or not data:
            return
        self.out.write(bytes(data))
        if not self.writing_paused and self.out.buffered > self.high_water and self.protocol is not None:
            self.writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def resume_writer(self) -> None:
        if self.writing_paused and not self.closed and self.protocol is not None:
            self.writing_paused = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.out.buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.low_water, self.high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_water = high if high is not None else (4 * low if low is not None else 64 * 1024)
        self.low_water = low if low is not None else self.high_water // 4

    def can_write_eof(self) -> bool:
        return False

    # ending

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._finish(None)

    def abort(self) -> None:
        self._finish(ConnectionResetError(104, "connection reset by peer"))

    def _finish(self, reason: BaseException | None) -> None:
        if self._closing or self.process.dead:
            return
        self._closing = True
        self._inbox.clear()
        self.out.end(reason)
        self.fabric.loop.call_soon(self._lose, None, context=self.process.context)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
