"""Replicas that are behind: adds of a ledger that its quorum has and some bookie has not answered yet.

An add is acknowledged by Qa bookies; the others get it over their connections a little later, as long as those live.
So the end of a client waits, a bounded time, for the copies of the ledgers that it has sealed: cut off at once, the
slowest bookie would lack entries for good, and nobody would know before an audit.
"""

from __future__ import annotations

import asyncio


class Copies:
    """The unanswered copies of one ledger's sender. It is in `pending` while copies of a complete ledger are on their
    way."""

    __slots__ = ("_answered", "_pending", "unanswered")

    def __init__(self, pending: dict[Copies, None]) -> None:
        self._pending = pending
        self._answered: asyncio.Event | None = None
        self.unanswered = 0
        """Entries, counted once for each bookie that they were sent to."""

    def answered(self, count: int) -> None:
        """Take note of copies that were stored or failed for good."""
        self.unanswered -= count
        if not self.unanswered and self._answered is not None:
            self._pending.pop(self, None)
            self._answered.set()

    def complete(self) -> None:
        """Expect the outstanding copies from now on: the ledger is sealed, and its sender is no longer looked after."""
        if self.unanswered:
            self._event()
            self._pending[self] = None

    async def wait(self, timeout_s: float) -> None:
        """Wait until every bookie has answered all that it was sent, but not longer than this."""
        if self.unanswered:
            answered = self._event()
            try:
                async with asyncio.timeout(timeout_s):
                    await answered.wait()
            except TimeoutError:
                self._pending.pop(self, None)

    def _event(self) -> asyncio.Event:
        """Set once everything is answered."""
        if self._answered is None or self._answered.is_set():
            self._answered = asyncio.Event()
        return self._answered


__all__ = ["Copies"]
