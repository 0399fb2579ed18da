"""Limits of an HTTP server: everything that a client can send is bounded here."""

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
"""Maximum bytes of a body, or of a WebSocket's first message, before its sender is authenticated: enough for a login.
"""


def option_of(name: str) -> str:
    """Return how an operator raises a limit, as a part of the error about it."""
    return f"limit: `--limit {name}=` of the server"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one server. The error of a request beyond one names the value, the limit and what to do."""

    body_bytes: int = 64 * MIB
    """Maximum bytes of a body that is read as a whole (`body.py:read_body`); uploads in pieces have limits of their
    own.
    """
    body_bytes_per_s: int = KIB
    """Minimum rate of a body that is read as a whole, after `patience_s`; a slower one is given up."""
    head_bytes: int = 64 * KIB
    """Maximum bytes of request line and headers together."""
    headers: int = 256
    """Maximum headers of one request: each takes more memory than its bytes."""
    half_heads: int = 2048
    """Maximum connections, new ones too, without a complete request head; the oldest is cut off beyond."""
    half_head_bytes: int = 4 * MIB
    """Maximum bytes of incomplete heads of all connections together; the oldest is cut off beyond."""
    patience_s: float = 10.0
    """Time limit of a whole head and of a TLS handshake, and time before the minimum rate of a body applies, seconds.
    """
    idle_s: float = 75.0
    """Time for which an idle connection stays open, seconds: longer than clients' connection pools keep theirs."""
    connections: int = 2048
    """Maximum open connections."""
    discarded_bytes: int = 16 * MIB
    """Maximum bytes of a body that arrive after its request was answered: they are read and dropped, so that the
    client sees the answer, then the connection is closed.
    """
    drain_s: int = 10
    """Time that a stopping server gives requests in progress, seconds."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
