"""The messages on the simulated wire, as requests and the answers to them, for both protocol versions.

They are decoded by hand (v2) and with the generated protobuf classes (v3), not with the codecs under test. Nothing is
checked here.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.errors import Code
from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.transport import Connection

_HEAD = struct.Struct(">IBBH")
_FRAMED, _LOCATED, _FRAME_HEAD = 0x4000, 0x2000, 28
_IDS = struct.Struct(">qq")
_ADD = struct.Struct(">20sqqqq")
_ANSWER = struct.Struct(">iqq")
FENCE, RECOVERY = 1, 2
_LAC = 0x46


@dataclass(slots=True)
class Request:
    """One request on one connection.

    `kind` is add, read, batch, poll, write_lac, read_lac, force, list, info or other. `ghost`: an old request that
    arrives again. `wait_s` is how long a poll may wait. Times are virtual seconds.
    """

    kind: str
    client: str
    bookie: BookieId
    ledger: LedgerId = -1
    entry: EntryId = -1
    key: bytes | None = None
    fence: bool = False
    recovery: bool = False
    deferred: bool = False
    lac: EntryId | None = None
    body: bytes = b""
    conn: Connection | None = None
    txn: int | None = None
    wait_s: float | None = None
    ghost: bool = False
    sent_at: float = 0.0
    delivered_at: float | None = None
    delivered_step: int = -1
    answered: bool = False


@dataclass(slots=True)
class Answer:
    """One answer. `request` is None if it answers none that is pending. `bodies` are stored entries as the bookie sent
    them, `first` the id of the first of them, `lac` the bookie's own LAC."""

    request: Request | None
    code: Code
    bodies: list[bytes] = field(default_factory=list)
    lac: EntryId | None = None
    lac_packet: bytes | None = None
    first: EntryId = -1

    @property
    def negative(self) -> bool:
        """Return whether the bookie denies that the entry or ledger exists."""
        return self.code is Code.NO_ENTRY or self.code is Code.NO_LEDGER


@dataclass(slots=True)
class _Channel:
    """One connection: requests under way, requests that are not answered yet, answers under way."""

    requests: deque[Request | None] = field(default_factory=deque)
    pending: dict[tuple[str, LedgerId, EntryId] | int, deque[Request]] = field(default_factory=dict)
    answers: deque[Answer | None] = field(default_factory=deque)


class WireEvents(Protocol):
    """Receives the requests and answers. "Sent" is when a process writes a message to its connection."""

    def request_sent(self, request: Request, /) -> None: ...
    def request_delivered(self, request: Request, /) -> None: ...
    def answer_sent(self, answer: Answer, /) -> None: ...
    def answer_delivered(self, answer: Answer, /) -> None: ...


class Wire:
    """A network.WireObserver that reports whole requests and answers."""

    def __init__(self, inspector: Inspector, events: WireEvents) -> None:
        self._now, self._events = inspector.now, events
        self._channels: dict[int, _Channel] = {}

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        channel = self._channels.get(conn.serial)
        if channel is None:
            channel = self._channels[conn.serial] = _Channel()
        if to_server:
            # The version is that of the message, because the introduction is v3 on all connections.
            request = _v2_request(conn, frame) if _is_v2(frame) else _v3_request(conn, frame)
            request.sent_at, request.ghost, request.conn = self._now(), conn.ghost, conn
            channel.requests.append(request)
            self._events.request_sent(request)
            return
        answer = _v2_answer(channel, frame) if _is_v2(frame) else _v3_answer(channel, frame)
        channel.answers.append(answer)
        if answer is not None:
            if answer.request is not None:
                answer.request.answered = True
            self._events.answer_sent(answer)

    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        channel = self._channels[conn.serial]
        if to_server:
            request = channel.requests.popleft() if channel.requests else None
            if request is not None:
                request.delivered_at = self._now()
                key = (request.kind, request.ledger, request.entry) if request.txn is None else request.txn
                channel.pending.setdefault(key, deque()).append(request)
                self._events.request_delivered(request)
        elif channel.answers:
            answer = channel.answers.popleft()
            if answer is not None and not conn.ghost:
                self._events.answer_delivered(answer)


def _is_v2(frame: bytes) -> bool:
    """Return whether the frame is of protocol v2: it begins with a version byte, v3 with a larger protobuf tag."""
    return len(frame) > 4 and frame[4] <= 2


def _v2_request(conn: Connection, frame: bytes) -> Request:
    _, _, opcode, flags = _HEAD.unpack_from(frame)
    if opcode == 1 and len(frame) >= 60:
        key, ledger, entry, lac, _ = _ADD.unpack_from(frame, 8)
        return Request(
            "add",
            conn.client,
            conn.bookie,
            ledger,
            entry,
            key,
            recovery=bool(flags & RECOVERY),
            lac=lac,
            body=frame[28:],
        )
    if opcode == 2:
        ledger, entry = _IDS.unpack_from(frame, 8)
        fence = bool(flags & FENCE)
        return Request("read", conn.client, conn.bookie, ledger, entry, frame[24:44] if fence else None, fence)
    if opcode == 7:
        ledger, entry, txn = struct.unpack_from(">qqq", frame, 8)
        return Request("batch", conn.client, conn.bookie, ledger, entry, txn=txn)
    if opcode == _LAC:
        ledger, lac = _IDS.unpack_from(frame, 28)
        return Request("write_lac", conn.client, conn.bookie, ledger, key=frame[8:28], lac=lac, body=frame[28:])
    return Request("other", conn.client, conn.bookie)


def _take_pending(channel: _Channel, key: tuple[str, LedgerId, EntryId] | int) -> Request | None:
    waiting = channel.pending.get(key)
    if not waiting:
        return None
    request = waiting.popleft()
    if not waiting:
        del channel.pending[key]
    return request


def _v2_answer(channel: _Channel, frame: bytes) -> Answer | None:
    _, _, opcode, flags = _HEAD.unpack_from(frame)
    if opcode not in (1, 2, 7, _LAC) or len(frame) < 28:
        return None
    number, ledger, entry = _ANSWER.unpack_from(frame, 8)
    code = Code.from_v2(number)
    if opcode == _LAC:
        return Answer(_take_pending(channel, ("write_lac", ledger, -1)), code)
    if opcode == 1:
        return Answer(_take_pending(channel, ("add", ledger, entry)), code)
    if opcode == 2:
        answer = Answer(_take_pending(channel, ("read", ledger, entry)), code, first=entry)
        if code is Code.OK:
            answer.bodies.append(frame[28:])
        return answer
    answer = Answer(_take_pending(channel, int.from_bytes(frame[28:36], "big", signed=True)), code, first=entry)
    at, gap = 36, _FRAME_HEAD if flags & _FRAMED else 4
    while code is Code.OK and not flags & _LOCATED and at + 4 <= len(frame):
        size = int.from_bytes(frame[at : at + 4], "big")
        answer.bodies.append(frame[at + gap : at + 4 + size])
        at += 4 + size
    return answer


def _v3_request(conn: Connection, frame: bytes) -> Request:
    message = pb.Request()
    message.ParseFromString(frame[4:])
    request = Request("other", conn.client, conn.bookie, txn=message.header.txnId)
    if message.HasField("addRequest"):
        add = message.addRequest
        request.kind, request.ledger, request.entry, request.key = "add", add.ledgerId, add.entryId, add.masterKey
        request.recovery = add.flag == pb.AddRequest.RECOVERY_ADD if add.HasField("flag") else False
        request.deferred = bool(add.writeFlags & 1) and not request.recovery
        request.body = add.body
        request.lac = int.from_bytes(add.body[16:24], "big", signed=True)
    elif message.HasField("readRequest"):
        read = message.readRequest
        request.kind, request.ledger, request.entry = "read", read.ledgerId, read.entryId
        if read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER:
            request.fence, request.key = True, read.masterKey if read.HasField("masterKey") else None
        elif read.HasField("previousLAC"):
            request.kind, request.lac = "poll", read.previousLAC
            request.wait_s = read.timeOut / 1000 if read.HasField("timeOut") else 0.0
    elif message.HasField("writeLacRequest"):
        write = message.writeLacRequest
        request.kind, request.ledger, request.key = "write_lac", write.ledgerId, write.masterKey
        request.lac, request.body = write.lac, write.body
    elif message.HasField("readLacRequest"):
        request.kind, request.ledger = "read_lac", message.readLacRequest.ledgerId
    elif message.HasField("forceLedgerRequest"):
        request.kind, request.ledger = "force", message.forceLedgerRequest.ledgerId
    elif message.HasField("getBookieInfoRequest"):
        request.kind = "info"
    elif message.HasField("getListOfEntriesOfLedgerRequest"):
        request.kind, request.ledger = "list", message.getListOfEntriesOfLedgerRequest.ledgerId
    return request


def _v3_answer(channel: _Channel, frame: bytes) -> Answer:
    message = pb.Response()
    message.ParseFromString(frame[4:])
    answer = Answer(_take_pending(channel, message.header.txnId), Code.from_v3(message.status))
    if message.HasField("readResponse"):
        read = message.readResponse
        answer.first = read.entryId
        if read.HasField("body"):
            answer.bodies.append(read.body)
        if read.HasField("maxLAC"):
            answer.lac = read.maxLAC
    elif message.HasField("readLacResponse"):
        lac = message.readLacResponse
        if lac.HasField("lacBody"):
            answer.lac_packet = lac.lacBody
        if lac.HasField("lastEntryBody"):
            answer.bodies.append(lac.lastEntryBody)
    return answer
