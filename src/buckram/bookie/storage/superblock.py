"""The superblock: which files make up the store, its incarnation, and whether it may have lost data.

One small text file, replaced atomically (temporary file, rename, directory sync). A log file or table that it does not
name does not exist for the store: that is how compaction publishes and how deletion begins.
"""

from __future__ import annotations

import json
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
    """A segment in order of age. `states`: its footer carries ledger states (false for compaction's output).

    `log_end`: where its blocks are known to end, so that a shorter scan means damage; 0 while it is written. `made`:
    bytes the file had when it was made, so that a shorter file means damage; 0 where that is not known. `damage`: what
    the good blocks of a damaged file added up to when its loss was counted, 0 for none: the same is no new loss.
    """

    seq: int
    name: str
    states: bool
    dead_bytes: int
    log_end: int
    made: int = 0
    damage: int = 0


FORMAT = 3
"""1 has no run records with EVEN, 1 and 2 no births, starts and made sizes. They are read as they are; what is written
here is for 3."""
KNOWN = (1, 2, FORMAT)


@dataclass(frozen=True, slots=True)
class Superblock:
    """Everything in it is durable before anything depends on it.

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
    """CorruptStore when the text is damaged or of a newer format."""
    body, _, check = data.partition(b"\n")
    if check != f"crc32c {crc(body):08x}\n".encode():
        raise CorruptStore(
            f"{where}: its checksum is wrong, so nothing says which files belong to the store; restore the file, or "
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
    """None in a directory without one. CorruptStore if there are log files without one."""
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


def write_superblock(disk: Disk, superblock: Superblock) -> None:
    """Blocking; durable when it returns. An error that says that something is short (disk/trouble.passing) means
    that the one before is still the one that counts."""
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
    file = disk.open(name, create=create)
    try:
        yield file
    finally:
        file.close()
