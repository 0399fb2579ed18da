"""Whose turn it is: deficit round robin between tenants that wait, by the bytes of what they want. Pure.

Not here: what is held back and when it goes on (`bookie/service/turnstile.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
QUANTUM = 64 * 1024


class Turns(Generic[T]):
    """Tenants take turns in the order in which they began to wait; each turn adds QUANTUM bytes to what one may take.

    A tenant whose turn is over goes to the end, and one with nothing left loses what it saved up. If there is no room
    left in the middle of a turn, that turn goes on first when there is.
    """

    def __init__(self) -> None:
        self._deficits: dict[T, int] = {}
        self._interrupted: T | None = None
        """The first one, if it is in the middle of its turn."""

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

        `next_size` is the size of what the tenant wants next; None: nothing, or it may not now, and it leaves. At
        least one is served however large it is, or nothing would move.
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
