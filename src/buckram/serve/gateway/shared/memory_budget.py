"""Room: limit of the bytes of bodies and answers in memory at once, of all clients of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from buckram.core.tenants.fair_share import FairShare
from buckram.serve.http.problems import full


class MemoryReservation:
    """Memory that one request holds: `add` more, and `release` all of it. Made by `MemoryBudget.held`."""

    def __init__(self, room: MemoryBudget, holder: str) -> None:
        self._room, self._holder, self._size = room, holder, 0

    def add(self, size: int) -> None:
        """Hold so many bytes more. Raises HttpProblem 503 where there is no room for them."""
        self._room.check(self._holder, size)
        self.count(size)

    def count(self, size: int) -> None:
        """Hold so many bytes more that are there already, whether there is room for them or not."""
        self._room.share.take(self._holder, size)
        self._size += size

    def release(self) -> None:
        """Hold nothing any more. Idempotent."""
        self._room.share.give(self._holder, self._size)
        self._size = 0


class MemoryBudget:
    """Counts the bytes in memory. Beyond the limit a request gets 503 before anything of it is read.

    Holders are principals (`holder_of`), each with a share, so that no single one takes all of it.
    """

    def __init__(self, limit: int) -> None:
        self.share = FairShare(limit)

    @property
    def used(self) -> int:
        """Bytes that are in memory."""
        return self.share.total

    def held(self, holder: str) -> MemoryReservation:
        """Room that is held piece by piece, until it is released."""
        return MemoryReservation(self, holder)

    @contextmanager
    def holding(self, holder: str, size: int) -> Iterator[None]:
        """Hold `size` bytes meanwhile. Raises HttpProblem 503."""
        held = self.held(holder)
        held.add(size)
        try:
            yield
        finally:
            held.release()

    def check(self, holder: str, size: int) -> None:
        """Raise HttpProblem 503 if there is no room for this many bytes more."""
        share = self.share
        if not share.has_room(holder, size):
            what = share.said(holder, "bytes of bodies and answers are in memory")
            do = "send the request again later, or to another gateway"
            raise full("GATEWAY_FULL", what, self.used, share.limit, option="buffered_bytes", do=do, retry_after_s=1)


__all__ = ["MemoryReservation", "MemoryBudget"]
