"""Writes the superblock while a store is open, one version after the other.

Not here: what it lists (`bookie/storage/store_state.py`); its format (`bookie/storage/superblock.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.superblock import Superblock, write_superblock


class SuperblockChange(Protocol):
    """Changes the store's state in memory and returns the superblock fields that this state does not show.

    It is called right before the superblock is taken from memory, with no await in between.
    """

    def __call__(self) -> dict[str, Any]: ...


def no_change() -> dict[str, Any]:
    """Write the superblock for what is in memory already."""
    return {}


class SuperblockWriter:
    """Every method raises OSError if the superblock cannot be written; the one before is then still valid."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self.lock = asyncio.Lock()
        """Held from the snapshot of what is in memory until the superblock with it is durable."""

    async def publish(self, change: SuperblockChange = no_change) -> None:
        """Apply `change` in memory and write a superblock of the result."""
        async with self.lock:
            block = self._state.next_superblock(**change())
            await self.write(block)

    async def publish_clean(self) -> None:
        """Write the last superblock of this process: it records where every log ends and that the stop was orderly."""
        state = self._state
        block = state.next_superblock(clean=True)
        ends = {one.seq: one.log_end for one in state.segments}
        segments = tuple(replace(entry, log_end=ends.get(entry.seq, 0)) for entry in block.segments)
        await self.write(replace(block, segments=segments))
        await state.disk.offload(state.reserve.make)

    async def write(self, block: Superblock) -> None:
        """Write `block`, in the reserve if the disk is full. The caller holds `lock` or is the only one left."""
        state = self._state
        await state.disk.offload(lambda: state.reserve.run(partial(write_superblock, state.disk, block)))
        state.superblock = block
