"""Limit of the files that are read and written through a gateway at once.

Not here: how they are sent (`serve/http/streamed_answers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from buckram.core.tenants.fair_share import FairShare
from buckram.serve.webhdfs.problems import RemoteProblem
from buckram.serve.webhdfs.protocol_names import STANDBY


class TransferLimit:
    """Counts running transfers of files; beyond the limit new ones are refused with "try again, or another gateway"."""

    def __init__(self, limit: int) -> None:
        self.share = FairShare(limit)

    @property
    def now(self) -> int:
        """Number of running transfers."""
        return self.share.total

    def begin(self, holder: str) -> Callable[[], None]:
        """Count one transfer of a principal (`holder_of`) and return the function that ends it, which is idempotent.

        Raises RemoteProblem if there are too many.
        """
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
