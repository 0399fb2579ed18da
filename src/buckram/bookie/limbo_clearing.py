"""Clears limbo after an operator confirms that the bookie's ledgers were repaired. The bookie must be stopped."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from pathlib import Path

from buckram.bookie.run import DISK_VARIABLE, open_disk
from buckram.bookie.storage import superblock
from buckram.bookie.storage.store import Store
from buckram.config import StoreConfig
from buckram.errors import CorruptStore, InvalidArgument
from buckram.runtime.production import production_runtime
from buckram.seams import Disk

_SEALED_S, _PAUSE_S = 120.0, 0.01


async def newest_loss(directory: str, config: StoreConfig, *, environment: Mapping[str, str]) -> int:
    """Return the number of the newest loss if the bookie is in limbo, else 0.

    Opens its store, which may find another loss. Raises like `clear_limbo`.
    """
    return await _open(directory, config, environment, None)


async def clear_limbo(directory: str, config: StoreConfig, loss: int, *, environment: Mapping[str, str]) -> int:
    """Clear limbo durably if `loss` is the newest one, and return that. Returns 0 if the bookie is not in limbo.

    Raises InvalidArgument (a newer loss, or no store), OSError (the bookie runs, the disk fails) or CorruptStore.
    """
    return await _open(directory, config, environment, loss)


async def _open(directory: str, config: StoreConfig, environment: Mapping[str, str], loss: int | None) -> int:
    if not Path(directory).is_dir():  # noqa: ASYNC240
        raise InvalidArgument(f"{directory}: no such directory; name the data directory of a bookie")
    disk = open_disk(directory, config.disk_mode, environment.get(DISK_VARIABLE, ""))
    try:
        disk.lock()
        return await _run(directory, disk, config, loss)
    finally:
        disk.close()


async def _sealed(store: Store) -> None:
    """Wait until every log file but the newest has a footer.

    Each start scans files without one, and would find their damaged blocks again.
    """
    async with asyncio.timeout(_SEALED_S):
        while (now := store.stats())["sealed_segments"] < now["segments"] - 1:
            if store.failed is not None:
                raise store.failed
            await asyncio.sleep(_PAUSE_S)


async def _run(directory: str, disk: Disk, config: StoreConfig, loss: int | None) -> int:
    runtime = production_runtime()
    try:
        if superblock.read_superblock(disk) is None:
            raise InvalidArgument(f"{directory}: this is not the data directory of a bookie")
        store = Store.open(disk, config, runtime.stats, runtime.rng)
    except CorruptStore as error:
        raise CorruptStore(f"{directory}: {error}") from error
    try:
        found = store.loss if store.limbo else 0
        if found and loss is not None:
            await _sealed(store)
            store.clear_limbo(loss)
    finally:
        await store.close()
    written = superblock.read_superblock(disk)
    if loss is not None and (written is None or written.limbo):
        raise OSError(errno.EIO, f"{directory}: the disk did not accept the change; nothing was changed")
    return found
