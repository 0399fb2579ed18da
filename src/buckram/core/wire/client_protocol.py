"""The client's end of one connection: the outstanding requests, and matching received replies to them.

v3 replies carry the transaction id of their request. v2 replies only repeat ledger, entry and operation, so outstanding
requests with the same key must be interchangeable, including those that the caller has abandoned: a late reply to a
plain read must never count as the reply to a fencing read. The introductions at the start are v3 on either wire.

Not here: the socket (`runtime/net/connection.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from buckram.core.entries.entry import entry_ids
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.acks import AckEvent, AckMatcher, AckSink, SentRun, emit_ok
from buckram.core.wire.adds import RECOVERY_ADD, walk_frames
from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge
from buckram.core.wire.introduction import Introduction
from buckram.core.wire.lacs import Answered, take_lac_replies
from buckram.core.wire.messages import (
    OP_ADD,
    OP_BATCH_READ,
    OP_BOOKIE_INFO,
    OP_PULL,
    OP_READ,
    Add,
    BadPacket,
    BatchRead,
    ErrorReply,
    Force,
    GetBookieInfo,
    ListEntries,
    Pull,
    Read,
    ReadLac,
    ReadReply,
    Reply,
    ReplyContext,
    Request,
    WriteLac,
    error_reply,
)
from buckram.errors import Code, InvalidArgument
from buckram.types import EntryId, LedgerId, Slot

Key: TypeAlias = tuple[int, int, int]
"""(operation, id, id): v3 (op, txn, 0), v2 batch read and pull (op, request id, 0), other v2 (op, ledger, entry)."""
MAX_ABANDONED = 4096
MAX_NAMED = 4096
"""Maximum ledgers whose births are remembered as sent on one connection. Bookies remember more than that."""


Name: TypeAlias = tuple[LedgerId, bytes]
"""A ledger and its birth."""
LacPacket: TypeAlias = "tuple[Name | None, bytes]"
"""The ledger that an explicit LAC is about, if it has a birth, and the frame (`lacs.encode_lac`)."""


class Conflict(Exception):
    """A v2 request whose reply could not be distinguished from that of an outstanding one; use v3, or wait for the
    other.
    """


class _LaneAdd(NamedTuple):
    """The token of an add that a lane sent over v3."""

    sink: AckSink
    slot: Slot
    ledger_id: LedgerId
    entry_id: EntryId


class _Pending:
    __slots__ = ("expires", "kind", "request", "token")

    def __init__(self, token: object, request: Request | None, expires: float, kind: object) -> None:
        self.token, self.request, self.expires, self.kind = token, request, expires, kind


class Received:
    """Results of a received chunk. `answers` are pairs (token, reply). After an `error` in the bytes the connection
    must be closed, once the rest is handled.
    """

    __slots__ = ("acks", "answers", "error", "lacs")

    def __init__(self) -> None:
        self.lacs: Answered = []
        self.acks: list[AckEvent] = []
        self.answers: list[tuple[object, Reply]] = []
        self.error: str | None = None


@dataclass(slots=True)
class Overdue:
    """Requests without a reply in time: adds of lanes (with code None) and the tokens of other requests."""

    acks: list[AckEvent]
    tokens: list[object]


class ClientProtocol:
    """`version` is 2 or 3 and stays so. Times are the caller's; tokens are opaque."""

    def __init__(self, version: int, max_frame_bytes: int) -> None:
        self.version = version
        self.names_ledgers = False
        """True if the bookie accepts the births of ledgers, which are sent ahead of the first request about each."""
        self._named: dict[LedgerId, bytes] = {}
        self.chunks = ChunkBuffer(max_frame_bytes)
        """The unfinished frame."""
        self._adds = AckMatcher()
        self.sole_ack = self._adds.sole
        """The fast path of writers with few entries at a time, for a chunk behind no unfinished frame. After None, pass
        the chunk to `feed`."""
        self._pending: dict[Key, list[_Pending]] = {}
        self._abandoned: dict[Key, list[object]] = {}
        self._abandoned_count = 0
        self._next_id = 0
        self._introducing = False
        self._sent_lacs = False
        """True once an explicit LAC was sent as a packet, so that its replies may come."""
        self.requests = 0
        """Number of outstanding requests and v3 adds."""

    @property
    def idle(self) -> bool:
        return not self.requests and self._adds.idle

    @property
    def overgrown(self) -> bool:
        """Return whether too many replies are missing, so that the connection should be replaced."""
        return self._abandoned_count > MAX_ABANDONED

    def request(self, request: Request, token: object, expires: float) -> tuple[Key, bytes]:
        """Register a request. Returns its key for `forget` and the frame to send. Raises Conflict, InvalidArgument."""
        self._next_id += 1
        number = self._next_id
        try:
            data = (wire_v3 if self.version == 3 else wire_v2).encode_request(request, number)
        except (struct.error, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"{type(request).__name__} has a number that does not fit 64 bits: {error}") from None
        if self.version == 3:
            key: Key = (wire_v3.operation_of(request), number, 0)
            kind: object = None
        else:
            key, kind = _v2_key(request, number)
            if key in self._pending or key in self._abandoned:
                self._check_rivals(key, kind)
        self._register(key, _Pending(token, request, expires, kind))
        return key, self._named_first(request, data)

    def _check_rivals(self, key: Key, kind: object) -> None:
        rivals = [one.kind for one in self._pending.get(key, ())] + self._abandoned.get(key, [])
        if any(rival != kind for rival in rivals):
            raise Conflict(f"another request for {key} is still unanswered on this v2 connection")

    def introduce(self, introduction: Introduction, token: object, expires: float) -> bytes:
        """Register the first exchange and return its frame. No other request is sent before the reply."""
        self._introducing = True
        self._next_id += 1
        request = GetBookieInfo(0, introduction)
        self._register((OP_BOOKIE_INFO, self._next_id, 0), _Pending(token, request, expires, None))
        return wire_v3.encode_request(request, self._next_id)

    def _register(self, key: Key, pending: _Pending) -> None:
        self._pending.setdefault(key, []).append(pending)
        self.requests += 1

    def adds(
        self, frames: bytes, acks: bytes, runs: Sequence[SentRun], expires: float, deferred_sync: bool = False
    ) -> bytes:
        """Register the runs of a lane. Returns the bytes to send: `frames` itself on v2, converted on v3."""
        if self.version == 2:
            self._adds.expect(acks, runs, expires)
            if len(runs) == 1 and ((name := runs[0][0].name) is None or self._named.get(name[0]) == name[1]):
                return frames
            return self._with_names(frames, runs) if self.names_ledgers else frames
        sent: list[bytes] = []
        owners = ((sink, slot, entry) for sink, slot, first, last in runs for entry in range(first, last + 1))
        for (flags, master_key, stored), (sink, slot, entry) in zip(
            walk_frames(frames, 0, len(frames)), owners, strict=True
        ):
            ledger = entry_ids(stored)[0]
            recovery = bool(flags & RECOVERY_ADD)
            name, birth = sink.name, b""
            if name is not None and self._named.get(ledger) != name[1]:
                birth = name[1]
                self._name(ledger, birth)
            add = Add(ledger, entry, master_key, stored, recovery, recovery, deferred_sync and not recovery, birth)
            self._next_id += 1
            sent.append(wire_v3.encode_request(add, self._next_id))
            token = _LaneAdd(sink, slot, ledger, entry)
            self._register((OP_ADD, self._next_id, 0), _Pending(token, None, expires, None))
        return b"".join(sent)

    def lacs(self, packets: Sequence[LacPacket]) -> bytes:
        """Return the bytes to send for explicit LACs. Their replies come as `Received.lacs`, and are not waited for."""
        self._sent_lacs = True
        named = self._named
        parts: list[bytes] = []
        for name, frame in packets:
            if name is not None and named.get(name[0]) != name[1] and self.names_ledgers:
                parts.append(self._name(*name))
            parts.append(frame)
        return b"".join(parts)

    def _name(self, ledger_id: LedgerId, birth: bytes) -> bytes:
        """Return the packet that names a ledger's birth, which counts as sent from then on."""
        named = self._named
        named.pop(ledger_id, None)
        named[ledger_id] = birth
        if len(named) > MAX_NAMED:
            del named[next(iter(named))]
        return wire_v2.name_ledger(ledger_id, birth)

    def _named_first(self, request: Request, data: bytes) -> bytes:
        if not isinstance(request, Read | BatchRead | Add | Pull | WriteLac | ReadLac | Force | ListEntries):
            return data
        ledger, birth = request.ledger_id, request.birth
        if not birth or self._named.get(ledger) == birth or not (self.names_ledgers or self.version == 3):
            return data
        name = self._name(ledger, birth)
        return data if self.version == 3 else name + data  # v3 requests carry the birth themselves

    def _with_names(self, frames: bytes, runs: Sequence[SentRun]) -> bytes:
        """Return the frames of these runs, with the birth of each ledger ahead of its first frame where needed."""
        wanted = [sink.name for sink, *_ in runs]
        if all(name is None or self._named.get(name[0]) == name[1] for name in wanted):
            return frames
        if len(runs) == 1 or len(dict.fromkeys(wanted)) == len(dict.fromkeys(name and name[0] for name in wanted)):
            new = [name for name in dict.fromkeys(wanted) if name is not None and self._named.get(name[0]) != name[1]]
            return b"".join([*(self._name(*name) for name in new), frames])
        # Two ledgers have the same id: each run follows the packet with its own birth.
        parts, offset = [], 0
        for (_, _, first, last), name in zip(runs, wanted, strict=True):
            if name is not None and self._named.get(name[0]) != name[1]:
                parts.append(self._name(*name))
            start = offset
            for _ in range(last - first + 1):
                offset += 4 + int.from_bytes(frames[offset : offset + 4], "big")
            parts.append(frames[start:offset])
        return b"".join(parts)

    def forget(self, key: Key, token: object) -> None:
        """Abandon a request: a late reply to it is ignored."""
        for pending in self._pending.get(key, ()):
            if pending.token is token:
                self._drop(key, pending)
                self._abandon(key, pending)
                return

    def _drop(self, key: Key, pending: _Pending) -> None:
        waiting = self._pending[key]
        waiting.remove(pending)
        if not waiting:
            del self._pending[key]
        self.requests -= 1

    def _abandon(self, key: Key, pending: _Pending) -> None:
        if self.version == 2 and pending.kind is not None:
            self._abandoned.setdefault(key, []).append(pending.kind)
            self._abandoned_count += 1

    def feed(self, chunk: bytes) -> Received:
        """Return what the chunk completes. Bad bytes never raise, they set `error`."""
        received = Received()
        chunks, matcher = self.chunks, self._adds
        adds = self.version == 2 and not matcher.idle
        try:
            buffer = chunks.push(chunk) if chunks.pending_bytes else chunk
            offset = 0
            while True:
                if adds:
                    offset = matcher.take(buffer, offset, received.acks)
                if self._sent_lacs and (after := take_lac_replies(buffer, offset, received.lacs)) > offset:
                    offset = after
                    continue
                end = chunks.next_frame(buffer, offset) if offset < len(buffer) else 0
                if not end:
                    break
                self._packet(buffer, offset + PREFIX_BYTES, end, received)
                offset = end
            if offset < len(buffer):
                chunks.keep(buffer, offset)
        except (FrameTooLarge, BadPacket) as error:
            received.error = str(error)
        return received

    def room(self) -> memoryview | None:
        """Return where the next bytes belong if they continue a large reply, see `ChunkBuffer.room`; else None."""
        return self.chunks.room() if self.version == 2 else None

    def filled(self, count: int) -> Received:
        """Return what the bytes complete that were received into `room`."""
        received = Received()
        try:
            whole = self.chunks.filled(count)
            if whole is not None:
                self._packet(whole, PREFIX_BYTES, len(whole), received)
        except BadPacket as error:
            received.error = str(error)
        return received

    def _packet(self, buffer: bytes | bytearray, start: int, end: int, received: Received) -> None:
        if self.version == 3 or self._introducing:
            self._introducing = False
            reply, operation, txn = wire_v3.decode_reply(bytes(buffer[start:end]))
            key: Key = (operation, txn, 0)
        else:
            reply, operation, number = wire_v2.decode_reply(buffer, start, end)
            key = (operation, number, 0)
            if operation not in (OP_BATCH_READ, OP_PULL):
                key = (operation, getattr(reply, "ledger_id", 0), getattr(reply, "entry_id", 0))
        waiting = self._pending.get(key)
        if waiting is None:
            self._late(key)
            return
        pending = waiting[0]
        self._drop(key, pending)
        token = pending.token
        if isinstance(token, _LaneAdd):
            sink, slot, ledger, entry = token
            self._adds.note(pending.expires)
            if reply.code is Code.OK:
                emit_ok(received.acks, sink, slot, entry, entry)
            else:
                received.acks.append((sink, slot, entry, entry, reply.code, ledger))
        elif pending.request is not None:
            received.answers.append((token, _checked(self.version, pending.request, operation, reply)))

    def _late(self, key: Key) -> None:
        """Count the late reply to an abandoned request, so that later replies need not be distinguished from it any
        more.
        """
        kinds = self._abandoned.get(key)
        if kinds:
            kinds.pop()
            self._abandoned_count -= 1
            if not kinds:
                del self._abandoned[key]

    def expire(self, now: float, patience_s: float = 0.0) -> Overdue:
        """Abandon and return everything whose reply was due by `now`; adds have `patience_s` more while those that were
        sent before them are answered."""
        tokens: list[object] = []
        self._adds.look(now, patience_s)
        acks = self._adds.expire(now)
        for key in list(self._pending):
            for pending in [one for one in self._pending[key] if self._is_overdue(one, now)]:
                self._drop(key, pending)
                self._abandon(key, pending)
                token = pending.token
                if isinstance(token, _LaneAdd):
                    acks.append((token.sink, token.slot, token.entry_id, token.entry_id, None, token.ledger_id))
                else:
                    tokens.append(token)
        return Overdue(acks, tokens)

    def _is_overdue(self, pending: _Pending, now: float) -> bool:
        if isinstance(pending.token, _LaneAdd):
            return self._adds.is_overdue(pending.expires, now)
        return pending.expires <= now

    def give_up(self) -> Overdue:
        """Abandon and return everything outstanding, because the connection is gone."""
        return self.expire(float("inf"))


def _v2_key(request: Request, number: int) -> tuple[Key, object]:
    if isinstance(request, BatchRead):
        return (OP_BATCH_READ, number, 0), None
    if isinstance(request, Pull):
        return (OP_PULL, number, 0), None
    if isinstance(request, Read):
        return (OP_READ, request.ledger_id, request.entry_id), (request.fence, request.master_key)
    if isinstance(request, Add):
        return (OP_ADD, request.ledger_id, request.entry_id), (request.recovery, request.master_key, request.body)
    raise InvalidArgument(f"protocol 2 cannot match answers to {type(request).__name__}; use protocol 3")


def _checked(version: int, request: Request, operation: int, reply: Reply) -> Reply:
    """Return the reply in the type of the request's operation; OK without the requested entry becomes an I/O error."""
    if isinstance(reply, ErrorReply):
        ledger = getattr(request, "ledger_id", -1)
        entry = getattr(request, "entry_id", -1)
        return error_reply(ReplyContext(version, version, operation, ledger, entry), reply.code)
    if (
        isinstance(reply, ReadReply)
        and reply.code is Code.OK
        and reply.body is None
        and isinstance(request, Read)
        and request.previous_lac is None
    ):
        return reply._replace(code=Code.IO_ERROR)
    return reply
