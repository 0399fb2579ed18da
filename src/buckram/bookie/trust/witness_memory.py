"""The memory of a bookie about its metadata store: the files WITNESS and DELETED.<number>, which keep it over restarts.

WITNESS has the epochs and ids that the bookie saw. The other files are its own record of the deletions that it followed
and of the ids that were given, because a store that was restored knows neither. The newest one is replaced as a whole,
before what it names is deleted; a full one is followed by another, and beyond `MOST_FILES` the oldest goes: that is the
oldest deletions, which a backup holds.

Not here: what is concluded from it, and when it is written (`bookie/trust/witness.py`); the format of the record
(`core/cluster/store_history.py`); telling the store (`metadata/maintain/acceptance.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from buckram.core.cluster.store_history import HIGHEST_EPOCH, LONGEST_RECORD, Memory, encode_memory, parse_memory
from buckram.core.ledgers.deletions import NONE_DELETED, Deleted, bucket_of, decode_file, encode_file
from buckram.errors import CorruptStore, MalformedRecord
from buckram.runtime.disk.io_errors import passing
from buckram.seams import Disk, Stats, Write
from buckram.types import BookieId, LedgerId

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


PREFIX = "DELETED."
FILE_BYTES = 64 * 1024
"""Size of one file from which on the next record goes into a new file, bytes."""
MOST_FILES = 64
AHEAD = 1024
"""Number of ids by which the recorded bound runs ahead of the ids that were given, so that it is rarely written."""


class DeletionMemory:
    """`load` once, before anything else. For one task at a time."""

    def __init__(self, disk: Disk, reserve: WriteReserve) -> None:
        self._disk, self._reserve = disk, reserve
        self._number = 1
        self._newest: dict[int, Deleted] = {}
        self._next_id: LedgerId = 0
        self._unwritten = False
        """True if the file lacks something of `_newest`, or a bound of ids, because the disk was full."""

    @property
    def next_id(self) -> LedgerId:
        """Return a bound that no id had reached when the store was asked last; it may be too high by `AHEAD`."""
        return self._next_id

    def load(self) -> None:
        """Read the newest file. Blocking."""
        numbers = self._numbers()
        if numbers:
            self._number = numbers[-1]
            self._next_id, self._newest = self._read(self._number)

    async def remember(self, ledgers: Iterable[LedgerId]) -> None:
        """Note that these ledgers were deleted; durable when this returns, unless the disk is full. OSError."""
        buckets = dict(self._newest)
        for bucket, some in groupby(sorted(ledgers), bucket_of):
            buckets[bucket] = buckets.get(bucket, NONE_DELETED).and_these(some)
        if self._unwritten or buckets != self._newest:
            await self._write(self._next_id, buckets)

    async def note_ids(self, next_id: LedgerId) -> None:
        """Note how far ids were given. Costs nothing as long as the note is far enough ahead. OSError."""
        if self._unwritten or next_id + AHEAD // 2 > self._next_id:
            await self._write(next_id + AHEAD, self._newest)

    async def known(self) -> Mapping[int, Deleted]:
        """Return all that is remembered, by bucket."""
        return await self._disk.offload(self._all)

    def _all(self) -> dict[int, Deleted]:
        found: dict[int, Deleted] = {}
        for number in self._numbers():
            for bucket, deleted in self._read(number)[1].items():
                found[bucket] = found.get(bucket, NONE_DELETED) | deleted
        return found

    async def _write(self, next_id: LedgerId, buckets: dict[int, Deleted]) -> None:
        record = encode_file(next_id, buckets)
        name = f"{PREFIX}{self._number:06d}"

        def write() -> None:
            write_file(self._disk, record, name)

        try:
            await self._disk.offload(lambda: self._reserve.write_in_reserve(write))
        except OSError as error:
            if not passing(error):
                raise
            log.warning(
                "bookie: %s cannot be written now and is tried again; deletions go on, because they free space: %s",
                name,
                error,
            )
            self._newest, self._unwritten = buckets, True
            return
        self._next_id, self._newest, self._unwritten = next_id, buckets, False
        if len(record) >= FILE_BYTES:
            self._number, self._newest = self._number + 1, {}
            await self._disk.offload(self._drop_oldest)

    def _drop_oldest(self) -> None:
        for number in self._numbers()[:-MOST_FILES]:
            self._disk.remove(f"{PREFIX}{number:06d}")

    def _numbers(self) -> list[int]:
        names = (name.removeprefix(PREFIX) for name in self._disk.names() if name.startswith(PREFIX))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _read(self, number: int) -> tuple[LedgerId, dict[int, Deleted]]:
        name = f"{PREFIX}{number:06d}"
        file = self._disk.open(name)
        try:
            record = file.read(0, file.size())
        finally:
            file.close()
        try:
            return decode_file(name, record)
        except MalformedRecord as error:  # it is needed after a restore of metadata only
            log.error("the deletions that it recorded are not known any more: %s", error)
            return 0, {}
