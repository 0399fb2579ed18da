"""Arguments and results of the calls of objects: conditions, metadata, data in pieces, information on names."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, BinaryIO

from buckram.core.objects.rows import NEVER, ObjectRow, Upload, check_metadata, row_of
from buckram.core.objects.tree import Directory
from buckram.errors import InvalidArgument
from buckram.runtime.process.blocking_reads import read_beside
from buckram.state.objects.writing import SMALL_BYTES
from buckram.types import Buffer

_READ_BYTES = 1024 * 1024
_MAX_EXPIRES_S = 100 * 366 * 86_400.0
Data = Buffer | BinaryIO | AsyncIterable[bytes]
"""Data that can be put: bytes, a file that is open for reading bytes, or an async iterable of bytes."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object. Times in microseconds UTC."""

    name: str
    """Name without the namespace."""
    version: int
    """Version for `if_match`; it changes with every put, copy and rename."""
    size: int
    """Size in bytes."""
    digest: str
    """sha256:HEX of all bytes, or parts:HEX-N of one that was put in N parts."""
    time: int
    """Time of the put."""
    expires: int | None
    """Time from which the object does not exist any more; None if it never expires."""
    metadata: Mapping[str, str]
    """Metadata given by the caller that put it."""


@dataclass(frozen=True, slots=True)
class DirectoryInfo:
    """A directory of objects."""

    name: str
    """Name without the namespace; empty for the namespace itself."""
    time: int
    """Time when a child was last added or removed, in microseconds UTC."""
    kept: bool
    """True if it was made by `mkdirs`, and stays when it is empty."""
    children: int
    """Number of objects and directories directly in it."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part of an upload."""

    number: int
    size: int
    """Size in bytes."""
    digest: str
    """sha256:HEX of its bytes."""


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """An upload that was neither completed nor given up."""

    upload: int
    name: str
    """Name of the object, without the namespace."""
    time: int
    """Time when it began, in microseconds UTC."""
    parts: int
    """Number of parts so far; `size` is the sum of their bytes."""
    size: int


def condition(if_absent: bool, if_match: int | None) -> str | int | None:
    if if_absent and if_match is not None:
        raise InvalidArgument("if_absent and if_match exclude each other")
    if if_match is not None and type(if_match) is not int:
        raise InvalidArgument(f"if_match {if_match!r}: needs the version of an ObjectInfo, an int")
    return "absent" if if_absent else if_match


def extra(metadata: Mapping[str, str] | None, expires_s: float | None) -> dict[str, Any]:
    if expires_s is not None:
        good = isinstance(expires_s, int | float) and not isinstance(expires_s, bool)
        if not good or not 0 < expires_s <= _MAX_EXPIRES_S:
            raise InvalidArgument(
                f"expires_s {expires_s!r}: needs seconds, more than 0 and at most {_MAX_EXPIRES_S:.0f} (100 years)"
            )
    age_us = max(int(expires_s * 1_000_000), 1) if expires_s is not None else NEVER
    return {"metadata": check_metadata(metadata), "expires_us": age_us}


def info_of(name: str, row: ObjectRow) -> ObjectInfo:
    expires = row.expires_us if row.expires_us != NEVER else None
    return ObjectInfo(name, row.version, row.size, row.digest, row.time_us, expires, dict(row.metadata))


def node_of(name: str, node: Directory | ObjectRow) -> ObjectInfo | DirectoryInfo:
    """Return the information on the object or directory of a name."""
    if isinstance(node, ObjectRow):
        return info_of(name, node)
    return DirectoryInfo(name, node.time_us, node.kept, len(node.nodes))


def upload_info(number: int, upload: Upload) -> UploadInfo:
    size = sum(size for size, _, _ in upload.parts.values())
    return UploadInfo(number, upload.name, upload.time_us, len(upload.parts), size)


def told(name: str, raw: list[Any]) -> ObjectInfo:
    return info_of(name, row_of([*raw, []]))


async def pieces_of(data: Data) -> AsyncIterator[bytes]:
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        if len(view) <= SMALL_BYTES:
            yield bytes(view)
            return
        for begin in range(0, len(view), _READ_BYTES):
            yield bytes(view[begin : begin + _READ_BYTES])
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise InvalidArgument(f"the data of an object are pieces of bytes, not {type(piece).__name__}")
            yield bytes(piece)
    elif hasattr(data, "read"):
        async with aclosing(read_beside(data.read, _READ_BYTES)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, bytes):
                    raise InvalidArgument("the file of an object must be open for reading bytes (mode 'rb')")
                yield piece
    else:
        raise InvalidArgument(f"an object is bytes, a file or an async iterable of bytes, not {type(data).__name__}")
