"""Marks ledgers of which this bookie lacks entries, so that replicators copy them to it from other bookies.

A mark is made again now and then while entries are still lacking: a worker that does not look at every entry may have
taken it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from buckram.metadata.records.underreplication import Underreplication
from buckram.seams import Clock, MetadataStore
from buckram.types import BookieId, LedgerId

REMARK_S = 600.0
"""Time after which a ledger that still lacks entries is marked again, seconds."""


class UnderreplicationMarks:
    """The marks of one bookie for one reason."""

    def __init__(self, metadata: MetadataStore, bookie_id: BookieId, clock: Clock) -> None:
        self._tree = Underreplication(metadata.keys, metadata.root, bookie_id)
        self._bookie_id, self._clock = bookie_id, clock
        self._made_at: dict[LedgerId, float] = {}

    async def mark(self, ledgers: Iterable[LedgerId]) -> None:
        """Mark those of `ledgers` that were not marked lately. Raises MetadataError; then call it again."""
        now = asyncio.get_running_loop().time()
        due = [ledger for ledger in ledgers if now - self._made_at.get(ledger, -REMARK_S) >= REMARK_S]
        if due:
            await self._tree.prepare()
        for ledger in due:
            await self._tree.mark(ledger, [self._bookie_id], self._clock.wall_us() // 1000)
            self._made_at[ledger] = now

    def keep(self, ledgers: Collection[LedgerId]) -> None:
        """Forget all other ledgers: they lack nothing any more."""
        self._made_at = {ledger: at for ledger, at in self._made_at.items() if ledger in ledgers}
