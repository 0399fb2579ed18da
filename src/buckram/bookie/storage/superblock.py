"""The superblock: which files make up the store, its incarnation, and whether it may have lost data.

One small text file, replaced atomically (temporary file, rename, directory sync). A log file or table that it does not
name does not exist for the store: that is how compaction publishes and how deletion begins.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from buckram.core.storage.segment_format import crc
from buckram.errors import CorruptStore
from buckram.seams import Disk, File, Write

NAME, TEMPORARY = "superblock", "superblock.new"
GIVE_UP = (
    "give this bookie up: start one in an empty directory with another --id, then `buckram ledger repair` each ledger "
    "that names this one"
)
LOG_PREFIX, TABLE_PREFIX = "log-", "ledgers-"


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment; the superblock lists them in order of age.

    `states`: whether its footer carries ledger states (not so for compaction's output). `log_end`: where its blocks are
    known to end, so that a shorter scan means damage; 0 while it is written. `made`: the allocated bytes of the file,
    so that a shorter file means damage; 0 if unknown. `damage`: the digest of the valid blocks when a loss in the file
    was counted, so that the same damage is not counted again; 0 for none.
    """

    seq: int
    name: str
    states: bool
    dead_bytes: int
    log_end: int
    made: int = 0
    damage: int = 0


FORMAT = 3
"""Format 1 has no run records with EVEN; 1 and 2 have no births, starts and made sizes. All three are read, only 3 is
written."""
KNOWN = (1, 2, FORMAT)


@dataclass(frozen=True, slots=True)
class Superblock:
    """The content of the file. It is durable before anything depends on it.

    `salt` is in every block, so that blocks of another store never pass. `losses` and `limbo`: see ledger_table.Losses.
    `covered`: the table holds all states of segments up to that number. `next_number` counts segments and tables,
    `next_file` files; neither ever repeats. `free` names log files whose data is dead. `starts`: how often the
    directory was opened. `lost_table`: the table whose damage is counted among the losses.
    `format` is what was read; what is written is of FORMAT.
    """

    incarnation: str
    salt: int
    clean: bool = False
    losses: int = 0
    limbo: bool = False
    next_number: int = 1
    next_file: int = 1
    segments: tuple[SegmentEntry, ...] = ()
    free: tuple[str, ...] = ()
    table: str = ""
    table_number: int = 0
    covered: int = 0
    starts: int = 0
    lost_table: str = ""
    format: int = field(default=FORMAT)

    def encode(self) -> bytes:
        body = json.dumps(asdict(self), indent=None, separators=(",", ":")).encode()
        return body + f"\ncrc32c {crc(body):08x}\n".encode()


def decode(data: bytes, where: str) -> Superblock:
    """Parse the file's content. Raises CorruptStore, with `where`, if it is damaged or of a newer format."""
    body, _, check = data.partition(b"\n")
    if check != f"crc32c {crc(body):08x}\n".encode():
        raise CorruptStore(
            f"{where}: its checksum is wrong, so it is not known which files belong to the store; restore the file, or "
            f"{GIVE_UP}"
        )
    fields: dict[str, Any] = json.loads(body)
    if fields.get("format") not in KNOWN:
        raise CorruptStore(
            f"{where}: format version {fields.get('format')}, this program knows up to {FORMAT}; "
            "start the program version that wrote it"
        )
    segments = tuple(SegmentEntry(**entry) for entry in fields.pop("segments"))
    return Superblock(segments=segments, free=tuple(fields.pop("free")), **fields)


def read_superblock(disk: Disk) -> Superblock | None:
    """Return None in a directory without one. Raises CorruptStore if it is damaged, or missing beside log files."""
    names = disk.names()
    if NAME not in names:
        stray = [name for name in names if name.startswith((LOG_PREFIX, TABLE_PREFIX))]
        if stray:
            raise CorruptStore(
                f"{len(stray)} log files but no file {NAME!r}: it was deleted or the directory was only copied in "
                f"part; restore it, or {GIVE_UP}"
            )
        return None
    with opened(disk, NAME) as file:
        return decode(file.read(0, file.size()), f"file {NAME!r}")


def read_or_create(disk: Disk, rng: random.Random) -> Superblock:
    """Return the superblock; a directory without one gets its incarnation here. Raises CorruptStore or OSError."""
    found = read_superblock(disk)
    if found is None:
        found = Superblock(str(uuid.UUID(int=rng.getrandbits(128), version=4)), rng.getrandbits(32))
        write_superblock(disk, found)
    return found


def write_superblock(disk: Disk, superblock: Superblock) -> None:
    """Replace the superblock; it is durable when this returns. Blocking.

    Raises OSError. After an error that may pass (`runtime/disk/io_errors.py:passing`) the superblock before is still
    valid.
    """
    if TEMPORARY in disk.names():
        disk.remove(TEMPORARY)
    file = disk.open(TEMPORARY, create=True)
    try:
        disk.write_now([Write(file, 0, [superblock.encode()])])
    finally:
        file.close()
    disk.rename(TEMPORARY, NAME)
    disk.sync_names()


@contextmanager
def opened(disk: Disk, name: str, *, create: bool = False) -> Iterator[File]:
    """Open a file and close it at the end of the block. Raises OSError."""
    file = disk.open(name, create=create)
    try:
        yield file
    finally:
        file.close()
