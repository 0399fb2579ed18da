"""I1 to I3: clients and bookies prove their identity on each simulated connection before they exchange anything else.

Messages are decoded with the generated protobuf classes, not with the codecs under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from buckram.core.wire import bookkeeper_pb2 as pb
from simulator.engine.checkers.report import Report
from simulator.engine.transport import Connection


class Identity(NamedTuple):
    """Identity of a bookie. In an introduction an empty incarnation stands for any."""

    cluster: bytes
    bookie: bytes
    incarnation: bytes


@dataclass(slots=True)
class _Exchange:
    """The introduction on one connection."""

    wanted: Identity | None = None
    """The bookie that the client wants to reach."""
    actual: Identity | None = None
    """The identity that the server sent."""
    answered: bool = False
    """Set once the client has received that identity."""
    checked: bool = False

    @property
    def mismatched(self) -> bool:
        if self.wanted is None or self.actual is None:
            return False
        same = self.wanted[:2] == self.actual[:2] and self.wanted.incarnation in (b"", self.actual.incarnation)
        return not same


class Introductions:
    """A network.WireObserver. Old requests that arrive again (`ghost`) come from no client, but bookies answer them."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._exchanges: dict[int, _Exchange] = {}

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        exchange = self._exchanges.get(conn.serial)
        if exchange is None:
            exchange = self._exchanges[conn.serial] = _Exchange()
        if to_server:
            if exchange.wanted is None and (wanted := _introduction(frame)) is not None:
                exchange.wanted = wanted
            elif not conn.ghost and not exchange.checked and not _is_login(frame):
                self._check_first_request(conn, exchange)
        elif exchange.mismatched:
            self._report.check(
                "I3", False, "{} goes on answering {}, which wanted {}", conn.bookie, conn, exchange.wanted
            )
        elif exchange.wanted is not None and exchange.actual is None:
            self._identified(exchange, frame)

    def _identified(self, exchange: _Exchange, frame: bytes) -> None:
        exchange.actual = _identity(frame)
        if exchange.mismatched:
            self._report.check("I3", True)

    def _check_first_request(self, conn: Connection, exchange: _Exchange) -> None:
        """Check the first request after the introduction; I1 and I2 then hold for the later ones, too."""
        exchange.checked = True
        self._report.check("I1", exchange.answered, "{} was asked for something before it said who it is", conn)
        self._report.check("I2", not exchange.mismatched, "{} is {}, and is asked all the same", conn, exchange.actual)

    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        exchange = self._exchanges[conn.serial]
        if to_server:
            if (
                exchange.wanted is not None
                and conn.bookie.encode() != exchange.wanted.bookie
                and _introduction(frame) is not None
            ):
                self._report.situation("connection reached a stranger")
        elif exchange.actual is not None and not exchange.answered:
            exchange.answered = True
            if exchange.mismatched and not conn.ghost:
                self._report.situation("introduction refused")


def _is_login(frame: bytes) -> bool:
    """Return whether the frame belongs to a login, which comes before the introduction."""
    message = pb.Request()
    try:
        message.ParseFromString(frame[4:])
    except DecodeError:
        return False
    return bool(message.HasField("authRequest"))


def _introduction(frame: bytes) -> Identity | None:
    message = pb.Request()
    try:
        message.ParseFromString(frame[4:])
    except DecodeError:
        return None
    body = message.getBookieInfoRequest
    return Identity(body.cluster, body.bookie, body.incarnation) if body.HasField("cluster") else None


def _identity(frame: bytes) -> Identity | None:
    message = pb.Response()
    try:
        message.ParseFromString(frame[4:])
    except DecodeError:
        return None
    body = message.getBookieInfoResponse
    return Identity(body.cluster, body.bookie, body.incarnation) if body.HasField("cluster") else None
