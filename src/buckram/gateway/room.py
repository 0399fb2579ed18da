"""Room: how many bytes of bodies and answers may be in memory at once, of all clients of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from buckram.http.problems import HttpProblem


class Room:
    """Counts what is in memory; who would go over the limit is told to come later, and nothing of it is read."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold `size` bytes meanwhile. Raises HttpProblem 503 where there is no room for them."""
        if self.used + size > self.limit:
            raise HttpProblem(
                503,
                "GATEWAY_FULL",
                f"{self.used} bytes of bodies and answers are in memory, the limit is {self.limit}: send the request "
                "again later, or to another gateway",
                headers={"Retry-After": "1"},
                value=self.used,
                limit=self.limit,
                do="send the request again later, or to another gateway",
            )
        self.used += size
        try:
            yield
        finally:
            self.used -= size


__all__ = ["Room"]
