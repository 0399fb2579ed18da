"""What clients of a gateway may use, all together and each."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.bounds import check_bounds
from buckram.serve.http.limits import KIB, MIB, HttpLimits

GIB = 1024 * MIB
HTTP_LIMITS = HttpLimits(body_bytes=16 * MIB, connections=12_000, half_heads=4096, drain_s=10)
"""More connections than tails, so that a gateway full of tails still answers."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway, beside those of its HTTP connections."""

    buffered_bytes: int = 256 * MIB
    """Of bodies and answers that are in memory at once, of all clients."""
    records_per_page: int = 10_000
    """Of one answer to a read."""
    page_bytes: int = 8 * MIB
    """Payload bytes after which such an answer ends; it has one record at least."""
    append_wait_s: float = 30.0
    """How long an append waits for its acknowledgement."""
    writer_idle_s: float = 60.0
    """A writer of a stream or ledger that nobody used for so long is closed, and its lease is free."""
    writers: int = 1_000
    """Streams, and ledgers, that may be written at once."""
    lease_wait_s: float = 10.0
    """How long a request waits for the lease of a gateway that is gone."""
    tails: int = 10_000
    """Open at once, of all streams."""
    tail_ring_bytes: int = 4 * MIB
    """Of the newest events of each stream that has tails, encoded. Who is further behind reads by itself."""
    tail_gather_s: float = 0.1
    """Events of so long share a write."""
    tail_readers: int = 64
    """Tails that may read by themselves at once; others wait for their turn."""
    stuck_s: float = 60.0
    """A client that takes nothing of an answer for so long is cut off."""
    heartbeat_s: float = 15.0
    """Without an event for so long a tail sends a comment, so that proxies keep the connection."""
    object_bytes: int = 64 * GIB
    """Of one object that is put."""
    object_namespaces: int = 64
    """Namespaces whose objects may be open at once; each has its index in memory. One that nobody asked for during
    `writer_idle_s` is closed."""
    databases: int = 200
    """That may be open at once for statements, unless more are in use; one that nobody used for five minutes is
    closed."""
    database_files: int = 4
    """Backups of databases, and files of which databases are made, at once."""
    database_bytes: int = 64 * GIB
    """Of a file of which a database is made; it is kept on the disk until all of it is there."""
    repeats: int = 10_000
    """Answers that are kept for requests that come again with the same Idempotency-Key."""
    repeat_bytes: int = 64 * KIB
    """Of one such answer; larger ones are not kept."""
    repeats_s: float = 24 * 3600.0
    """How long they are kept."""
    sessions: int = 10_000
    """Of browsers. Where there are more, the oldest of whoever has most ends."""
    sessions_of_principal: int = 100
    """Of one principal; his oldest ends where he has more."""
    session_s: float = 12 * 3600.0
    """How long a session counts."""

    def __post_init__(self) -> None:
        check_bounds(self, {"tail_gather_s": (0.0, 10.0)})


__all__ = ["HTTP_LIMITS", "GatewayLimits"]
