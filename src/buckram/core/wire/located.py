"""Located reads: the reply that names where entries lie in log files (docs/reference/protocol.md, section 5).

Not here: finding the entries (`bookie/storage/lookup.py`), reading the files (`client/read/local.py`,
`spark/local_scan.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buckram.core.entries.packed import PackedBodies
from buckram.types import EntryId

MAX_EXTENT_BYTES = 16 * 1024 * 1024
"""Readers leave an extent that is longer than this to the bookie."""


class Extent(NamedTuple):
    """Frames of adds side by side in a file: bytes offset to offset + length. `skip` frames come before those of
    the `entries` entries from `first` on; what comes after them is not said."""

    name: str
    offset: int
    length: int
    skip: int
    first: EntryId
    entries: int


@dataclass(frozen=True, slots=True)
class Located:
    """Extents in order of entries, without a gap between them; at least one. `directory`: of the files. `identity`:
    what Disk.identity() says of it, so that a directory of the same name on another machine is known for one."""

    directory: str
    identity: str
    extents: Sequence[Extent]

    def pack(self) -> bytes:
        document = {"directory": self.directory, "identity": self.identity, "extents": self.extents}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Located | None:
        """None where it is not what `pack` makes."""
        try:
            document = json.loads(data)
            directory, identity, extents = document["directory"], document["identity"], document["extents"]
            found = [Extent(*extent) for extent in extents]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        texts = (directory, identity, *(extent.name for extent in found))
        if not found or not all(isinstance(text, str) for text in texts):
            return None
        if not all(type(number) is int and 0 <= number < 2**63 for extent in found for number in extent[1:]):
            return None
        return cls(directory, identity, found)


def extended(before: Extent, after: Extent, limit: int) -> Extent | None:
    """Both as one, where `after` goes on where `before` ends and together they have at most `limit` bytes.

    All frames of `before` must be wanted, behind those to be skipped.
    """
    if after.skip or before.name != after.name or before.offset + before.length != after.offset:
        return None
    if before.length + after.length > limit:
        return None
    return before._replace(length=before.length + after.length, entries=before.entries + after.entries)


def bodies_of(extent: Extent, data: bytes | bytearray, at: int) -> PackedBodies | None:
    """The stored entries that the extent names, where data[at:] are its bytes; None where they are no such frames."""
    if len(data) < at + extent.length:
        return None
    bodies = PackedBodies.parse_frames(data, at, at + extent.length)
    return None if bodies is None else bodies[extent.skip : extent.skip + extent.entries]
