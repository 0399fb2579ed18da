"""The metadata of streams: its keys, reading it, and changing it, which is done by compare-and-set or multi only.

A stream has one head, which every change replaces, and pages with its older segments. Not here: which changes are legal
(`core/streams/metadata/changes.py`), intents (`shared/ledgers.py`), the lease (`write/lease.py`), namespaces
(`shared/namespaces.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.backoff import STREAM_HEAD
from buckram.core.streams.metadata.changes import HeadStep, check_step
from buckram.core.streams.metadata.head import (
    PAGE_SEGMENTS,
    Head,
    Page,
    Segment,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import Link, decode_link
from buckram.errors import (
    BuckramError,
    KeyExists,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    StreamExists,
    VersionConflict,
)
from buckram.runtime.process.retry import Attempt, Retries, retry
from buckram.seams import KeyStore, MetadataStore, Notify
from buckram.streams.shared.layout import Layout
from buckram.types import CheckVersion, Create, Delete, KeyOp, Offset, SetValue

T = TypeVar("T")
WITHIN_S = 10.0
"""Time for which an operation is retried while the metadata store is unavailable, seconds."""
_CACHED_PAGES = 16

Change = Callable[[Head], HeadStep | None]
"""Computes the new head from the present one; None if nothing is left to do. It must be a pure function, because it is
called again with the newest head after every conflict and every lost reply."""
Changes = Callable[[Sequence[Head]], Sequence[HeadStep] | None]
"""The same for several streams: the new head of each, or None if nothing is left to do for any."""
SegmentReached = Callable[[Segment], bool]
"""Predicate for a binary search: true for the wanted segment and all segments after it."""
ExtraOps = Callable[[Head], Sequence[KeyOp]]
"""Returns further operations for the multi that writes the new head."""


@dataclass(frozen=True, slots=True)
class HeadAt:
    """A head and the version of its key, for compare-and-set."""

    head: Head
    version: int


def head_retries(within_s: float = WITHIN_S) -> Retries:
    """Return a retry policy for operations on a stream's keys, after conflicts or while the store is unavailable."""
    return Retries(STREAM_HEAD, within_s)


async def retry_metadata(attempt: Attempt[T]) -> T:
    """Repeat an idempotent operation while the metadata store is unavailable, at most for WITHIN_S."""
    return await retry(attempt, MetadataUnavailable, STREAM_HEAD, within_s=WITHIN_S)


async def look_twice(
    look: Callable[[bool], Awaitable[T]], sync: Callable[[], Awaitable[None]], refusals: tuple[type[BuckramError], ...]
) -> T:
    """Return what `look` gives; if that is one of the refusals, what it gives behind `sync`.

    A server of the metadata store that lags does not know yet what another process has done: what it refuses is looked
    at again with everything that was written before. `look` is told whether that is so. Raises what `look` raises.
    """
    try:
        return await look(False)
    except refusals:
        await sync()
    return await look(True)


class StreamStore:
    """Reads and changes heads and pages of all streams.

    Methods raise NoSuchStream and MetadataUnavailable. After the latter a change may or may not have happened.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.layout = Layout(store)
        self._pages: dict[tuple[str, int], tuple[Page, int]] = {}
        """The cached pages by uid and number, each with `Head.rewritten` of the head known before it was read."""
        self._store = store

    @property
    def metadata(self) -> MetadataStore:
        """Metadata store of these streams."""
        return self._store

    @property
    def keys(self) -> KeyStore:
        """Key-value interface of the metadata store."""
        return self._store.keys

    # -- the head -----------------------------------------------------------------------------------------

    async def create(self, name: StreamName, head: Head, namespace_version: int, extra: Sequence[KeyOp] = ()) -> Head:
        """Create the stream on condition that its namespace is at that version; returns its head.

        `extra`: further operations for the same multi.

        The key that its data will be below comes with it, so that a uid belongs to one stream from the beginning.

        Raises StreamExists, and VersionConflict if the namespace has changed.
        """
        key, retries = self.layout.head(name), head_retries()
        while True:
            try:
                await self.keys.multi(
                    [
                        CheckVersion(self.layout.namespace(name.namespace), namespace_version),
                        Create(key, encode_head(head)),
                        Create(self.layout.data(head.uid), b""),
                        *extra,
                    ]
                )
                return head
            except KeyExists as error:
                try:
                    present = (await self.read(name)).head
                except NoSuchStream:
                    if error.key != key:
                        raise NoSuchStream(str(name), "was deleted as soon as it was created") from None
                    continue
                if present.uid == head.uid:
                    return present  # This call created it, and the reply was lost.
                raise StreamExists(str(name)) from None
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def read(self, name: StreamName, watch: Notify | None = None, *, within_s: float = WITHIN_S) -> HeadAt:
        """Return the present head. NoSuchStream: `watch`, if given, is set all the same and fires at its creation."""
        key, retries = self.layout.head(name), head_retries(within_s)
        while True:
            try:
                found = await self.keys.get(key, watch)
            except NoSuchKey:
                raise NoSuchStream(str(name)) from None
            except MetadataUnavailable as error:
                await retries.wait(error)
            else:
                return HeadAt(decode_head(key, found.value), found.version)

    async def change(
        self,
        name: StreamName,
        change: Change,
        *,
        uid: str | None = None,
        extra: ExtraOps | None = None,
        within_s: float = WITHIN_S,
    ) -> Head:
        """Apply `change` by compare-and-set, repeated after conflicts, and return the head after it.

        With `uid` a stream of another uid counts as NoSuchStream. A VersionConflict or NoSuchKey of a key in `extra` is
        raised, that of the head is retried. After MetadataUnavailable the change may or may not have happened.
        """

        def changes(heads: Sequence[Head]) -> Sequence[HeadStep] | None:
            step = change(heads[0])
            return None if step is None else (step,)

        def ops(heads: Sequence[Head]) -> Sequence[KeyOp]:
            return () if extra is None else extra(heads[0])

        return (await self.change_together([(name, uid)], changes, extra=ops, within_s=within_s))[0]

    async def change_together(
        self,
        streams: Sequence[tuple[StreamName, str | None]],
        changes: Changes,
        *,
        extra: Callable[[Sequence[Head]], Sequence[KeyOp]],
        within_s: float = WITHIN_S,
    ) -> list[Head]:
        """Do the same to the heads of several streams, each with its uid, in one multi: all of them change or none."""
        keys, retries = [self.layout.head(name) for name, _ in streams], head_retries(within_s)
        while True:
            try:
                ats: list[HeadAt] = []
                for name, uid in streams:
                    left = max(retries.deadline - asyncio.get_running_loop().time(), 0.0)
                    ats.append(await self.read(name, within_s=left))
                    if uid is not None and ats[-1].head.uid != uid:
                        raise NoSuchStream(str(name), "was deleted and created anew")
                heads = [at.head for at in ats]
                steps = changes(heads)
                if steps is None:
                    return heads
                ops: list[KeyOp] = []
                for (name, _), key, at, step in zip(streams, keys, ats, steps, strict=True):
                    check_step(str(name), at.head, step.head)
                    ops.append(SetValue(key, encode_head(step.head), at.version))
                    pages = [(self.layout.page(step.head.uid, page.number), encode_page(page)) for page in step.pages]
                    ops += [Create(place, value) for place, value in pages]
                await self.keys.multi([*ops, *extra(heads)])
                return [step.head for step in steps]
            except VersionConflict as conflict:
                if conflict.key not in keys:
                    raise
                await retries.wait(conflict)
            except KeyExists as error:  # The page exists: an earlier multi succeeded and its reply was lost.
                await retries.wait(error)
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def link(self, namespace: str) -> Link | None:
        """Return the record of a namespace's replication; None if it has none. Raises MalformedRecord."""
        key = self.layout.link(namespace)
        try:
            found = await retry_metadata(lambda: self.keys.get(key))
        except NoSuchKey:
            return None
        return decode_link(key, found.value, found.version)

    async def remove(self, name: StreamName, version: int) -> None:
        """Delete the head at this version; the last step of a deletion."""
        await self.keys.delete(self.layout.head(name), version)

    async def streams(self, namespace: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the names of a namespace's streams greater than `after`, in order and without the namespace."""
        return await self.keys.children(self.layout.heads(namespace), after=after, limit=limit)

    # -- segments -----------------------------------------------------------------------------------------

    async def page(self, head: Head, number: int) -> Page:
        """Return a page that is at least as new as `head`, maybe from the cache. NoSuchKey if it was trimmed."""
        known = self._pages.pop((head.uid, number), None)
        if known is None or known[1] < head.rewritten:
            known = (await self.page_at(head.uid, number))[0], head.rewritten
            if len(self._pages) >= _CACHED_PAGES:
                del self._pages[next(iter(self._pages))]
        self._pages[head.uid, number] = known
        return known[0]

    async def page_at(self, uid: str, number: int) -> tuple[Page, int]:
        """Read a page and its version. NoSuchKey if it was trimmed."""
        key, retries = self.layout.page(uid, number), head_retries()
        while True:
            try:
                found = await self.keys.get(key)
                return decode_page(key, found.value), found.version
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def find(self, head: Head, reached: SegmentReached) -> Segment | None:
        """Return the first segment for which `reached` is true, or None.

        Reads no page if the tail in the head decides, otherwise one page for each step of a binary search.
        """
        tail = head.tail
        low, high = head.first // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS
        if low < high and (not tail or reached(tail[0])):
            found: Segment | None = None
            while low < high:
                middle = (low + high) // 2
                rows = await self._rows(head, middle)
                if rows and reached(rows[-1]):
                    high, found = middle, rows[bisect_left(rows, True, key=reached)]
                else:
                    low = middle + 1
            if found is not None:
                return found
        place = bisect_left(tail, True, key=reached)
        return tail[place] if place < len(tail) else None

    async def _rows(self, head: Head, page: int) -> list[Segment]:
        """Return the rows of a page that are still listed; none if it was trimmed, as happens to the oldest pages."""
        try:
            return [row for row in (await self.page(head, page)).segments if row.number >= head.first]
        except NoSuchKey:
            return []

    async def segment_of(self, head: Head, offset: Offset) -> Segment | None:
        """Return the segment that holds `offset`: the open one from its base on; None beyond the last sealed one.

        NoSuchKey: the segment was trimmed after this head was read.
        """
        for row in reversed(head.tail[-2:]):  # Tailing readers need one of these.
            if row.base <= offset:
                return row if not row.sealed or offset < row.end else None
        if head.tail and head.tail[0].base <= offset:
            rows = head.tail
            return next((row for row in rows[bisect_left(rows, offset + 1, key=_end) :] if row.end > offset), None)
        found = await self.find(head, lambda row: not row.sealed or row.end > offset)
        if found is not None and found.base > offset:
            raise NoSuchKey(self.layout.page(head.uid, head.first // PAGE_SEGMENTS))
        return found

    async def segments(self, head: Head, *, from_number: int = 0) -> AsyncIterator[Segment]:
        """Yield all rows from a number on, in order. Pages that were trimmed meanwhile are skipped."""
        start = max(from_number, head.first)
        for number in range(start // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS):
            try:
                page = await self.page(head, number)
            except NoSuchKey:
                continue
            for row in page.segments:
                if row.number >= start:
                    yield row
        for row in head.tail:
            if row.number >= start:
                yield row

    async def segments_backwards(self, head: Head) -> AsyncIterator[Segment]:
        """Yield all rows from the newest to the oldest; pages are read as they are needed."""
        for row in reversed(head.tail):
            if row.number >= head.first:
                yield row
        for number in reversed(range(head.first // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS)):
            try:
                page = await self.page(head, number)
            except NoSuchKey:
                return  # It was trimmed meanwhile, and so were all before it.
            for row in reversed(page.segments):
                if row.number >= head.first:
                    yield row

    async def trim_ops(self, before: Head, first: int) -> list[KeyOp]:
        """Return the operations that delete the pages wholly below segment number `first`."""
        ops: list[KeyOp] = []
        stop = min(first, before.paged) // PAGE_SEGMENTS
        for number in range(before.first // PAGE_SEGMENTS, stop):
            key = self.layout.page(before.uid, number)
            try:
                ops.append(Delete(key, (await self.keys.get(key)).version))
            except NoSuchKey:
                continue
        return ops


def _end(row: Segment) -> int:
    return row.end


def new_uid(bits: int) -> str:
    """Return a stream's unique id, made from 64 random bits."""
    return f"{bits:016x}"
