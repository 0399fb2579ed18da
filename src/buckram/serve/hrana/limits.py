"""What a client of the database server may use."""

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
    """Open at once, of all clients and databases."""
    stream_idle_s: float = 10.0
    """A stream without a request for so long is closed, and its transaction rolled back."""
    stored_texts: int = 1024
    """SQL texts that one stream may have stored."""
    stored_bytes: int = 4 * MIB
    """Their bytes together."""
    requests: int = MAX_REQUESTS
    """Of one pipeline; those of a WebSocket that wait for their turn."""
    steps: int = MAX_STEPS
    """Statements of one batch."""
    answer_bytes: int = 64 * MIB
    """Of the values in the answer to one request. A cursor has no such limit."""
    leader_wait_s: float = 10.0
    """How long a request waits for a leader when there is none, or it is changing."""
    answer_wait_s: float = 60.0
    """How long a follower waits for the leader's answer to a request that it sent on."""
    frame_bytes: int = 32 * MIB
    """Of one message on a WebSocket."""
    connection_streams: int = 128
    """Open at once on one WebSocket."""
    cursors: int = 16
    """Open at once on one WebSocket."""
    unread_s: float = 30.0
    """A WebSocket, or a backup, whose client takes nothing of an answer for so long is cut off."""
    transfers: int = 4
    """Backups and loads at once, of all databases."""
    load_bytes: int = 64 * 1024 * MIB
    """Of a file that is loaded; it is kept on the disk until all of it is there."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


__all__ = ["HTTP_LIMITS", "HranaLimits"]
