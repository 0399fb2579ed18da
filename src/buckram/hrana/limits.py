"""What a client of the database server may use."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.http.limits import MIB


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
    answer_bytes: int = 64 * MIB
    """Of the values in the answer to one request. A cursor has no such limit."""
    leader_wait_s: float = 10.0
    """How long a request waits for a leader when there is none, or it is changing."""
    answer_wait_s: float = 60.0
    """How long a follower waits for the leader's answer to a request that it sent on."""


__all__ = ["HranaLimits"]
