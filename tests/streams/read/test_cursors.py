"""Cursors are durable, only move up, and deliver again what was not committed."""

from __future__ import annotations

import pytest

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.errors import (
    CursorMoved,
    InvalidArgument,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchCursor,
    NoSuchKey,
    NoSuchStream,
    OffsetOutOfRange,
    OffsetTruncated,
)
from buckram.namespace import Namespace
from buckram.seams import KeyStore
from buckram.streams.read.cursors import Cursor
from buckram.streams.shared.metadata import StreamStore
from buckram.types import KeyOp


async def fill(ns: Namespace, stream: str, count: int = 10) -> None:
    async with ns.writer(stream) as writer:
        await writer.append_many([b"%d" % n for n in range(count)])


def cursor_of(client: Client, ns: Namespace, stream: str, cursor: str) -> Cursor:
    return Cursor(ns.store, stream_name(stream, ns.name), cursor, client.services.runtime.clock)


async def test_a_reader_continues_at_its_committed_cursor(ns: Namespace) -> None:
    await fill(ns, "orders")
    async with ns.read("orders", cursor="billing") as reader:
        first = [(await anext(reader)).offset for _ in range(4)]
        assert first == [0, 1, 2, 3]
        assert await reader.commit() == 4
        await anext(reader)  # This record is not committed, so the next reader gets it again.
    async with ns.read("orders", cursor="billing") as reader:
        assert [record.offset async for record in reader] == [4, 5, 6, 7, 8, 9]
        assert await reader.commit() == 10
    assert [record async for record in ns.read("orders", cursor="billing")] == []


async def test_a_new_cursor_begins_at_start_and_is_made_by_its_first_commit(ns: Namespace) -> None:
    await fill(ns, "orders")
    reader = ns.read("orders", cursor="late", start=7)
    assert [record.offset async for record in reader] == [7, 8, 9]
    assert await ns.cursors("orders") == []
    async with ns.read("orders", cursor="late", start=7) as reader:
        await reader.commit()
    assert [(c.name, c.offset, c.lag) for c in await ns.cursors("orders")] == [("late", 7, 3)]


async def test_lag_counts_what_can_still_be_read(ns: Namespace) -> None:
    await fill(ns, "orders")
    for name, offset in (("a", 0), ("b", 4), ("c", 10)):
        await ns.move_cursor("orders", name, offset)
    await ns.truncate("orders", before=3)
    found = await ns.cursors("orders")
    assert [(c.name, c.offset, c.lag) for c in found] == [("a", 0, 7), ("b", 4, 6), ("c", 10, 0)]
    assert all(c.changed > 1_600_000_000_000_000 for c in found)
    assert [c.name for c in await ns.cursors("orders", after="a", limit=1)] == ["b"]
    assert [c.name for c in await ns.cursors("orders", after="c")] == []


async def test_a_cursor_only_moves_up(client: Client, ns: Namespace) -> None:
    await fill(ns, "orders")
    one, two = (cursor_of(client, ns, "orders", "shared") for _ in range(2))
    await one.move(3)
    await two.move(3)  # The cursor is there already.
    await two.move(8)
    with pytest.raises(CursorMoved) as moved:
        await one.move(5)
    assert (moved.value.offset, await one.load()) == (8, 8)
    await one.move(9)
    assert await two.load() == 9


async def test_move_cursor_checks_its_arguments(ns: Namespace) -> None:
    await fill(ns, "orders")
    with pytest.raises(OffsetOutOfRange, match="11"):
        await ns.move_cursor("orders", "x", 11)
    for bad in (-1, True, "3"):
        with pytest.raises(InvalidArgument):
            await ns.move_cursor("orders", "x", bad)  # type: ignore[arg-type]
    for bad_name in ("", "a/b", "x" * 201, "a\n"):
        with pytest.raises(InvalidArgument):
            await ns.move_cursor("orders", bad_name, 1)
    with pytest.raises(NoSuchStream):
        await ns.move_cursor("missing", "x", 0)
    with pytest.raises(NoSuchStream):
        await ns.cursors("missing")


async def test_a_cursor_deleted_under_a_reader_is_not_made_again(ns: Namespace) -> None:
    await fill(ns, "orders")
    with pytest.raises(NoSuchCursor):
        await ns.delete_cursor("orders", "billing")
    await ns.move_cursor("orders", "billing", 2)
    async with ns.read("orders", cursor="billing") as reader:
        assert (await anext(reader)).offset == 2
        await ns.delete_cursor("orders", "billing")
        with pytest.raises(NoSuchCursor):
            await reader.commit()
    assert await ns.cursors("orders") == []


async def test_a_cursor_below_the_earliest(ns: Namespace) -> None:
    await fill(ns, "orders")
    await ns.move_cursor("orders", "slow", 2)
    await ns.truncate("orders", before=5)
    with pytest.raises(OffsetTruncated):
        await anext(ns.read("orders", cursor="slow"))
    async with ns.read("orders", cursor="slow", on_truncated="skip") as reader:
        assert (await anext(reader)).offset == 5
        await reader.commit()
    assert (await ns.cursors("orders"))[0].offset == 6


async def test_a_late_commit_leaves_nothing_in_a_deleted_stream(client: Client, ns: Namespace) -> None:
    await fill(ns, "orders")
    known, fresh = cursor_of(client, ns, "orders", "known"), cursor_of(client, ns, "orders", "fresh")
    await known.move(1)
    await fresh.load()
    uid = (await ns.info("orders")).uid
    await ns.delete("orders")
    for cursor in (known, fresh):
        with pytest.raises((NoSuchStream, NoSuchCursor)):
            await cursor.move(2)
    await fill(ns, "orders")
    with pytest.raises(NoSuchStream):
        await fresh.move(2)
    assert await ns.cursors("orders") == []
    with pytest.raises(NoSuchKey):
        await ns.store.keys.get(ns.store.layout.data(uid))


async def test_a_malformed_cursor_is_named(client: Client, ns: Namespace) -> None:
    await fill(ns, "orders")
    await ns.move_cursor("orders", "bad", 1)
    key = ns.store.layout.cursor((await ns.info("orders")).uid, "bad")
    for value in (b"nonsense", b"{}", b'{"offset":"1","changed":0}'):
        await ns.store.keys.set(key, value, (await ns.store.keys.get(key)).version)
        with pytest.raises(MalformedRecord, match="bad"):
            await cursor_of(client, ns, "orders", "bad").load()


class Forgetful:
    """A key store that carries out its next mutation and loses the reply."""

    def __init__(self, inner: KeyStore) -> None:
        self._inner, self.lose = inner, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _lost(self) -> None:
        if self.lose:
            self.lose -= 1
            raise MetadataUnavailable("the answer was lost")

    async def set(self, key: str, value: bytes, version: int) -> int:
        done = await self._inner.set(key, value, version)
        self._lost()
        return done

    async def delete(self, key: str, version: int) -> None:
        await self._inner.delete(key, version)
        self._lost()

    async def multi(self, ops: list[KeyOp]) -> None:
        await self._inner.multi(ops)
        self._lost()


class _Store(StreamStore):
    forgetful: Forgetful

    @property
    def keys(self) -> KeyStore:
        return self.forgetful  # type: ignore[return-value]  # It passes all other calls to the real one.


async def test_lost_replies_change_nothing_for_a_cursor(client: Client, ns: Namespace) -> None:
    await fill(ns, "orders")
    store = _Store(client.services.store)
    store.forgetful = Forgetful(client.services.store.keys)
    cursor = Cursor(store, stream_name("orders", ns.name), "c", client.services.runtime.clock)
    for offset in (3, 7):  # The first call creates the cursor, the second one moves it.
        store.forgetful.lose = 1
        await cursor.move(offset)
        assert await cursor.load() == offset
    store.forgetful.lose = 1
    await cursor.delete()
    assert await cursor.load() is None
