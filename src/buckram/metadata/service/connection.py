"""One connection to a bookie that serves metadata: requests and replies by id, events, and keep-alives.

It ends as a whole: everything outstanding then fails, once. Which bookie is asked next is `metadata/service/keys.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge
from buckram.core.wire.messages import BadPacket
from buckram.errors import MetadataUnavailable
from buckram.metadata.service.error_codec import decode_error
from buckram.metadata.service.packets import (
    Event,
    KeyReply,
    KeyRequest,
    Refusal,
    RequestKind,
    decode_reply,
    encode_request,
)

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
