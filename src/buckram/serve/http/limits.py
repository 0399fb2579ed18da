"""What one client may ask of an HTTP server. Everything that a client can send has a limit here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckram.bounds import check_bounds

KIB, MIB = 1024, 1024 * 1024
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "body_bytes": (1, 2**32),
    "head_bytes": (KIB, 16 * MIB),
    "headers": (16, 100_000),
    "half_heads": (1, 1_000_000),
    "half_head_bytes": (KIB, 2**32),
    "connections": (1, 1_000_000),
    "drain_s": (0, 3600),
}


LOGIN_BYTES = 8 * KIB
"""Of a body, or of the first message on a WebSocket, whose sender is not known yet: nobody needs more to log in."""


def option_of(name: str) -> str:
    """How an operator raises a limit that an error is about."""
    return f"limit: `--limit {name}=` of the server"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one server. What goes beyond one is answered with the value, the limit and what to do."""

    body_bytes: int = 64 * MIB
    """Of a body that is read as a whole (`body.py:read_body`); uploads in pieces have limits of their own."""
    body_bytes_per_s: int = KIB
    """A body that is read as a whole and comes more slowly than this, after `patience_s`, is given up."""
    head_bytes: int = 64 * KIB
    """Of request line and headers together."""
    headers: int = 256
    """Of one request: each takes more memory than its bytes."""
    half_heads: int = 2048
    """Connections, new ones too, that owe the head of a request; the oldest is cut off where there are more."""
    half_head_bytes: int = 4 * MIB
    """Of heads that are not complete, of all connections; the oldest is cut off where they have more."""
    patience_s: float = 10.0
    """For a whole head, for the handshake of TLS, and before a body's rate counts."""
    idle_s: float = 75.0
    """How long a connection may stay open between requests: longer than the pools of clients keep theirs."""
    connections: int = 2048
    """Open at once."""
    discarded_bytes: int = 16 * MIB
    """Of a body that comes after its request was answered: that much is read and dropped, so that the client sees the
    answer, then the connection is closed."""
    drain_s: int = 10
    """What a server that stops gives to requests that are being served."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


__all__ = ["LOGIN_BYTES", "HttpLimits", "option_of"]
