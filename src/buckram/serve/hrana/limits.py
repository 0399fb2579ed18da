"""Limits of the clients of a database server."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.bounds import check_bounds
from buckram.serve.hrana.protocol.requests import MAX_REQUESTS, MAX_STEPS
from buckram.serve.http.limits import KIB, MIB, HttpLimits

HTTP_LIMITS = HttpLimits(body_bytes=32 * MIB)
_BOUNDS: dict[str, tuple[float, float]] = {
    "streams": (1, 1_000_000),
    "stream_idle_s": (0.05, 3600.0),
    "requests": (1, 1_000_000),
    "steps": (1, 10_000_000),
    "answer_bytes": (KIB, 2**32),
    "leader_wait_s": (0.0, 3600.0),
    "answer_wait_s": (0.05, 86_400.0),
    "frame_bytes": (KIB, 2**30),
    "unread_s": (0.05, 3600.0),
}


@dataclass(frozen=True, slots=True)
class HranaLimits:
    """Limits of one server, beside those of its HTTP connections."""

    streams: int = 8192
    """Maximum open streams, of all clients and databases."""
    stream_idle_s: float = 10.0
    """Time without a request after which a stream is closed and its transaction rolled back, seconds."""
    stored_texts: int = 1024
    """Maximum SQL texts that one stream may store."""
    stored_bytes: int = 4 * MIB
    """Maximum bytes of these texts together."""
    requests: int = MAX_REQUESTS
    """Maximum requests of one pipeline, and of those that wait for their turn on one WebSocket."""
    steps: int = MAX_STEPS
    """Maximum statements of one batch."""
    answer_bytes: int = 64 * MIB
    """Maximum bytes of the values in the answer to one request. A cursor has no such limit."""
    leader_wait_s: float = 10.0
    """Maximum wait of a request for a leader when there is none, or it is changing, seconds."""
    answer_wait_s: float = 60.0
    """Maximum wait of a follower for the leader's answer to a forwarded request, seconds."""
    frame_bytes: int = 32 * MIB
    """Maximum bytes of one message on a WebSocket."""
    connection_streams: int = 128
    """Maximum open streams on one WebSocket."""
    cursors: int = 16
    """Maximum open cursors on one WebSocket."""
    unread_s: float = 30.0
    """Time after which a WebSocket or a backup is cut off if its client reads nothing of an answer, seconds."""
    transfers: int = 4
    """Maximum backups and loads at once, of all databases."""
    load_bytes: int = 64 * 1024 * MIB
    """Maximum bytes of a file that is loaded; it is stored on disk until it is complete."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
