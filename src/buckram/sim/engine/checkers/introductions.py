"""Who speaks to whom on the simulated wire: I1 to I3. Decoded with the generated messages, not with the codecs."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.sim.engine.checkers.report import Report
from buckram.sim.engine.transport import Connection

Name = tuple[bytes, bytes, bytes]
"""Cluster, bookie, incarnation (b"" in an introduction: any)."""


@dataclass(slots=True)
class _Line:
    said: Name | None = None
    found: Name | None = None
    """What the server said of itself."""
    heard: bool = False
    """The client has that answer."""
    judged: bool = False

    @property
    def strange(self) -> bool:
        if self.said is None or self.found is None:
            return False
        return self.said[:2] != self.found[:2] or self.said[2] not in (b"", self.found[2])


class Introductions:
    """A network.WireObserver. Ghosts (old requests that arrive again) are no clients, but are answered as such."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lines: dict[int, _Line] = {}

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        line = self._lines.get(conn.serial)
        if line is None:
            line = self._lines[conn.serial] = _Line()
        if to_server:
            if line.said is None and (said := _introduction(frame)) is not None:
                line.said = said
            elif not conn.ghost and not line.judged:
                self._asked(conn, line)
        elif line.strange:
            self._report.check("I3", False, "{} goes on answering {}, which wanted {}", conn.bookie, conn, line.said)
        elif line.said is not None and line.found is None:
            self._told(line, frame)

    def _told(self, line: _Line, frame: bytes) -> None:
        line.found = _identity(frame)
        if line.strange:
            self._report.check("I3", True)

    def _asked(self, conn: Connection, line: _Line) -> None:
        """The first request after the introduction; the answers of later ones follow from it."""
        line.judged = True
        self._report.check("I1", line.heard, "{} was asked for something before it said who it is", conn)
        self._report.check("I2", not line.strange, "{} is {}, and is asked all the same", conn, line.found)

    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        line = self._lines[conn.serial]
        if to_server:
            if line.said is not None and conn.bookie.encode() != line.said[1] and _introduction(frame) is not None:
                self._report.situation("connection reached a stranger")
        elif line.found is not None and not line.heard:
            line.heard = True
            if line.strange and not conn.ghost:
                self._report.situation("introduction refused")


def _introduction(frame: bytes) -> Name | None:
    message = pb.Request()
    try:
        message.ParseFromString(frame[4:])
    except DecodeError:
        return None
    body = message.getBookieInfoRequest
    return (body.cluster, body.bookie, body.incarnation) if body.HasField("cluster") else None


def _identity(frame: bytes) -> Name | None:
    message = pb.Response()
    try:
        message.ParseFromString(frame[4:])
    except DecodeError:
        return None
    body = message.getBookieInfoResponse
    return (body.cluster, body.bookie, body.incarnation) if body.HasField("cluster") else None
