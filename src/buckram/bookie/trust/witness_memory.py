"""The memory of a bookie about its metadata store, and the file WITNESS that keeps it over restarts.

Not here: what is concluded from it (`bookie/trust/witness.py`); the format of the record
(`core/cluster/store_history.py`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Protocol

from buckram.core.cluster.store_history import HIGHEST_EPOCH, LONGEST_RECORD, Memory, encode_memory, parse_memory
from buckram.errors import CorruptStore, MalformedRecord
from buckram.runtime.disk.io_errors import passing
from buckram.seams import Disk, Stats, Write
from buckram.types import BookieId

log = logging.getLogger("buckram.bookie")
FILE = "WITNESS"
NEW_FILE = "WITNESS.new"


class FileWrite(Protocol):
    """Writes one small file of the data directory. Blocking; raises OSError."""

    def __call__(self) -> None: ...


class WriteReserve(Protocol):
    """Space that is kept for small files when the disk is full."""

    def write_in_reserve(self, write: FileWrite) -> None:
        """Run `write`, in the reserve if there is no other room."""
        ...


class WitnessMemory:
    """The newest memory (`value`) and whether it still has to be written to the file (`unsaved`)."""

    def __init__(self, disk: Disk, bookie_id: BookieId, reserve: WriteReserve, stats: Stats) -> None:
        self._disk, self._bookie_id, self._reserve = disk, bookie_id, reserve
        self.value = Memory()
        self.unsaved = False
        self._epoch_gauge = stats.gauge("buckram_bookie_metadata_epoch", "the highest epoch of metadata heard of")

    def load(self) -> None:
        """Read the file; without one, nothing is remembered. Raises CorruptStore if it is damaged."""
        self.value = _read(self._disk)

    def change(self, **fields: Any) -> None:
        """Replace fields in memory now; the next look at the store writes them to the file."""
        self.value, self.unsaved = replace(self.value, **fields), True

    def observe_epoch(self, epoch: int) -> bool:
        """Record an epoch of metadata that another member of the cluster has seen; False if it is not news."""
        if not self.value.epoch < epoch <= HIGHEST_EPOCH:
            return False
        self.change(heard=epoch)
        self._epoch_gauge.set(self.value.epoch)
        return True

    async def save(self, memory: Memory) -> bool:
        """Write `memory` to the file and adopt it, together with what changed in memory meanwhile.

        Returns False if there was no room for the file. The file then claims less than is true, which raises no alarm,
        and is written at the next look.
        """
        before = self.value
        memory = replace(memory, heard=max(memory.heard, before.heard))
        record = encode_memory(memory)
        try:
            await self._disk.offload(lambda: self._reserve.write_in_reserve(lambda: write_file(self._disk, record)))
            self.unsaved = False
        except OSError as error:
            if not passing(error):
                raise
            if not self.unsaved:
                log.warning(
                    "bookie %s: the file %s cannot be written now and is tried again: %s", self._bookie_id, FILE, error
                )
            self.unsaved = True
        now = self.value
        if now is not before:  # clients and admission changed it during the write
            newer = memory if now.contradiction is before.contradiction else now
            memory = replace(
                memory,
                heard=max(memory.heard, now.heard),
                settled=max(memory.settled, now.settled),
                contradiction=newer.contradiction,
            )
        self.value, self.unsaved = memory, self.unsaved or now is not before
        self._epoch_gauge.set(self.value.epoch)
        return not self.unsaved

    def postpone(self, error: OSError) -> None:
        """Leave the writing to the next look if the error is a shortage that passes; raise it otherwise."""
        if not passing(error):
            raise error
        self.unsaved = True
        log.warning("the metadata store's statements about this bookie cannot be saved now: %s", error)


def _read(disk: Disk) -> Memory:
    if FILE not in disk.names():
        return Memory()
    file = disk.open(FILE)
    try:
        record = file.read(0, min(file.size(), LONGEST_RECORD))
    finally:
        file.close()
    try:
        return parse_memory(FILE, record)
    except MalformedRecord as error:
        raise CorruptStore(
            f"{error}; the file says what the metadata store knew of this bookie. Remove it only when the store was "
            "not restored or replaced"
        ) from None


def write_file(disk: Disk, record: bytes, name: str = FILE) -> None:
    """Replace a file atomically: after a crash it is the old one or the new one. Blocking; raises OSError."""
    draft = f"{name}.new"
    if draft in disk.names():
        disk.remove(draft)
    file = disk.open(draft, create=True)
    try:
        disk.write_now([Write(file, 0, [record])])
    finally:
        file.close()
    disk.rename(draft, name)
    disk.sync_names()
