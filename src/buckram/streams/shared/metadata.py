"""Where a stream's metadata is in the tree of keys, and how it is read and changed: by compare-and-set or multi only.

The head is the one cell by which a stream changes; what a legal change is says core/streams/changes. Pages hold older
segments. Ledger intents are streams/shared/ledgers, the lease is streams/write/lease, namespaces are
streams/shared/namespaces.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.backoff import STREAM_HEAD
from buckram.core.streams.changes import Step, check_step
from buckram.core.streams.head import (
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
from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, NoSuchStream, StreamExists, VersionConflict
from buckram.net.retry import Retries, retry
from buckram.seams import CheckVersion, Create, Delete, KeyOp, KeyStore, MetadataStore, Notify, SetValue
from buckram.types import LedgerId

T = TypeVar("T")
WITHIN_S = 10.0
"""How long an operation goes on trying while the metadata store is away."""
_CACHED_PAGES = 16

Change = Callable[[Head], Step | None]
"""Pure; asked again on the freshest head after every conflict and lost reply. None: done already."""
Extra = Callable[[Head], Sequence[KeyOp]]
"""More operations for the multi that writes the step."""


@dataclass(frozen=True, slots=True)
class HeadAt:
    head: Head
    version: int


class Layout:
    """Keys of streams below the store's own root."""

    def __init__(self, store: MetadataStore) -> None:
        own = getattr(getattr(store, "layout", None), "own", "/buckram")
        self.root = f"{own}/streams"
        self.namespaces = f"{self.root}/namespaces"
        self.all_heads, self.all_data = f"{self.root}/heads", f"{self.root}/data"

    def namespace(self, namespace: str) -> str:
        return f"{self.namespaces}/{namespace}"

    def heads(self, namespace: str) -> str:
        return f"{self.root}/heads/{namespace}"

    def head(self, name: StreamName) -> str:
        return f"{self.root}/heads/{name.namespace}/{name.stream}"

    def data(self, uid: str) -> str:
        return f"{self.root}/data/{uid}"

    def page(self, uid: str, number: int) -> str:
        return f"{self.root}/data/{uid}/pages/{number:012d}"

    def lease(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/lease"

    def intents(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/intents"

    def intent(self, uid: str, ledger: LedgerId) -> str:
        return f"{self.root}/data/{uid}/intents/{ledger:019d}"

    def cursors(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/cursors"

    def cursor(self, uid: str, cursor: str) -> str:
        return f"{self.root}/data/{uid}/cursors/{cursor}"


def head_retries(within_s: float = WITHIN_S) -> Retries:
    """Attempts at what concerns a stream's records while the store is away, or others change them."""
    return Retries(STREAM_HEAD, within_s)


async def retry_metadata(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat a read, or whatever may be repeated, while the store is away."""
    return await retry(attempt, MetadataUnavailable, STREAM_HEAD, within_s=WITHIN_S)


class StreamStore:
    """Reads and changes heads and pages of all streams. Errors: NoSuchStream, MetadataUnavailable (unknown outcome)."""

    def __init__(self, store: MetadataStore) -> None:
        self.layout = Layout(store)
        self._pages: dict[tuple[str, int], tuple[Page, int]] = {}
        """With `Head.rewritten` as of before it was read."""
        self._store = store

    @property
    def keys(self) -> KeyStore:
        return self._store.keys

    # -- the head -----------------------------------------------------------------------------------------

    async def create(self, name: StreamName, head: Head, namespace_version: int) -> Head:
        """Make the stream while its namespace is at that version. StreamExists, VersionConflict of the namespace."""
        key, retries = self.layout.head(name), head_retries()
        while True:
            try:
                await self.keys.multi(
                    [
                        CheckVersion(self.layout.namespace(name.namespace), namespace_version),
                        Create(key, encode_head(head)),
                    ]
                )
                return head
            except KeyExists:
                try:
                    present = (await self.read(name)).head
                except NoSuchStream:
                    continue
                if present.uid == head.uid:
                    return present  # our own, whose answer was lost
                raise StreamExists(str(name)) from None
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def read(self, name: StreamName, watch: Notify | None = None, *, within_s: float = WITHIN_S) -> HeadAt:
        """The head now. NoSuchStream; with a watch, which is then set too."""
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
        extra: Extra | None = None,
        within_s: float = WITHIN_S,
    ) -> Head:
        """Apply `change` until it is done; the head then. `uid`: of the stream that is meant, else NoSuchStream.

        VersionConflict or NoSuchKey of a key in `extra` is raised, those of the head are not. After MetadataUnavailable
        the change may or may not have happened.
        """
        key, retries = self.layout.head(name), head_retries(within_s)
        while True:
            try:
                at = await self.read(name, within_s=max(retries.deadline - asyncio.get_running_loop().time(), 0.0))
                if uid is not None and at.head.uid != uid:
                    raise NoSuchStream(str(name), "was deleted and created anew")
                step = change(at.head)
                if step is None:
                    return at.head
                check_step(str(name), at.head, step.head)
                ops: list[KeyOp] = [SetValue(key, encode_head(step.head), at.version)]
                ops += [Create(self.layout.page(step.head.uid, page.number), encode_page(page)) for page in step.pages]
                if extra is not None:
                    ops += extra(at.head)
                await self.keys.multi(ops)
                return step.head
            except VersionConflict as conflict:
                if conflict.key != key:
                    raise
                await retries.wait(conflict)
            except KeyExists as error:  # a page: the multi came through before, the next look tells
                await retries.wait(error)
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def remove(self, name: StreamName, version: int) -> None:
        """The last step of a deletion."""
        await self.keys.delete(self.layout.head(name), version)

    async def streams(self, namespace: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Bare names in order, those greater than `after`."""
        return await self.keys.children(self.layout.heads(namespace), after=after, limit=limit)

    # -- segments -----------------------------------------------------------------------------------------

    async def page(self, head: Head, number: int) -> Page:
        """At least as new as `head`. NoSuchKey when it was trimmed away."""
        known = self._pages.pop((head.uid, number), None)
        if known is None or known[1] < head.rewritten:
            known = (await self.page_at(head.uid, number))[0], head.rewritten
            if len(self._pages) >= _CACHED_PAGES:
                del self._pages[next(iter(self._pages))]
        self._pages[head.uid, number] = known
        return known[0]

    async def page_at(self, uid: str, number: int) -> tuple[Page, int]:
        """As it is now, with its version."""
        key, retries = self.layout.page(uid, number), head_retries()
        while True:
            try:
                found = await self.keys.get(key)
                return decode_page(key, found.value), found.version
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def find(self, head: Head, reached: Callable[[Segment], bool]) -> Segment | None:
        """The first segment for which `reached` holds; it must hold for all after it.

        Needs no page when the tail decides it, else one page in every halving.
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
        """Of one page those that exist; none if it was trimmed meanwhile: that happens to the oldest only."""
        try:
            return [row for row in (await self.page(head, page)).segments if row.number >= head.first]
        except NoSuchKey:
            return []

    async def segment_of(self, head: Head, offset: int) -> Segment | None:
        """The segment that holds `offset`: the open one for all from its base on; None beyond the last.

        NoSuchKey: it was trimmed after this head was read.
        """
        for row in reversed(head.tail[-2:]):  # where tailing readers are
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
        """All rows from a number on, in order. A page that was trimmed meanwhile is passed over."""
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
        """All rows from the newest on; whoever stops early has read few pages."""
        for row in reversed(head.tail):
            if row.number >= head.first:
                yield row
        for number in reversed(range(head.first // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS)):
            try:
                page = await self.page(head, number)
            except NoSuchKey:
                return  # trimmed meanwhile, and with it all before
            for row in reversed(page.segments):
                if row.number >= head.first:
                    yield row

    async def trim_ops(self, before: Head, first: int) -> list[KeyOp]:
        """Deletes of the pages that lie wholly below segment number `first`."""
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
    """A stream's unique id, from 64 random bits."""
    return f"{bits:016x}"
