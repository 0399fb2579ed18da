"""A lying bookie: an honest process whose requests and replies are rewritten on the way.

It changes, swaps and repeats entries (also of other ledgers), invents LACs and replays old sealed ones, acknowledges
adds without storing them, denies entries that it holds and ignores fences. With a MAC digest no reader may receive a
byte or a LAC that the writer did not send, and with Qa >= 2 no acknowledged entry may be lost to a reader that can
reach an honest holder (F20).
"""

from __future__ import annotations

import random
import struct

from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.errors import Code
from simulator.engine.transport import Connection

_ANSWER = struct.Struct(">IBBHiqq")
TRICKS = ("change", "swap", "mix", "lac", "old lac", "drop", "deny", "ignore fence")
_KEPT = 50


class Liar:
    """A network.Tamperer for the connections of one bookie.

    Each life's liar prefers some of the tricks. `only` names those of a directed schedule, which it then always plays.
    """

    def __init__(self, rng: random.Random, only: tuple[str, ...] | None = None) -> None:
        self._rng = rng
        if only is None:
            self._chance = {trick: rng.choice((0.0, 0.0, 0.2, 0.7, 1.0)) for trick in TRICKS}
        else:
            self._chance = {trick: float(trick in only) for trick in TRICKS}
        self._seen: dict[int, list[bytes]] = {}
        self._packets: dict[int, list[bytes]] = {}

    def _plays(self, trick: str) -> bool:
        return self._rng.random() < self._chance[trick]

    # requests

    def request(self, conn: Connection, frame: bytes) -> bytes | None:
        """Return the request for the honest process: the liar may acknowledge an add unstored, or drop a fence."""
        if frame[4] <= 2:
            if frame[4] == 2 and frame[5] == 1 and len(frame) >= 60 and self._plays("drop"):
                ledger, entry = struct.unpack_from(">qq", frame, 28)
                conn.answer(_ANSWER.pack(24, 2, 1, 0, 0, ledger, entry))
                return None
            return frame
        message = pb.Request()
        message.ParseFromString(frame[4:])
        if message.HasField("addRequest") and self._plays("drop"):
            conn.answer(_framed(_added(message)))
            return None
        read = message.readRequest
        if (
            message.HasField("readRequest")
            and read.HasField("flag")
            and read.flag == pb.ReadRequest.FENCE_LEDGER
            and (self._plays("ignore fence"))
        ):
            read.ClearField("flag")
            read.ClearField("masterKey")
            return _framed(message)
        return frame

    # answers

    def answer(self, conn: Connection, frame: bytes) -> bytes | None:
        if frame[4] <= 2:
            return self._v2(frame)
        message = pb.Response()
        message.ParseFromString(frame[4:])
        if message.HasField("readResponse"):
            self._v3_read(message)
        elif message.HasField("readLacResponse"):
            self._v3_lac(message)
        else:
            return frame
        return _framed(message)

    def _v2(self, frame: bytes) -> bytes:
        if frame[5] == 7 and len(frame) > 36:
            return self._batch(frame)
        if frame[5] != 2 or len(frame) <= 28:
            return frame
        ledger, entry = struct.unpack_from(">qq", frame, 12)
        if self._plays("deny"):
            return _ANSWER.pack(24, 2, 2, 0, Code.NO_ENTRY.v2, ledger, entry)
        body = self._body(ledger, frame[28:])
        return (24 + len(body)).to_bytes(4, "big") + frame[4:28] + body

    def _batch(self, frame: bytes) -> bytes:
        if int.from_bytes(frame[6:8], "big") & 0x2000:  # locations in files, which it does not change
            return frame
        if self._plays("deny"):
            packet = frame[4:8] + Code.NO_ENTRY.v2.to_bytes(4, "big") + frame[12:36]
            return len(packet).to_bytes(4, "big") + packet
        framed = bool(int.from_bytes(frame[6:8], "big") & 0x4000)
        ledger, at, parts, head = int.from_bytes(frame[12:20], "big"), 36, [], 24 if framed else 0
        while at + 4 <= len(frame):
            size = int.from_bytes(frame[at : at + 4], "big")
            body = self._body(ledger, frame[at + 4 + head : at + 4 + size])
            parts.append((head + len(body)).to_bytes(4, "big") + frame[at + 4 : at + 4 + head] + body)
            at += 4 + size
        packet = frame[4:36] + b"".join(parts)
        return len(packet).to_bytes(4, "big") + packet

    def _body(self, ledger: int, body: bytes) -> bytes:
        """Return the stored entry, or something else in its place."""
        seen = self._seen.setdefault(ledger, [])
        if len(seen) < _KEPT:
            seen.append(body)
        if self._plays("swap"):
            return self._rng.choice(seen)
        if self._plays("mix"):
            return self._rng.choice(self._seen[self._rng.choice(list(self._seen))])
        if self._plays("lac") and len(body) >= 32:
            return body[:16] + self._rng.choice((0, 5, 1 << 40)).to_bytes(8, "big") + body[24:]
        if self._plays("change"):
            at = self._rng.randrange(len(body))
            return body[:at] + bytes([body[at] ^ (1 << self._rng.randrange(8))]) + body[at + 1 :]
        return body

    def _v3_read(self, message: pb.Response) -> None:
        read = message.readResponse
        if read.HasField("body"):
            if self._plays("deny"):
                message.status = read.status = pb.ENOENTRY
                read.ClearField("body")
                return
            read.body = self._body(read.ledgerId, read.body)
        if self._plays("lac"):
            read.maxLAC = self._rng.choice((0, 3, 1 << 40))

    def _v3_lac(self, message: pb.Response) -> None:
        lac = message.readLacResponse
        if lac.HasField("lacBody"):
            packets = self._packets.setdefault(lac.ledgerId, [])
            if len(packets) < _KEPT:
                packets.append(lac.lacBody)
            if self._plays("lac"):
                lac.lacBody = lac.lacBody[:8] + (1 << 30).to_bytes(8, "big") + lac.lacBody[16:]
            elif self._plays("old lac"):
                lac.lacBody = packets[0]
        if lac.HasField("lastEntryBody"):
            lac.lastEntryBody = self._body(lac.ledgerId, lac.lastEntryBody)


def _added(message: pb.Request) -> pb.Response:
    """Return the OK answer to an add."""
    answer = pb.Response()
    answer.header.version, answer.header.operation = message.header.version, message.header.operation
    answer.header.txnId = message.header.txnId
    answer.status = answer.addResponse.status = pb.EOK
    answer.addResponse.ledgerId, answer.addResponse.entryId = message.addRequest.ledgerId, message.addRequest.entryId
    return answer


def _framed(message: pb.Request | pb.Response) -> bytes:
    data = message.SerializeToString()
    return len(data).to_bytes(4, "big") + data
