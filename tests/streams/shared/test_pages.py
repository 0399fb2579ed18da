"""Long segment lists: opening, searching and truncating 100,000 segments cost a few requests."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest

from buckram.core.streams.metadata.changes import published, trimmed, truncated
from buckram.core.streams.metadata.head import PAGE_SEGMENTS, Head, Summary
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.record_format import NO_TXID
from buckram.errors import NoSuchKey
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import init_cluster, open_store
from buckram.seams import MetadataStore, Notify
from buckram.streams.shared.metadata import StreamStore
from buckram.types import KeyValue

NAME = stream_name("long")
EACH = 10
_numbers = itertools.count()


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"memory:pages-{next(_numbers)}")
    await init_cluster(opened)
    yield opened
    await opened.close()


async def long_stream(store: MetadataStore, segments: int, at_once: int = 2000) -> StreamStore:
    """Make a stream whose segment i has offsets 10 i to 10 i + 9, append times 1000 (i + 1), and ledger i + 5."""
    streams = StreamStore(store)
    await store.keys.create(streams.layout.namespace("default"), b"{}")
    await streams.create(NAME, Head("u", 1), 0)
    for version, begin in enumerate(range(0, segments, at_once)):
        rows = [
            (i + 5, Summary(EACH, 1, 100, 0, 0, i, i, NO_TXID, -1))
            for i in range(begin, min(begin + at_once, segments))
        ]
        await streams.change(NAME, lambda head, v=version, r=rows: published("s", head, r, "a", v, 1000 * (v + 1)))  # type: ignore[misc]
    return streams


@pytest.mark.parametrize("segments", [1, 511, 512, 1300, 100_000])
async def test_segments_are_found_by_offset_and_by_time(store: MetadataStore, segments: int) -> None:
    streams = await long_stream(store, segments)
    streams = StreamStore(store)
    head = (await streams.read(NAME)).head
    assert head.end == segments * EACH
    wanted = (0, 1, segments // 3, segments // 2, segments - 300, segments - 2, segments - 1)
    for i in [place for place in wanted if 0 <= place < segments]:
        for offset in (i * EACH, i * EACH + EACH - 1):
            row = await streams.segment_of(head, offset)
            assert row is not None
            assert (row.number, row.ledger, row.base) == (i, i + 5, i * EACH)
        found = await streams.find(head, lambda row, t=1000 * (i // 2000 + 1): row.summary.last_append >= t)  # type: ignore[misc, union-attr]
        assert found is not None
        assert found.number == i // 2000 * 2000
    assert await streams.segment_of(head, head.end) is None
    assert await streams.find(head, lambda row: False) is None


class Counted(MemoryKeys):
    """A memory store that counts what is read."""

    reads = 0

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        self.reads += 1
        return await super().get(key, watch)


async def test_requests_grow_with_the_logarithm_of_the_segments() -> None:
    reads = []
    for segments in (10 * PAGE_SEGMENTS, 100_000):
        keys = Counted(MemoryTree())
        store = TreeStore(keys, "memory:counted", random.Random(1))
        await init_cluster(store)
        await long_stream(store, segments)
        before, streams = keys.reads, StreamStore(store)
        at = await streams.read(NAME)
        assert await streams.segment_of(at.head, segments * EACH // 2 + 3) is not None
        assert await streams.segment_of(at.head, at.head.end - 1) is not None
        reads.append(keys.reads - before)
    assert reads[0] <= 6  # of ten pages
    assert reads[1] <= 12  # of nearly two hundred


async def test_truncating_and_trimming_whole_pages(store: MetadataStore) -> None:
    streams = await long_stream(store, 3000)
    head = (await streams.read(NAME)).head
    first = 2 * PAGE_SEGMENTS + 7
    await streams.change(NAME, lambda head: truncated("s", head, first * EACH + 3, 0))
    ops = await streams.trim_ops(head, first)
    assert len(ops) == 2
    head = await streams.change(NAME, lambda head: trimmed("s", head, first), extra=lambda _: ops)
    streams = StreamStore(store)
    assert [row.number async for row in streams.segments(head)] == list(range(first, 3000))
    row = await streams.segment_of(head, first * EACH + 3)
    assert row is not None
    assert row.number == first
    pages = await store.keys.children(f"{streams.layout.data('u')}/pages", limit=100)
    assert pages[0] == f"{2:012d}"
    end = 3000
    await streams.change(NAME, lambda head: truncated("s", head, end * EACH, 0))
    ops = await streams.trim_ops(head, end)
    head = await streams.change(NAME, lambda head: trimmed("s", head, end), extra=lambda _: ops)
    assert [row async for row in streams.segments(head)] == []
    assert await streams.segment_of(head, 0) is None
    assert await store.keys.children(f"{streams.layout.data('u')}/pages", limit=100) == []
    rows = [(9, Summary(1, 1, 1, 0, 0, 0, 0, NO_TXID, -1))]
    head = await streams.change(NAME, lambda head: published("s", head, rows, "b", 1, 1))
    found = await streams.segment_of(head, head.end - 1)
    assert found is not None
    assert found.number == 3000


async def test_a_lookup_with_an_old_head_raises_for_trimmed_pages(store: MetadataStore) -> None:
    streams = await long_stream(store, 3000)
    old = (await streams.read(NAME)).head
    first = 5 * PAGE_SEGMENTS
    await streams.change(NAME, lambda head: truncated("s", head, first * EACH, 0))
    ops = await streams.trim_ops(old, first)
    await streams.change(NAME, lambda head: trimmed("s", head, first), extra=lambda _: ops)
    with pytest.raises(NoSuchKey):
        await StreamStore(store).segment_of(old, 7)
