"""Cursors: durable named positions of a stream's readers, which only move up, by compare-and-set.

Each cursor has a key below the stream's data, so a commit does not touch the head. The first commit creates it on
condition that the stream exists, so a late commit leaves no key behind in a deleted stream.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.json_values import is_int64
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName, check_name
from buckram.errors import (
    CursorMoved,
    InvalidArgument,
    KeyExists,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchCursor,
    NoSuchKey,
    NoSuchStream,
    OffsetOutOfRange,
    VersionConflict,
)
from buckram.seams import Clock
from buckram.streams.read.locate import by_newest_list, known_end, readable_end
from buckram.streams.shared.metadata import HeadAt, StreamStore, head_retries, retry_metadata
from buckram.types import CheckVersion, Create, KeyValue, Offset

_PAGE = 1000
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A cursor in a list. `changed`: when it was last moved, in microseconds UTC.

    `lag`: the number of records from the cursor to the readable end, without those that were truncated.
    """

    name: str
    offset: Offset
    changed: int
    lag: int


class CursorPosition(NamedTuple):
    """A cursor's name, offset, and the time of its last move in microseconds UTC."""

    name: str
    offset: Offset
    changed: int


class Cursor:
    """One cursor of one stream, which need not exist yet; a CursorHandle for readers.

    It belongs to the stream that has the name at the first use of this object, not to a later one of the same name.
    """

    def __init__(self, streams: StreamStore, name: StreamName, cursor: str, clock: Clock) -> None:
        self.stream, self.name = str(name), check_name("cursor", cursor)
        self._streams, self._stream, self._clock = streams, name, clock
        self._uid = ""
        self._seen = False

    async def load(self) -> int | None:
        """Return the offset; None if the cursor does not exist. NoSuchStream, MetadataUnavailable, MalformedRecord."""
        key = await self._key()
        found = await _get(self._streams, key)
        if found is None:
            return None
        self._seen = True
        return _decode(key, found.value)[0]

    async def move(self, offset: Offset) -> None:
        """Move the cursor up to `offset`, or create it there. CursorMoved: another reader has moved it further.

        NoSuchCursor: it existed and was deleted. After MetadataUnavailable it may or may not have moved.
        """
        _check(self.stream, self.name, offset)
        key, retries = await self._key(), head_retries()
        while True:
            try:
                found = await _get(self._streams, key)
                if found is None and self._seen:
                    raise NoSuchCursor(self.stream, self.name)
                if found is None:
                    await self._create(key, offset)
                    return
                self._seen = True
                present, _ = _decode(key, found.value)
                if present > offset:
                    raise CursorMoved(self.stream, self.name, present, offset)
                if present < offset:
                    await self._streams.keys.set(key, self._encode(offset), found.version)
                return
            except (KeyExists, VersionConflict, NoSuchKey) as conflict:  # Another client changed it since it was read.
                await retries.wait(conflict)
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def delete(self) -> None:
        """Delete the cursor. Raises NoSuchCursor."""
        key, retries, sent = await self._key(), head_retries(), False
        while True:
            try:
                found = await _get(self._streams, key)
                if found is None:
                    if sent:  # This call deleted it, and the reply was lost.
                        return
                    raise NoSuchCursor(self.stream, self.name)
                sent = True
                await self._streams.keys.delete(key, found.version)
                self._seen = False
                return
            except (NoSuchKey, VersionConflict) as conflict:
                await retries.wait(conflict)
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def _key(self) -> str:
        if not self._uid:
            head = (await self._streams.read(self._stream)).head
            check_usable(self.stream, head)
            self._uid = head.uid
        return self._streams.layout.cursor(self._uid, self.name)

    async def _create(self, key: str, offset: Offset) -> None:
        at = await self._streams.read(self._stream)
        check_usable(self.stream, at.head)
        if at.head.uid != self._uid:
            raise NoSuchStream(self.stream, "was deleted and created anew")
        # The stream may be deleted after the head was read, so the creation depends on the head's version.
        await self._streams.keys.multi(
            [
                CheckVersion(self._streams.layout.head(self._stream), at.version),
                Create(key, self._encode(offset)),
            ]
        )
        self._seen = True

    def _encode(self, offset: Offset) -> bytes:
        return json.dumps({"offset": offset, "changed": self._clock.wall_us()}, separators=(",", ":")).encode()


async def place_cursor(
    client: LedgerClient, streams: StreamStore, name: StreamName, cursor: str, offset: Offset
) -> None:
    """Create the cursor or move it up, outside of a reader.

    Raises OffsetOutOfRange for an offset beyond the readable end, CursorMoved if the cursor is further.
    """
    _check(str(name), check_name("cursor", cursor), offset)
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    if offset > head.end:
        head, end = await readable_end(client, streams, name, offset)
        if offset > end:
            raise OffsetOutOfRange(str(name), offset, head.earliest, end)
    await Cursor(streams, name, cursor, client.services.runtime.clock).move(offset)


async def list_cursors(
    client: LedgerClient, streams: StreamStore, name: StreamName, *, after: str = "", limit: int = _PAGE
) -> list[CursorInfo]:
    """Return at most `limit` cursors with names greater than `after`, in the order of their names."""

    async def ends(at: HeadAt) -> tuple[Head, Offset]:
        check_usable(str(name), at.head)
        return at.head, await known_end(client, name, at.head)

    head, end = await by_newest_list(streams, name, ends)
    found: list[CursorInfo] = []
    for cursor, offset, changed in await cursor_positions(streams, head, after, limit):
        found.append(CursorInfo(cursor, offset, changed, max(end - max(offset, head.earliest), 0)))
    return found


async def lowest_cursor(streams: StreamStore, head: Head) -> int | None:
    """Return the lowest offset of all cursors, or None if there are none. No cursor falls below it later."""
    lowest: int | None = None
    after = ""
    while page := await cursor_positions(streams, head, after, _PAGE):
        after = page[-1].name
        least = min(offset for _, offset, _ in page)
        lowest = least if lowest is None else min(lowest, least)
    return lowest


async def cursor_positions(streams: StreamStore, head: Head, after: str, limit: int) -> list[CursorPosition]:
    """Return the next page of cursors with names greater than `after`; it is empty at the end only."""
    parent = streams.layout.cursors(head.uid)
    while True:
        names = await retry_metadata(partial(streams.keys.children, parent, after=after, limit=limit))
        found: list[CursorPosition] = []
        for begin in range(0, len(names), _AT_ONCE):
            keys = [(cursor, streams.layout.cursor(head.uid, cursor)) for cursor in names[begin : begin + _AT_ONCE]]
            answers = await asyncio.gather(*(_get(streams, key) for _, key in keys))
            found += [
                CursorPosition(cursor, *_decode(key, kept.value))
                for (cursor, key), kept in zip(keys, answers, strict=True)
                if kept
            ]
        if found or not names:
            return found
        after = names[-1]  # All cursors of this page were deleted meanwhile, but more may follow.


async def _get(streams: StreamStore, key: str) -> KeyValue | None:
    try:
        return await retry_metadata(lambda: streams.keys.get(key))
    except NoSuchKey:
        return None


def _check(stream: str, cursor: str, offset: Offset) -> None:
    if type(offset) is not int or offset < 0:
        raise InvalidArgument(f"cursor {cursor!r} of stream {stream}: offset {offset!r}: needs an int from 0 on")


def _decode(key: str, value: bytes) -> tuple[int, int]:
    """Parse a cursor's record: its offset, and the time of its last move in microseconds UTC. MalformedRecord."""
    try:
        raw = json.loads(value)
        offset, changed = raw["offset"], raw["changed"]
        if not is_int64(offset) or not is_int64(changed):
            raise TypeError("offset and changed are whole numbers")
        return offset, changed
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not a cursor ({error!r}); restore it, or delete it and place it anew") from None
