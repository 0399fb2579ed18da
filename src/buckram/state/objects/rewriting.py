"""Rewriting sparse packs: their live objects are copied into the present pack, so that the whole ledger can go.

Not here: deleting ledgers (`state/objects/garbage_collection.py`), which packs are sparse
(`core/objects/ledger_use.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container

from buckram.core.objects.rows import Extent, ObjectRow
from buckram.errors import CommandRefused, ObjectDamaged
from buckram.state.objects.index_client import IndexClient
from buckram.state.objects.reading import ObjectReaders
from buckram.state.objects.writing import Packs
from buckram.types import LedgerId

_log = logging.getLogger("buckram.objects")
SPARSE = 0.5
"""Maximum live share of a pack that is rewritten."""
_AT_ONCE = 64
_NAMES = 5_000
"""Number of names examined in one turn of the event loop."""


class Rewriter:
    """Rewrites the sparse packs of one namespace."""

    def __init__(self, index: IndexClient, packs: Packs, readers: ObjectReaders) -> None:
        self._index, self._packs, self._readers = index, packs, readers
        self._tried: dict[LedgerId, int] = {}
        """Packs that could not be emptied, with the references to them then: parts of uploads stay where they are."""

    async def rewrite(self, *, again: bool = False) -> None:
        """Rewrite the packs that are sparse now; `again`: also those that could not be emptied before."""
        sparse = await self._index.look(lambda state: state.space.sparse(SPARSE))
        ledgers = {one: count for one, count in sparse.items() if again or self._tried.get(one) != count}
        if not ledgers:
            return
        after, more = "", True
        while more:
            rows, after = await self._page(ledgers, after)
            more = bool(after)
            # Neighbours in a pack one after another, so that each of its entries is read once.
            rows.sort(key=lambda item: item[1].extents[:1])
            for begin in range(0, len(rows), _AT_ONCE):
                part = rows[begin : begin + _AT_ONCE]
                await asyncio.gather(*(self._move(name, row, ledgers) for name, row in part))
        left = await self._index.look(lambda state: state.space.sparse(SPARSE))
        self._tried = {one: count for one, count in left.items() if one in ledgers or one in self._tried}

    async def _page(self, ledgers: Container[LedgerId], after: str) -> tuple[list[tuple[str, ObjectRow]], str]:
        return await self._index.look(lambda state: state.in_ledgers(ledgers, after, _NAMES))

    async def _move(self, name: str, row: ObjectRow, ledgers: Container[LedgerId]) -> None:
        if any(extent.chunk for extent in row.extents):
            return  # A ledger of its own has nothing to give back before the object goes.
        extents: list[Extent] = []
        start = 0
        try:
            for extent in row.extents:
                if extent.ledger in ledgers:
                    pieces = self._readers.pieces(name, row, start, start + extent.length)
                    extents.append(await self._packs.put(b"".join([piece async for piece in pieces])))
                else:
                    extents.append(extent)
                start += extent.length
            await self._index.execute(["moved", name, row.version, extents])
        except (CommandRefused, ObjectDamaged) as error:
            _log.warning("objects of %s: %s was not moved: %s", self._index.machine.name, name, error)
