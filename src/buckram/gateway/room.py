"""Room: how many bytes of bodies and answers may be in memory at once, of all clients of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from buckram.http.problems import full


class Held:
    """What one request has in memory: `add` more, and `release` all of it. From `Room.held`."""

    def __init__(self, room: Room) -> None:
        self._room, self._size = room, 0

    def add(self, size: int) -> None:
        """Hold so many bytes more. Raises HttpProblem 503 where there is no room for them."""
        self._room.take(size)
        self._size += size

    def count(self, size: int) -> None:
        """Hold so many bytes more that are there already, whether there is room for them or not."""
        self._room.used += size
        self._size += size

    def release(self) -> None:
        """Hold nothing any more. Idempotent."""
        self._room.used -= self._size
        self._size = 0


class Room:
    """Counts what is in memory; who would go over the limit is told to come later, and nothing of it is read."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def held(self) -> Held:
        """Room that is held piece by piece, until it is released."""
        return Held(self)

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold `size` bytes meanwhile. Raises HttpProblem 503."""
        held = self.held()
        held.add(size)
        try:
            yield
        finally:
            held.release()

    def take(self, size: int) -> None:
        """Count so many bytes more. Raises HttpProblem 503 where there is no room for them."""
        if self.used + size > self.limit:
            what = f"{self.used} bytes of bodies and answers are in memory"
            do = "send the request again later, or to another gateway"
            raise full("GATEWAY_FULL", what, self.used, self.limit, option="buffered_bytes", do=do, retry_after_s=1)
        self.used += size


__all__ = ["Held", "Room"]
