"""One connection to one bookie: the socket, the callers' futures, one timeout sweep. Bytes are
core/wire/client_protocol.

Everything outstanding gets exactly one outcome: the answer, RequestTimeout from the sweep, or the error that ended the
connection. Writes of one loop turn leave together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from buckram.config import NetConfig
from buckram.core.ledgers.answers import bookie_error
from buckram.core.wire.acks import AckEvent, SentRun
from buckram.core.wire.client_protocol import ClientProtocol, Conflict, Key, LacPacket, Received
from buckram.core.wire.introduction import LACS, NAMES_LEDGERS, PULLS, TRACES, Identity, Introduction
from buckram.core.wire.messages import BookieInfoReply, Pull, Reply, Request
from buckram.errors import (
    BookieError,
    BookieTooBusy,
    BookieUnavailable,
    BuckramError,
    Code,
    LedgerFenced,
    ProtocolError,
    RequestTimeout,
    WrongBookie,
)
from buckram.types import BookieAddress, BookieId, EntryId, LedgerId

_log = logging.getLogger("buckram.net")
MAX_REQUESTS = 50_000
"""Calls outstanding on one connection before more are refused here; adds are bounded by their writers."""
MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Bytes that the peer has not taken before more are refused here; writers slow down long before."""
OnReply: TypeAlias = "Callable[[Reply | BuckramError], None]"
OnLac: TypeAlias = "Callable[[BookieId, LedgerId, EntryId, Code], None]"
"""Told of each reply to an explicit LAC that was sent as a packet. None comes if the connection ends first."""


class PendingRequest:
    """A request whose answer goes to a function: `on_reply(reply or error)` is called once, or never after `cancel`."""

    __slots__ = ("_connection", "key", "on_reply")

    def __init__(self, connection: Connection, on_reply: OnReply) -> None:
        self._connection: Connection | None = connection
        self.on_reply = on_reply
        self.key: Key = (0, 0, 0)

    def deliver(self, answer: Reply | BuckramError) -> None:
        if self._connection is not None:
            self._connection = None
            self.on_reply(answer)

    def cancel(self) -> None:
        """Abandon the answer, not the request."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.forget(self)


OnLost: TypeAlias = "Callable[[Connection], None]"
"""Callback with a connection that can no longer be used, called once; its `error` is the reason."""


class Connection(asyncio.Protocol):
    """Made by the pool as the protocol of a transport. `on_lost` is called once, when it can no longer be used."""

    def __init__(
        self,
        bookie_id: BookieId,
        address: BookieAddress,
        version: int,
        config: NetConfig,
        on_lost: OnLost,
        on_lac: OnLac | None = None,
    ) -> None:
        self._on_lac = on_lac
        self.bookie_id = bookie_id
        self.address = address
        self.version = version
        self._config, self._timeout_s = config, config.request_timeout_s
        self._on_lost = on_lost
        self._protocol = ClientProtocol(version, config.max_frame_bytes)
        self._unfinished = self._protocol.chunks
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._retired = False
        self._last_received = self._busy_since = self._loop.time()
        self.write_paused = False
        self.introduction: Introduction | None = None
        """The bookie that this side expected; None if it did not ask who answers."""
        self.asks_login = False
        """True if the bookie did not introduce itself because the client has not logged in."""
        self.identity: Identity | None = None
        """Identity of the bookie that answers; None if it was not requested, or if the bookie does not know the
        request."""
        self.error: BuckramError | None = None
        """Error that ended the connection; None while it can be used."""
        self._gone = asyncio.Event()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if self.error is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        if (
            not self._retired
            and not self._unfinished.pending_bytes
            and (run := self._protocol.sole_ack(data)) is not None
        ):
            self._last_received = self._loop.time()
            run[0].acked(run[1], self.bookie_id, run[2], run[3])
        else:
            self._received(self._protocol.feed(data))

    def room(self) -> memoryview | None:
        """Return the memory for the next bytes (net.tcp.Receiver); None: anywhere, they then come to data_received."""
        return self._protocol.room() if self._unfinished.pending_bytes and self.error is None else None

    def filled(self, count: int) -> None:
        """Take note that `count` bytes were received into `room` (net.tcp.Receiver)."""
        if self.error is None:
            self._received(self._protocol.filled(count))

    def _received(self, received: Received) -> None:
        self._last_received = self._loop.time()
        try:
            if received.acks:
                self._deliver(received.acks, self._no_answer)
        finally:
            for token, reply in received.answers:
                self._answer(token, reply)
            if self._on_lac is not None:
                for ledger, lac, code in received.lacs:
                    self._on_lac(self.bookie_id, ledger, lac, code)
            if received.error is not None:
                _log.warning("bookie %s at %s: %s; connection closed", self.bookie_id, self.address, received.error)
                self.fail(ProtocolError(self.bookie_id, received.error))
            elif self._retired and self._protocol.idle:
                self.fail(BookieUnavailable(self.bookie_id, f"no longer at {self.address}"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        why = f"connection to {self.address} lost" + (f": {exc}" if exc is not None else "")
        self.fail(BookieUnavailable(self.bookie_id, why))

    # -- what the pool uses -------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """The bytes that the operating system has not taken yet."""
        transport = self._transport
        unsent = transport.get_write_buffer_size() if transport is not None and self.error is None else 0
        return self._out_bytes + unsent

    @property
    def idle(self) -> bool:
        """Return whether no request is outstanding."""
        return self._protocol.idle

    async def introduce(self, introduction: Introduction) -> None:
        """Ask who answers here, before anything else. The caller sets a time-out. Raises BookieUnavailable,
        ProtocolError."""
        self.introduction = introduction
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._write(self._protocol.introduce(introduction, answer, float("inf")))
        try:
            reply = await answer
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also where the caller stopped waiting in the same turn
        if isinstance(reply, BookieInfoReply):
            self.identity = reply.identity
            self._protocol.names_ledgers = self._knows(NAMES_LEDGERS)
        self.asks_login = reply.code is Code.UNAUTHORIZED

    @property
    def incarnation(self) -> str:
        """The incarnation of the bookie that answers, or else of the expected one; "" if neither is known."""
        if self.identity is not None:
            return self.identity.incarnation
        return "" if self.introduction is None else self.introduction.incarnation

    def check_incarnation(self, meant: str) -> None:
        """Raise WrongBookie if a request that waited for this connection was meant for an earlier incarnation."""
        found = self.incarnation
        if meant and found and found != meant:
            why = f"it is incarnation {found} by now, and this was for {meant}: its earlier data is gone; try again"
            raise WrongBookie(self.bookie_id, why)

    async def call(self, request: Request, timeout_s: float) -> Reply:
        """Send a request and wait. BookieUnavailable, RequestTimeout, ProtocolError, BookieTooBusy (too many wait)."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        key = self._request(request, timeout_s, future)
        try:
            return await future
        finally:
            if future.cancelled():
                self._protocol.forget(key, future)
            elif future.done():
                future.exception()  # Seen, even if the caller was cancelled in the same turn.

    def ask(self, request: Request, timeout_s: float, on_reply: OnReply) -> PendingRequest:
        """Send a request without a task that waits: `on_reply` gets the reply as soon as its bytes arrive, or an error.

        It is never called from inside this call, which raises the errors of `call` if nothing was sent.
        """
        asked = PendingRequest(self, on_reply)
        asked.key = self._request(request, timeout_s, asked)
        return asked

    def forget(self, asked: PendingRequest) -> None:
        self._protocol.forget(asked.key, asked)

    def send_adds(
        self, frames: bytes, acks: bytes, runs: Sequence[SentRun], deferred_sync: bool, at_once: bool = False
    ) -> int:
        """Send the runs of a lane, whose sinks get the outcome of every entry; raises without taking any if there is no
        room.

        With `at_once` they leave now, after what was written before, and not at the end of the turn. Returns the bytes
        that the peer has not taken, including these.
        """
        pending = self._check_room()
        data = self._protocol.adds(frames, acks, runs, self._loop.time() + self._timeout_s, deferred_sync)
        self._write(data, at_once)
        return pending + len(data)

    def precede(self, packet: bytes) -> bool:
        """Send a packet of Buckram's own about the next add; return False if the bookie would not understand it."""
        if self.version != 2 or self.error is not None or not self._knows(TRACES):
            return False
        self._write(packet)
        return True

    @property
    def takes_lacs(self) -> bool:
        """Return whether `send_lacs` may be called: the bookie knows these packets."""
        return self.version == 2 and self.error is None and self._knows(LACS)

    def send_lacs(self, packets: Sequence[LacPacket]) -> None:
        """Send explicit LACs, in one piece. Raises BookieUnavailable and BookieTooBusy if nothing was sent."""
        self._check_room()
        self._write(self._protocol.lacs(packets))

    def retire(self) -> None:
        """Take nothing new; close when nothing is outstanding."""
        self._retired = True
        if self._protocol.idle:
            self.fail(BookieUnavailable(self.bookie_id, f"no longer at {self.address}"))

    def fail(self, error: BuckramError) -> None:
        """End the connection: everything outstanding fails with this error; idempotent."""
        if self.error is None:
            self.error = error
            self._end(error)

    def disown(self, error: BuckramError) -> None:
        """End the connection as `fail` does, but run the callbacks later, not inside this call; later replies are
        ignored."""
        if self.error is None:
            self.error = error
            self._forget_unsent()
            self._loop.call_soon(self._end, error)

    def _forget_unsent(self) -> None:
        self._out.clear()
        self._out_bytes = 0

    def _end(self, error: BuckramError) -> None:
        self._forget_unsent()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self)
        overdue = self._protocol.give_up()
        self._fail_tokens(overdue.tokens, lambda: again(error))
        self._deliver(overdue.acks, lambda ledger: error)

    async def wait_gone(self) -> None:
        """Wait until the transport reports the end of the connection, a second at most."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._gone.wait()
        except TimeoutError:
            _log.warning("bookie %s at %s: the transport did not close in time", self.bookie_id, self.address)

    # -- inside -------------------------------------------------------------------------------------------

    def _knows(self, feature: int) -> bool:
        """Return whether the bookie that answers has announced this feature."""
        return self.identity is not None and bool(self.identity.features & feature)

    def _request(self, request: Request, timeout_s: float, token: object) -> Key:
        self._check_room()
        if isinstance(request, Pull) and not self._knows(PULLS):
            raise ProtocolError(self.bookie_id, "it does not copy from its neighbours' files")
        if self._protocol.requests >= MAX_REQUESTS:
            raise BookieTooBusy(self.bookie_id, f"{MAX_REQUESTS} requests are unanswered already; wait for some")
        try:
            key, data = self._protocol.request(request, token, self._loop.time() + timeout_s)
        except Conflict as conflict:
            raise BookieTooBusy(self.bookie_id, f"{conflict}; use protocol 3 or try again") from None
        self._write(data)
        return key

    def _answer(self, token: object, reply: Reply) -> None:
        if isinstance(token, asyncio.Future):
            if not token.done():
                token.set_result(reply)
        elif isinstance(token, PendingRequest):
            try:
                token.deliver(reply)
            except Exception as bug:  # one listener's bug must not keep the answers from the others
                self._loop.call_exception_handler({"message": "handling an answer failed", "exception": bug})

    def _check_room(self) -> int:
        """Return how many bytes the peer has not taken; raises if more would be too many."""
        if self.error is not None:
            raise BookieUnavailable(self.bookie_id, f"the connection to {self.address} has ended")
        transport = self._transport
        pending = self._out_bytes + (transport.get_write_buffer_size() if transport is not None else 0)
        if pending > MAX_UNSENT_BYTES:
            raise BookieTooBusy(self.bookie_id, f"it has not taken {pending} bytes; write more slowly")
        return pending

    def _write(self, data: bytes, at_once: bool = False) -> None:
        if self._sweep is None:
            self._busy_since = self._loop.time()
            self._sweep = self._loop.call_later(self._config.sweep_interval_s, self._on_sweep)
        if at_once and not self._out and self._transport is not None:
            self._transport.write(data)
            return
        if not self._out and not at_once:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if at_once:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        self._out_bytes = 0
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _on_sweep(self) -> None:
        self._sweep = None
        now = self._loop.time()
        overdue = self._protocol.expire(now, self._timeout_s)
        late = bool(overdue.acks or overdue.tokens)
        if not self._protocol.idle:
            self._sweep = self._loop.call_later(self._config.sweep_interval_s, self._on_sweep)
        self._fail_tokens(overdue.tokens, self._timeout)
        try:
            self._deliver(overdue.acks, self._no_answer)
        finally:
            silent = now - max(self._last_received, self._busy_since)
            if late and silent >= self._config.request_timeout_s:
                # A peer that vanished without a word: the next request should try a new connection.
                self.fail(BookieUnavailable(self.bookie_id, f"{self.address} has been silent for {silent:.1f} s"))
            elif self._protocol.overgrown:
                self.fail(BookieUnavailable(self.bookie_id, "too many requests were never answered"))
            elif self._retired and self._protocol.idle:
                self.fail(BookieUnavailable(self.bookie_id, f"no longer at {self.address}"))

    def _no_answer(self, ledger: LedgerId) -> BuckramError:
        why = f"no answer to adds of ledger {ledger} for {self._config.request_timeout_s:g} s"
        return RequestTimeout(self.bookie_id, f"{why}; they may or may not be stored")

    def _timeout(self) -> BuckramError:
        return RequestTimeout(self.bookie_id, "no answer in time; the request may or may not have taken effect")

    def _fail_tokens(self, tokens: list[object], error: Callable[[], BuckramError]) -> None:
        for token in tokens:
            if isinstance(token, asyncio.Future):
                if not token.done():
                    token.set_exception(error())  # Its own for each waiter: raising one adds to its traceback.
            elif isinstance(token, PendingRequest):
                self._loop.call_soon(token.deliver, error())

    def _deliver(self, events: list[AckEvent], no_answer: Callable[[LedgerId], BuckramError]) -> None:
        bookie = self.bookie_id
        for i, (sink, slot, first, last, code, ledger) in enumerate(events):
            try:
                if code is Code.OK:
                    sink.acked(slot, bookie, first, last)
                elif code is None:
                    sink.add_failed(slot, bookie, first, last, no_answer(ledger))
                else:
                    sink.add_failed(slot, bookie, first, last, add_error(bookie, ledger, code))
            except BaseException:
                # A broken sink must not cost the others their answers; its own error goes on to the loop.
                self._deliver(events[i + 1 :], no_answer)
                raise


def again(error: BuckramError) -> BuckramError:
    """Return the same error as a new object, for one more waiter."""
    if isinstance(error, BookieError):
        return type(error)(error.bookie, str(error).removeprefix(f"bookie {error.bookie}: "))
    return type(error)(*error.args)


def add_error(bookie_id: BookieId, ledger_id: LedgerId, code: Code) -> BuckramError:
    """Return the error that a code other than OK means for an add."""
    if code is Code.FENCED:
        return LedgerFenced(ledger_id)
    return bookie_error(bookie_id, code)
