"""Connections that owe the head of a request: new ones, and those that sent a part of it. The oldest makes room.

Nobody knows who they are, so all of them together are bounded in number and in bytes. Not here: the size of one head,
and its time (`serve/http/connection.py`).
"""

from __future__ import annotations

from typing import Protocol

from buckram.serve.http.limits import HttpLimits


class Droppable(Protocol):
    """A connection that can be ended at once."""

    def cut_off(self) -> None:
        """End it, and forget what it has sent."""
        ...


class Heads:
    """All of one server."""

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
        """What all of them have sent."""
        return self._bytes

    def hold(self, connection: Droppable, size: int) -> None:
        """A connection has sent so many bytes of its head until now. The oldest are cut off where all have too many."""
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
        """The head is complete, or the connection is gone. Idempotent."""
        self._bytes -= self._sizes.pop(connection, 0)


__all__ = ["Droppable", "Heads"]
