"""Turns of tenants that wait: deficit round robin, by the bytes of their requests. Pure.

Not here: holding requests back and letting them go on (`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
QUANTUM = 64 * 1024


class Turns(Generic[T]):
    """Tenants take turns in the order in which they began to wait; each turn adds QUANTUM bytes to what one may take.

    A tenant whose turn is over goes to the end, and one with no request left loses its saved bytes. A turn that is
    interrupted because the room is used up goes on first when there is room again.
    """

    def __init__(self) -> None:
        self._deficits: dict[T, int] = {}
        self._interrupted: T | None = None
        """The first tenant, if it is in the middle of its turn; None if it is not."""

    def __len__(self) -> int:
        return len(self._deficits)

    def __contains__(self, tenant: T) -> bool:
        return tenant in self._deficits

    def wait(self, tenant: T) -> None:
        self._deficits.setdefault(tenant, 0)

    def leave(self, tenant: T) -> None:
        self._deficits.pop(tenant, None)
        if self._interrupted == tenant:
            self._interrupted = None

    def serve(self, room: int, next_size: Callable[[T], int | None], take: Callable[[T], None]) -> int:
        """Let tenants take, one after the other, until `room` bytes are used up. Returns the bytes that are left.

        `next_size` gives the size of a tenant's next request; None: it has none, or may not go on now, and leaves. At
        least one request is served however large it is, or none would ever be.
        """
        served = False
        while self._deficits and (room > 0 or not served):
            tenant = next(iter(self._deficits))
            goes_on, self._interrupted = self._interrupted == tenant, None
            saved = self._deficits[tenant] + (0 if goes_on else QUANTUM)
            size = next_size(tenant)
            while size is not None and size <= saved and (room > 0 or not served):
                take(tenant)
                served = True
                saved -= size
                room -= size
                size = next_size(tenant)
            if size is not None and size <= saved:
                self._deficits[tenant], self._interrupted = saved, tenant
                continue
            del self._deficits[tenant]
            if size is not None:
                self._deficits[tenant] = saved
        return room
