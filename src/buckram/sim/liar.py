"""A lying bookie: an honest process behind a man who rewrites what it says.

It changes, swaps and repeats entries, names LACs of its own, acknowledges without storing and denies what it holds.
Under a MAC digest no reader may get a byte or a LAC that the writer did not send; what a liar can still do to a
recovery is told in docs/protocol.md.
"""

from __future__ import annotations

import random
import struct

from buckram.core import bookkeeper_pb2 as pb
from buckram.errors import Code
from buckram.sim.transport import Connection

_ANSWER = struct.Struct(">IBBHiqq")


class Liar:
    """A network.Tamperer for the connections of one bookie. Each life's liar prefers some of its tricks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._chance = {trick: rng.choice((0.0, 0.0, 0.2, 0.7)) for trick in ("change", "swap", "lac", "drop", "deny")}
        self._seen: dict[int, list[bytes]] = {}
        self.lies = 0

    def _does(self, trick: str) -> bool:
        lies = self._rng.random() < self._chance[trick]
        self.lies += lies
        return lies

    def request(self, conn: Connection, frame: bytes) -> bytes | None:
        """Acknowledge an add without storing it."""
        if frame[4] == 2 and frame[5] == 1 and len(frame) >= 60 and self._does("drop"):
            ledger, entry = struct.unpack_from(">qq", frame, 28)
            conn.answer(_ANSWER.pack(24, 2, 1, 0, 0, ledger, entry))
            return None
        return frame

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
        data = message.SerializeToString()
        return len(data).to_bytes(4, "big") + data

    def _v2(self, frame: bytes) -> bytes:
        if frame[5] == 7 and len(frame) > 36:
            return self._batch(frame)
        if frame[5] != 2 or len(frame) <= 28:
            return frame
        ledger, entry = struct.unpack_from(">qq", frame, 12)
        if self._does("deny"):
            return _ANSWER.pack(24, 2, 2, 0, Code.NO_ENTRY.v2, ledger, entry)
        body = self._body(ledger, frame[28:])
        return (24 + len(body)).to_bytes(4, "big") + frame[4:28] + body

    def _batch(self, frame: bytes) -> bytes:
        ledger, at, parts = int.from_bytes(frame[12:20], "big"), 36, []
        while at + 4 <= len(frame):
            size = int.from_bytes(frame[at:at + 4], "big")
            body = self._body(ledger, frame[at + 4:at + 4 + size])
            parts.append(len(body).to_bytes(4, "big") + body)
            at += 4 + size
        packet = frame[4:36] + b"".join(parts)
        return len(packet).to_bytes(4, "big") + packet

    def _body(self, ledger: int, body: bytes) -> bytes:
        """The stored entry, or something else in its place."""
        seen = self._seen.setdefault(ledger, [])
        if len(seen) < 50:
            seen.append(body)
        if self._does("swap"):
            return self._rng.choice(seen)
        if self._does("lac") and len(body) >= 32:
            return body[:16] + self._rng.choice((0, 5, 1 << 40)).to_bytes(8, "big") + body[24:]
        if self._does("change"):
            at = self._rng.randrange(len(body))
            return body[:at] + bytes([body[at] ^ (1 << self._rng.randrange(8))]) + body[at + 1:]
        return body

    def _v3_read(self, message: pb.Response) -> None:
        read = message.readResponse
        if read.HasField("body"):
            if self._does("deny"):
                message.status = read.status = pb.ENOENTRY
                read.ClearField("body")
                return
            read.body = self._body(read.ledgerId, read.body)
        if self._does("lac"):
            read.maxLAC = self._rng.choice((0, 3, 1 << 40))

    def _v3_lac(self, message: pb.Response) -> None:
        lac = message.readLacResponse
        if lac.HasField("lacBody") and self._does("lac"):
            lac.lacBody = lac.lacBody[:8] + (1 << 30).to_bytes(8, "big") + lac.lacBody[16:]
        if lac.HasField("lastEntryBody"):
            lac.lastEntryBody = self._body(lac.ledgerId, lac.lastEntryBody)
