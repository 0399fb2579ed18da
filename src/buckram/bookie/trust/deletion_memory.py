"""The bookie's own record of the deletions that it followed and of the ids that were given: the files DELETED.<number>.

After a restore of metadata the store knows neither. The newest file is replaced as a whole, before what it names is
deleted; a full one is followed by another, and beyond `MOST_FILES` the oldest goes: that is the oldest deletions, which
a backup holds. Not here: telling the store (`metadata/maintain/reported_deletions.py`); when
(`bookie/trust/witness.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import groupby

from buckram.bookie.trust.witness_memory import WriteReserve, write_file
from buckram.core.ledgers.deletions import NONE_DELETED, Deleted, bucket_of, decode_file, encode_file
from buckram.errors import MalformedRecord
from buckram.runtime.disk.io_errors import passing
from buckram.seams import Disk
from buckram.types import LedgerId

log = logging.getLogger("buckram.bookie")
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
