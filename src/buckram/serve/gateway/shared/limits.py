"""Limits of the clients of a gateway, each and all together."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.bounds import check_bounds
from buckram.serve.http.limits import KIB, MIB, HttpLimits

GIB = 1024 * MIB
HTTP_LIMITS = HttpLimits(body_bytes=16 * MIB, connections=12_000, half_heads=4096, drain_s=10)
"""Default limits of HTTP. There are more connections than tails, so that a gateway full of tails still answers."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway, beside those of its HTTP connections."""

    buffered_bytes: int = 256 * MIB
    """Maximum bytes of bodies and answers in memory at once, of all clients."""
    records_per_page: int = 10_000
    """Maximum records in one answer to a read."""
    page_bytes: int = 8 * MIB
    """Payload bytes after which such an answer ends; it has at least one record."""
    append_wait_s: float = 30.0
    """Maximum wait of an append for its acknowledgement, seconds."""
    writer_idle_s: float = 60.0
    """Time after which an unused writer of a stream or ledger is closed and its lease released, seconds."""
    writers: int = 1_000
    """Maximum streams, and ledgers, that may be written at once."""
    lease_wait_s: float = 10.0
    """Maximum wait of a request for the lease of a gateway that is gone, seconds."""
    tails: int = 10_000
    """Maximum open tails, of all streams."""
    tail_ring_bytes: int = 4 * MIB
    """Bytes of the newest encoded events that are kept for each stream with tails. A tail further behind reads by
    itself.
    """
    tail_gather_s: float = 0.1
    """Time for which events are gathered into one write, seconds."""
    tail_readers: int = 64
    """Maximum tails that may read by themselves at once; others wait for their turn."""
    stuck_s: float = 60.0
    """Time after which a client that reads nothing of an answer is cut off, seconds."""
    heartbeat_s: float = 15.0
    """Time without an event after which a tail sends a comment, so that proxies keep the connection, seconds."""
    object_bytes: int = 64 * GIB
    """Maximum bytes of one object that is put."""
    object_namespaces: int = 64
    """Maximum namespaces whose objects may be open at once; each has its index in memory. One that is not used for
    `writer_idle_s` is closed.
    """
    databases: int = 200
    """Maximum databases that are open for statements, unless more are in use; one not used for five minutes
    is closed.
    """
    database_files: int = 4
    """Maximum backups of databases, and loads of files into databases, at once."""
    database_bytes: int = 64 * GIB
    """Maximum bytes of a file that is loaded into a database; it is stored on disk until it is complete."""
    repeats: int = 10_000
    """Maximum answers kept for repetitions of requests with the same Idempotency-Key."""
    repeat_bytes: int = 64 * KIB
    """Maximum bytes of one such answer; larger ones are not kept."""
    repeats_s: float = 24 * 3600.0
    """Time for which they are kept, seconds."""
    sessions: int = 10_000
    """Maximum sessions of browsers. Beyond it, the principal with most sessions loses the oldest of his."""
    sessions_of_principal: int = 100
    """Maximum sessions of one principal; beyond it, his oldest one ends."""
    session_s: float = 12 * 3600.0
    """Lifetime of a session, seconds."""

    def __post_init__(self) -> None:
        check_bounds(self, {"tail_gather_s": (0.0, 10.0)})
