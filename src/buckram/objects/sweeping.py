"""Sweeping, by the process that leads the index: expired objects go, dead ledgers are deleted, sparse packs rewritten.

Not here: which ledgers are dead or sparse (`core/objects/space.py`).
"""

from __future__ import annotations

import asyncio
import logging

from buckram.client.client import Client
from buckram.core.objects.rows import Extent, ObjectRow
from buckram.errors import BuckramError, CommandRefused, HandleClosed, ReplicaStopped
from buckram.objects.data import Packs
from buckram.objects.index_client import IndexClient
from buckram.objects.reading import Readers
from buckram.streams.shared.ledgers import discard, drop_ledger, read_intent
from buckram.streams.shared.metadata import StreamStore
from buckram.types import LedgerId

_log = logging.getLogger("buckram.objects")
SWEEP_S = 5.0
GRACE_S = 30.0
"""A dead ledger is kept for so long, because somebody may still read an object that was there."""
SILENT_US = 86_400 * 1_000_000
"""A pack whose writer did not seal it for so long is sealed for it."""
SPARSE = 0.5
"""A pack of which at most this share is live is rewritten."""
_AT_ONCE = 64


class Sweeper:
    """Sweeps one namespace's objects while this process leads their index."""

    def __init__(
        self, client: Client, streams: StreamStore, uid: str, index: IndexClient, packs: Packs, readers: Readers
    ) -> None:
        self._client, self._streams, self._uid = client, streams, uid
        self._index, self._packs, self._readers = index, packs, readers
        self._loop = asyncio.get_running_loop()
        self._dead_since: dict[LedgerId, float] = {}

    async def run(self) -> None:
        """Sweep now and then, for ever; ends when the index is closed or stops."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if not self._index.leads:
                self._dead_since.clear()
                continue
            try:
                await self.sweep()
            except (HandleClosed, ReplicaStopped):
                return
            except BuckramError as error:
                _log.warning("objects of %s: sweeping is tried again: %s", self._index.machine.name, error)

    async def sweep(self, grace_s: float = GRACE_S) -> int:
        """Sweep once; returns the number of ledgers deleted."""
        index = self._index
        now_us = self._client.services.clocks.now()
        due = await index.look(lambda state: state.next_expiry_us)
        while due is not None and due <= now_us and await index.execute(["expire"]):
            due = await index.look(lambda state: state.next_expiry_us)
        for ledger in await index.look(lambda state: state.space.open_since(now_us - SILENT_US)):
            await index.execute(["seal", ledger, 0])
        for ledger in await index.look(lambda state: state.space.sparse(SPARSE)):
            await self._rewrite(ledger)
        return await self._delete(grace_s)

    async def _delete(self, grace_s: float) -> int:
        """Delete the ledgers that are dead for `grace_s` seconds."""
        dead = await self._index.look(lambda state: list(state.space.dead))
        now = self._loop.time()
        self._dead_since = {ledger: self._dead_since.get(ledger, now) for ledger in dead}
        gone = [ledger for ledger, since in self._dead_since.items() if now - since >= grace_s]
        for begin in range(0, len(gone), _AT_ONCE):
            part = gone[begin : begin + _AT_ONCE]
            for ledger in part:
                intent = await read_intent(self._streams, self._uid, ledger)
                if intent is not None:
                    await discard(self._client, self._streams, self._uid, intent)
                else:
                    await drop_ledger(self._client, ledger)
            await self._index.execute(["gone", part])
        return len(gone)

    async def _rewrite(self, ledger: LedgerId) -> None:
        """Copy what is live in a pack into the present one, so that the whole ledger can go."""
        rows = await self._index.look(lambda state: state.in_ledger(ledger))
        for begin in range(0, len(rows), _AT_ONCE):
            await asyncio.gather(*(self._move(name, row, ledger) for name, row in rows[begin : begin + _AT_ONCE]))

    async def _move(self, name: str, row: ObjectRow, ledger: LedgerId) -> None:
        if any(extent.chunk for extent in row.extents):
            return  # A ledger of its own has nothing to give back before the object goes.
        extents: list[Extent] = []
        for number, extent in enumerate(row.extents):
            if extent.ledger != ledger:
                extents.append(extent)
                continue
            start = sum(one.length for one in row.extents[:number])
            pieces = self._readers.pieces(name, row, start, start + extent.length)
            extents.append(await self._packs.put(b"".join([piece async for piece in pieces])))
        try:
            await self._index.execute(["moved", name, row.version, extents])
        except CommandRefused as error:
            _log.warning("objects of %s: %s was not moved: %s", self._index.machine.name, name, error)


__all__ = ["Sweeper"]
