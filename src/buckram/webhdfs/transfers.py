"""How many files go in or out of a gateway at once. Not here: how they are sent (`http/pieces.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from buckram.webhdfs.java_classes import STANDBY
from buckram.webhdfs.problems import RemoteProblem


class Transfers:
    """Counts files that go in or out; who would go over the limit is told to come again, or elsewhere."""

    def __init__(self, limit: int) -> None:
        self.limit, self.now = limit, 0

    def begin(self) -> Callable[[], None]:
        """Count one; the value ends it, once however often it is called. Raises RemoteProblem."""
        if self.now >= self.limit:
            raise RemoteProblem(
                STANDBY,
                f"{self.now} files are read or written through this gateway, the limit is {self.limit}: try again, or "
                "use another gateway",
            )
        self.now += 1
        left = [self]

        def end() -> None:
            if left:
                left.pop().now -= 1

        return end

    @contextmanager
    def one(self) -> Iterator[None]:
        """The same for a block."""
        end = self.begin()
        try:
            yield
        finally:
            end()


__all__ = ["Transfers"]
