"""Connections that have not sent a complete request head yet, new ones included. Beyond a limit the oldest is cut off.

Their senders are unknown, so all of them together are bounded in number and in bytes. Not here: the size of one head,
and its time (`serve/http/connection.py`).
"""

from __future__ import annotations

from typing import Protocol

from buckram.serve.http.limits import HttpLimits


class Droppable(Protocol):
    """A connection that can be ended at once."""

    def cut_off(self) -> None:
        """Abort the connection, and drop what it has sent."""
        ...


class Heads:
    """All such connections of one server."""

    def __init__(self, limits: HttpLimits) -> None:
        self._most = limits.half_heads
        # Whatever a single head may have, some fit.
        self._most_bytes = max(limits.half_head_bytes, 4 * limits.head_bytes)
        self._sizes: dict[Droppable, int] = {}
        """By connection, the oldest first: the bytes of its head that are there."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def held_bytes(self) -> int:
        """Bytes that these connections have sent in total."""
        return self._bytes

    def hold(self, connection: Droppable, size: int) -> None:
        """Record the bytes of its head that a connection has sent so far; cut off the oldest beyond the limits."""
        self._bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while len(self._sizes) > self._most or self._bytes > self._most_bytes:
            self.make_room()

    def make_room(self) -> bool:
        """Cut off the oldest; return whether there was one."""
        oldest = next(iter(self._sizes), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.cut_off()
        return True

    def leave(self, connection: Droppable) -> None:
        """Stop counting a connection: its head is complete, or it closed. Idempotent."""
        self._bytes -= self._sizes.pop(connection, 0)


__all__ = ["Droppable", "Heads"]
