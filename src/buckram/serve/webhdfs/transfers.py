"""How many files go in or out of a gateway at once. Not here: how they are sent (`serve/http/pieces.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from buckram.core.security.fair_share import FairShare
from buckram.serve.webhdfs.java_classes import STANDBY
from buckram.serve.webhdfs.problems import RemoteProblem


class Transfers:
    """Counts files that go in or out; who would go over the limit is told to come again, or elsewhere."""

    def __init__(self, limit: int) -> None:
        self.share = FairShare(limit)

    @property
    def now(self) -> int:
        """How many there are."""
        return self.share.total

    def begin(self, holder: str) -> Callable[[], None]:
        """Count one of who asks (`holder_of`); the value ends it, once however often it is called. RemoteProblem."""
        if not self.share.has_room(holder):
            raise RemoteProblem(
                STANDBY,
                f"{self.share.said(holder, 'files are read or written through this gateway')}; the limit is "
                f"{self.share.limit}: try again, or use another gateway",
            )
        self.share.take(holder)
        left = [self.share]

        def end() -> None:
            if left:
                left.pop().give(holder)

        return end

    @contextmanager
    def one(self, holder: str) -> Iterator[None]:
        """The same for a block."""
        end = self.begin(holder)
        try:
            yield
        finally:
            end()


__all__ = ["Transfers"]
