"""Values of the objects' index: where an object's bytes are, what is known of it, uploads in parts, and legal names.

Not here: commands (`core/objects/index.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from buckram.core.streams.names import OBJECTS_LOG
from buckram.errors import InvalidArgument
from buckram.types import EntryId, LedgerId

LOG = OBJECTS_LOG
"""Stream and machine of each namespace that has objects: their index."""

MAX_NAME_BYTES = 1024

MAX_METADATA_BYTES = 16 * 1024

NEVER = 0
"""Expiry of an object that never expires."""


class Extent(NamedTuple):
    """Bytes in a ledger: `length` bytes from byte `at` of `entry` on.

    With `chunk` 0 all of them are in this entry. Otherwise every entry but the last has `chunk` bytes, and they go on
    in the next one.
    """

    ledger: LedgerId
    entry: EntryId
    at: int
    length: int
    chunk: int


class ObjectRow(NamedTuple):
    """An object in the index. Times in microseconds UTC; `version` is new with every put, copy and rename of it."""

    version: int
    size: int
    digest: str
    """sha256:HEX, or parts:HEX-N of one that was put in N parts: the SHA-256 of their digests."""
    time_us: int
    expires_us: int
    metadata: tuple[tuple[str, str], ...]
    extents: tuple[Extent, ...]

    def expired(self, time_us: int) -> bool:
        """Return whether an object has expired at this time, so that nobody may see it any more."""
        return self.expires_us != NEVER and self.expires_us <= time_us


def row_of(raw: list[Any]) -> ObjectRow:
    """Parse an object from JSON. Raises TypeError or ValueError."""
    version, size, digest, time_us, expires_us, metadata, extents = raw
    pairs = tuple((str(key), str(value)) for key, value in metadata)
    return ObjectRow(version, size, digest, time_us, expires_us, pairs, extents_of(extents))


def extents_of(raw: list[Any]) -> tuple[Extent, ...]:
    """Parse extents from JSON. Raises TypeError or ValueError."""
    found = tuple(Extent(*row) for row in raw)
    for extent in found:
        if any(type(number) is not int or number < 0 for number in extent):
            raise ValueError(f"{extent} is no extent")
    return found


def check_object_name(name: str) -> str:
    """Return `name` if it is valid: parts between slashes, none of them empty, "." or "..". Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of an object is a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"object name {name[:60]!r} has characters that UTF-8 cannot encode; choose another"
        ) from None
    trouble = ""
    if not 0 < size <= MAX_NAME_BYTES:
        trouble = f"has {size} bytes of UTF-8, and needs 1 to {MAX_NAME_BYTES}"
    elif any(part in ("", ".", "..") for part in name.split("/")):
        trouble = 'has an empty part, "." or ".." between slashes'
    elif any(character < " " or character == "\x7f" for character in name):
        trouble = "has a control character"
    if trouble:
        shown = name if len(name) <= 60 else name[:60] + "..."
        raise InvalidArgument(f"object name {shown!r} {trouble}; choose another")
    return name


def check_metadata(metadata: Mapping[str, str] | None) -> list[list[str]]:
    """Return user metadata as the index keeps them, in the order of the names. Raises InvalidArgument."""
    pairs = sorted((metadata or {}).items())
    size = 0
    for key, value in pairs:
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidArgument(f"metadata {key!r}: {value!r}: names and values are str, names not empty")
        size += len(key.encode(errors="replace")) + len(value.encode(errors="replace"))
    if size > MAX_METADATA_BYTES:
        raise InvalidArgument(f"metadata of {size} bytes, the limit is {MAX_METADATA_BYTES}; store less")
    return [[key, value] for key, value in pairs]


# -- objects that are put in parts ----------------------------------------------------------------------------


class Upload:
    """An object that is put in parts: `parts` by number, each with size, digest and extents."""

    def __init__(self, name: str, time_us: int) -> None:
        self.name, self.time_us = name, time_us
        self.parts: dict[int, tuple[int, str, tuple[Extent, ...]]] = {}

    def dump(self) -> list[Any]:
        """Return the upload for JSON."""
        return [self.name, self.time_us, sorted((part, *rest) for part, rest in self.parts.items())]

    @classmethod
    def load(cls, name: str, time_us: int, parts: Iterable[Sequence[Any]]) -> Upload:
        """Restore an upload from JSON."""
        upload = cls(name, time_us)
        upload.parts = {part: (size, digest, extents_of(extents)) for part, size, digest, extents in parts}
        return upload
