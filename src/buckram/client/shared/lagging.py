"""Members of this client's ledgers that were away and lack entries: they get them when they are back.

The writer of an open ledger copies them itself (`LaggingMembers`), from the moment the member is written to again. The
client remembers a ledger that was closed before (`LaggingLedgers`) for as long as the client lives. Metadata does not
change: a bookie that is gone for good is replaced by repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from buckram.client.shared.bookie_change import BookieChange
from buckram.client.shared.bookies import BookieWatcher
from buckram.core.backoff import LAGGING_MEMBER, Delays
from buckram.errors import BuckramError, HandleClosed, InvariantViolation, NoSuchLedger
from buckram.net.tasks import TaskScope
from buckram.types import BookieId, LedgerId

CopyMissing = Callable[[Collection[BookieId]], Awaitable[bool]]
"""Copies the entries that these bookies lack; returns whether all of them have everything then."""
CopyToMember = Callable[[BookieId], Awaitable[bool]]
"""Copies to one member what is confirmed when it is called; returns whether it has all of that then."""
_MOST = 10_000


class LaggingLedgers:
    """Closed ledgers with members that were away; `close()` forgets them, and then `cluster check` still names them."""

    def __init__(self, bookies: BookieWatcher) -> None:
        self._bookies = bookies
        self._ledgers: dict[LedgerId, tuple[tuple[BookieId, ...], CopyMissing]] = {}
        self._scope = TaskScope("lagging")
        self._busy = False
        bookies.on_change(self._changed)

    def __len__(self) -> int:
        return len(self._ledgers)

    def add(self, ledger_id: LedgerId, members: Collection[BookieId], copy_missing: CopyMissing) -> None:
        """The oldest is forgotten where there are too many."""
        if not members or self._scope.closed:
            return
        if len(self._ledgers) >= _MOST:
            del self._ledgers[next(iter(self._ledgers))]
        self._ledgers[ledger_id] = (tuple(members), copy_missing)
        self._look()

    async def close(self) -> None:
        self._ledgers.clear()
        await self._scope.close()

    def _changed(self, change: BookieChange) -> None:
        if change.appeared:
            self._look()

    def _look(self) -> None:
        if not self._busy and not self._scope.closed and self._due():
            self._busy = True
            self._scope.spawn(self._copy_all(), "copy")

    def _due(self) -> list[LedgerId]:
        there = self._bookies.bookies.writable
        return [ledger for ledger, (members, _) in self._ledgers.items() if any(b in there for b in members)]

    async def _copy_all(self) -> None:
        delays = Delays(LAGGING_MEMBER)
        try:
            while due := self._due():
                for ledger_id in due:
                    await self._one(ledger_id)
                if self._due():
                    await asyncio.sleep(delays.take())
        finally:
            self._busy = False

    async def _one(self, ledger_id: LedgerId) -> None:
        members, copy_missing = self._ledgers[ledger_id]
        there = [b for b in members if b in self._bookies.bookies.writable]
        try:
            done = await copy_missing(there)
        except (NoSuchLedger, HandleClosed):
            self._ledgers.pop(ledger_id, None)
            return
        except InvariantViolation:
            raise
        except BuckramError:
            return  # tried again
        if done:
            left = tuple(b for b in members if b not in there)
            if left:
                self._ledgers[ledger_id] = (left, copy_missing)
            else:
                self._ledgers.pop(ledger_id, None)


class LaggingMembers:
    """Of one writer: members that were away from the start, until they have what was confirmed meanwhile."""

    def __init__(self, away: Collection[BookieId], copy: CopyToMember, scope: TaskScope) -> None:
        self.left = dict.fromkeys(away)
        self._copy, self._scope = copy, scope
        self._under_way: dict[BookieId, None] = {}

    def returned(self, bookie: BookieId) -> None:
        """It is written to again."""
        if bookie in self.left and bookie not in self._under_way and not self._scope.closed:
            self._under_way[bookie] = None
            self._scope.spawn(self._work(bookie), "fill in")

    async def _work(self, bookie: BookieId) -> None:
        delays = Delays(LAGGING_MEMBER)
        try:
            while True:
                try:
                    if await self._copy(bookie):
                        self.left.pop(bookie, None)
                        return
                except HandleClosed:
                    return
                except InvariantViolation:
                    raise
                except BuckramError:
                    pass  # it went away again, or those that have the entries
                await asyncio.sleep(delays.take())
        finally:
            self._under_way.pop(bookie, None)


__all__ = ["LaggingLedgers", "LaggingMembers", "CopyMissing"]
