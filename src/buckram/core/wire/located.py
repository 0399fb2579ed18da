"""Located reads: the reply that names where entries lie in log files (docs/reference/protocol.md, section 5).

Not here: finding the entries (`bookie/storage/reading/lookup.py`), reading the files (`client/read/local.py`,
`spark/source/replica_scan.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buckram.core.entries.packed import PackedBodies
from buckram.types import EntryId

MAX_EXTENT_BYTES = 16 * 1024 * 1024
"""Readers do not read extents that are longer than this themselves, but ask the bookie for the entries."""


class FileExtent(NamedTuple):
    """Neighbouring frames of adds in a file, from byte `offset` to `offset` + `length`.

    After `skip` frames come those of the `entries` entries from `first` on; other frames may follow.
    """

    name: str
    offset: int
    length: int
    skip: int
    first: EntryId
    entries: int


@dataclass(frozen=True, slots=True)
class Located:
    """Extents in order of entries, at least one, without a gap between them.

    `directory` is that of the files, and `identity` its `Disk.identity()`, by which a reader recognises a directory of
    the same name on another machine.
    """

    directory: str
    identity: str
    extents: Sequence[FileExtent]

    def pack(self) -> bytes:
        document = {"directory": self.directory, "identity": self.identity, "extents": self.extents}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Located | None:
        """Parse what `pack` made; None for anything else."""
        try:
            document = json.loads(data)
            directory, identity, extents = document["directory"], document["identity"], document["extents"]
            found = [FileExtent(*extent) for extent in extents]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        texts = (directory, identity, *(extent.name for extent in found))
        if not found or not all(isinstance(text, str) for text in texts):
            return None
        if not all(type(number) is int and 0 <= number < 2**63 for extent in found for number in extent[1:]):
            return None
        return cls(directory, identity, found)


def extended(before: FileExtent, after: FileExtent, limit: int) -> FileExtent | None:
    """Return both as one extent; None if `after` does not continue `before` or they exceed `limit` bytes.

    All frames of `before` after the skipped ones must be wanted.
    """
    if after.skip or before.name != after.name or before.offset + before.length != after.offset:
        return None
    if before.length + after.length > limit:
        return None
    return before._replace(length=before.length + after.length, entries=before.entries + after.entries)


def bodies_of(extent: FileExtent, data: bytes | bytearray, at: int) -> PackedBodies | None:
    """Return the stored entries of an extent with the bytes data[at:]; None if these are no such frames."""
    if len(data) < at + extent.length:
        return None
    bodies = PackedBodies.parse_frames(data, at, at + extent.length)
    return None if bodies is None else bodies[extent.skip : extent.skip + extent.entries]
