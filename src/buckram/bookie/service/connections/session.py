"""One client connection of the bookie: receives chunks, joins answers and keeps both within limits.

A connection also notices that its process stood still for so long (SIGSTOP, a debugger, a frozen container) that the
bookie's id may have been given to another directory. Such a process goes on with requests that were waiting before any
timer fires, so whenever bytes come or go the time is compared with a limit, which a beat moves on while the process
runs (`Pulse`).

Not here: what a request means (`bookie/service/dispatch.py`), framing and encoding (`core/wire/server_protocol.py`),
what is done about a process that stood still (`bookie/process.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from buckram.bookie.service.connections.ledger_births import Births
from buckram.bookie.service.connections.long_poll import Waiter
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.storage.read_results import StoreError
from buckram.core.security.principal import EVERYBODY, Principal
from buckram.core.wire.adds import AddRun
from buckram.core.wire.introduction import Introduction
from buckram.core.wire.messages import Reply, ReplyContext
from buckram.core.wire.server_protocol import Item, ServerProtocol, encode_add_replies, encode_reply
from buckram.errors import Code
from buckram.runtime.net.security.tls import TlsLink
from buckram.types import Buffer

# -- the pulse of the process ---------------------------------------------------------------------------------

BEAT_S = 1.0

LONGEST_S = 6.0
"""A session outlives its last heartbeat by 7 seconds at least, and an id is given to another after its session."""


class Pulse:
    """`limit`: the loop's time after which this process stood still; infinite before it serves, and while in doubt.

    `on_gap` is called when it did, before anything else happens.
    """

    def __init__(self, on_gap: Callable[[], None]) -> None:
        self.limit = float("inf")
        self._on_gap = on_gap

    def missed(self) -> None:
        """Report that the limit has passed."""
        self.limit = float("inf")
        self._on_gap()

    def beat(self) -> None:
        """Begin, or go on."""
        self.limit = asyncio.get_running_loop().time() + LONGEST_S

    async def run(self) -> None:
        """Beat until cancelled."""
        self.beat()
        while True:
            await asyncio.sleep(BEAT_S)
            if self.limit == float("inf"):
                continue  # in doubt: it begins again once that is over
            if asyncio.get_running_loop().time() > self.limit:
                self.missed()
            else:
                self.beat()


STEADY = Pulse(lambda: None)
"""Pulse of connections without a bookie, whose id nobody can take over."""


# -- the connection -------------------------------------------------------------------------------------------

log = logging.getLogger("buckram.bookie")

HIGH_WATER = 256 * 1024
"""Unsent bytes from which the transport reports; below the connection limit, so that draining is always noticed."""

_JOINED = 16 * 1024
"""Pieces that are smaller on average are joined before they are written."""

REQUEST_COST = 256
"""Bytes charged for the memory of a small request."""


class SessionEvents(Protocol):
    """The server as a session sees it: the receiver of its events (`bookie/service/server.py`)."""

    def session_opened(self, session: Session) -> bool:
        """Return whether the connection may stay; if so, `add_run`, `take_adds` and `on_writable` of the session are
        set."""
        ...

    def item_received(self, session: Session, item: Item) -> None:
        """Handle anything but a run of adds."""
        ...

    def peer_misbehaved(self, session: Session, why: str) -> None:
        """Report a connection that the bookie is about to close."""
        ...

    def tls_begun(self, session: Session, data: bytes) -> None:
        """Begin TLS on a connection whose transport offers it. `data`: the first bytes of it."""
        ...

    def session_closed(self, session: Session) -> None: ...


class AddHandler(Protocol):
    """Takes each run of adds that a connection sends (`bookie/service/entries/adds.py:AddPath.add`)."""

    def __call__(self, session: Session, run: AddRun, /) -> None: ...


class ChunkHandler(Protocol):
    """Takes the plain adds of a received chunk from `offset` on (`bookie/service/entries/adds.py:AddPath.take_adds`).

    Returns where it stopped: at `offset` if the next run is not plain.
    """

    def __call__(self, session: Session, chunk: bytes, offset: int, max_packet: int, v3: bool, /) -> int: ...


class WritableHandler(Protocol):
    """Starts queued reads of a connection that has room again
    (`bookie/service/entries/reads.py:ReadPath.pump_soon`).
    """

    def __call__(self, session: Session, /) -> None: ...


class Session(asyncio.Protocol):
    """One connection. What is sent after it is closed is dropped."""

    def __init__(
        self,
        protocol: ServerProtocol,
        budget: Budget,
        events: SessionEvents,
        pulse: Pulse = STEADY,
    ) -> None:
        self.protocol, self._budget, self._events, self._pulse = protocol, budget, events, pulse
        self.open = False
        self.requests_held = 0
        self.reading_bytes = 0
        self.jobs: deque[object] = deque()
        self.waiters: dict[Waiter, None] = {}
        self.charged = 0
        self.reads_paused = False
        self.waiting_since = 0.0
        self.waiting_mark = 0
        self.add_run: AddHandler
        self.take_adds: ChunkHandler | None = None
        """What takes plain adds before they become runs; None: every run goes to `add_run`."""
        self.handle_item: Callable[[Session, Item], None] = events.item_received
        self.on_writable: WritableHandler | None = None
        self.births = Births()
        self.named = self.births.named
        """Births by ledger, for the hot path."""
        self.principal: Principal = EVERYBODY
        """Principal of the peer."""
        self.user = ""
        """User behind a Unix socket, from the kernel, if that was not enough to be let in; else ""."""
        self.introduction: Introduction | None = None
        """The client's introduction; None for Apache's and older clients, which send none."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._received = 0
        self._written = 0
        self._high_water = HIGH_WATER

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._loop = asyncio.get_running_loop()
        self.open = True
        if not self._events.session_opened(self):
            self.open = False
            wire.abort()
            return
        self._high_water = min(HIGH_WATER, self._budget.connection_limit // 4)
        wire.set_write_buffer_limits(high=self._high_water)
        self.waiting_since = self._loop.time()
        self._budget.join(self)

    def data_received(self, data: bytes) -> None:
        if self._loop.time() > self._pulse.limit:
            self._pulse.missed()
        if not self.open:
            return
        self._received += len(data)
        try:
            self.take(self.protocol.feed(data, self.take_chunk))
        except StoreError as error:
            self.refuse(f"what is known of a ledger cannot be looked up: {error}")  # no answer would be right
            return
        if self.open:
            self._budget.update(self)

    def take(self, items: Sequence[Item]) -> None:
        """Have what the protocol found carried out."""
        # Only now: a login may have changed where requests go.
        add, handle = self.add_run, self.handle_item
        for item in items:
            if type(item) is AddRun:
                add(self, item)
            else:
                handle(self, item)
                if not self.open:
                    return  # the client meant another bookie: the rest of what it sent is not for this one

    def take_chunk(self, items: list[Item], chunk: bytes, offset: int, max_packet: int, v3: bool) -> int:
        """Have what came before carried out, then plain adds taken; see `ChunkTaker`."""
        if items:
            self.take(items)
            items.clear()
            if not self.open:
                return -1
        return offset if self.take_adds is None else self.take_adds(self, chunk, offset, max_packet, v3)

    def _goes_on(self) -> bool:
        """Return whether the connection is still open; first check how long the process stood still."""
        if self._loop.time() > self._pulse.limit:
            self._pulse.missed()
        return self.open

    @property
    def heard(self) -> bool:
        """Return whether the peer has sent anything, be it the first bytes of TLS."""
        return self._received > 0 or (isinstance(self._transport, TlsLink) and self._transport.heard)

    @property
    def owes_tls(self) -> bool:
        """Return whether the peer has to begin TLS, or said that it will, and has not."""
        link = self._transport
        return isinstance(link, TlsLink) and not link.begun and self.protocol.awaits_tls

    @property
    def ended(self) -> bool:
        return not self.open

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._budget.update(self)

    def resume_writing(self) -> None:
        if self.open:
            self._budget.update(self)
            self.poke()

    def connection_lost(self, exc: Exception | None) -> None:
        was_open, self.open = self.open, False
        self._out.clear()
        self._out_bytes = 0
        self.jobs.clear()
        self._budget.leave(self)
        self._events.session_closed(self)
        if was_open and exc is not None:
            log.debug("connection lost: %s", exc)

    def begin_tls(self, data: bytes) -> None:
        """Begin TLS with the peer's first bytes of it. The answer to START_TLS was the last to be sent in clear."""
        self._flush()
        if self.open:
            self._events.tls_begun(self, data)

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    # -- answers

    def reply(self, context: ReplyContext, reply: Reply) -> None:
        """Encode and queue one answer; all answers of a loop turn leave in one write."""
        if self.open:
            self.send(encode_reply(context, reply))

    def send(self, data: bytes) -> None:
        """Queue encoded answers for the write at the end of this loop turn."""
        if not self.open:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def answer_run(self, run: AddRun, code: Code) -> None:
        """Answer every entry of a run with the same code."""
        if run.answered is not None:
            run.answered(run, code)
        else:
            self.send(encode_add_replies(run, code))

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Queue one answer in pieces, without copying them."""
        if not self.open:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts
        self._out_bytes += sum(map(len, parts))

    def send_now(self, data: Buffer) -> None:
        """Write at once; for answers that are joined already, the acknowledgements of a commit."""
        if self._loop.time() > self._pulse.limit:
            self._pulse.missed()
        if self.open:
            self._written += len(data)
            self._transport.write(data)

    def reply_at_once(self, context: ReplyContext, reply: Reply) -> None:
        """Write before anything else of this loop turn, which may be a commit.

        A transport may delay a write to the end of the turn; without a write buffer it does not.
        """
        if self._goes_on():
            data = encode_reply(context, reply)
            self._written += len(data)
            self._transport.set_write_buffer_limits(high=0)
            self._transport.write(data)
            self._transport.set_write_buffer_limits(high=self._high_water)

    def release(self, request_bytes: int) -> None:
        """End the charge of a request that was counted in `requests_held`; the caller calls `recount` afterwards."""
        self.requests_held -= request_bytes

    def recount(self) -> None:
        """Have the budget count this connection anew, which may pause or resume its reading."""
        if self.open:
            self._budget.update(self)

    def _flush(self) -> None:
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if out and self._goes_on():
            self._written += size
            if len(out) == 1:
                self._transport.write(out[0])
            elif size < _JOINED * len(out):
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
            self._budget.update(self)

    # -- limits.Member

    def held(self) -> int:
        # Called twice in each commit for each connection, so the sum is computed without further calls.
        protocol = self.protocol
        held = self.requests_held + self.reading_bytes + self._out_bytes
        held += protocol.chunks.pending_bytes + len(protocol.behind)
        return held + (self._transport.get_write_buffer_size() if self.open else 0)

    def unsent(self) -> int:
        return self._out_bytes + (self._transport.get_write_buffer_size() if self.open else 0)

    def unfinished(self) -> int:
        return self.protocol.pending_bytes

    def in_work(self) -> int:
        return self.requests_held + self.reading_bytes - REQUEST_COST * len(self.jobs)

    def progress(self) -> int:
        return self._received + self._written - (self._transport.get_write_buffer_size() if self.open else 0)

    def poke(self) -> None:
        if self.open and self.jobs and self.on_writable is not None:
            self.on_writable(self)

    def pause_reads(self) -> None:
        self.reads_paused = True
        if self.open:
            self._transport.pause_reading()

    def resume_reads(self) -> None:
        self.reads_paused = False
        if self.open:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after the queued answers have left."""
        if self.open:
            self._flush()
            self.open = False
            self._transport.close()

    def refuse(self, why: str) -> None:
        """Report misbehaviour and close after the queued answers have left; later requests are not read."""
        if self.open:
            self._events.peer_misbehaved(self, why)
            self.close()

    def abort(self, why: str) -> None:
        """Report misbehaviour and drop the connection at once."""
        if self.open:
            self._events.peer_misbehaved(self, why)
            self.open = False
            self._transport.abort()

    def kill(self) -> None:
        """Drop the connection and its queued answers."""
        self.open = False
        self._transport.abort()

    @property
    def local(self) -> bool:
        """Return whether the client is connected through the Unix socket for clients of this machine."""
        return not isinstance(self._transport.get_extra_info("peername"), tuple)

    @property
    def peer(self) -> str:
        name = self._transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            return f"{name[0]}:{name[1]}"
        return f"a client of this machine, of user {self.user}" if self.user else "a client of this machine"


def request_of(session: Session, context: ReplyContext) -> dict[str, str]:
    """Return `extra` for a line of the log: the peer, and the number of the request, or its entry if it has none."""
    number = context.txn or f"{context.ledger_id}/{context.entry_id}"
    return {"request": f"{session.peer}#{number}"}
