"""Many databases of which few are open."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest
from tests.support.polling import until

from buckram.errors import HandleClosed, NoSuchDatabase
from buckram.namespace import Namespace
from buckram.runtime.process.handle_cache import HandleCache as PlainShelf
from buckram.state.db.database import Database
from buckram.state.db.opening import Shelf


async def test_databases_are_opened_when_used_and_closed_when_idle(ns: Namespace) -> None:
    async def open_one(name: str) -> Database:
        database = await ns.database(name, create=name != "none")
        await database.lead()
        return database

    shelf = Shelf(open_one, idle_s=0.3, most_open=3)
    threads, before = threading.active_count(), set(threading.enumerate())
    for number in range(6):
        async with shelf.use(f"tenant{number}") as db:
            await db.execute("CREATE TABLE t (a)")
            await db.execute("INSERT INTO t VALUES (?)", (number,))
    await until(lambda: len(shelf.names) <= 3)
    await until(lambda: not shelf.names, "idle databases stay open")
    await until(lambda: not shelf._closing)
    assert threading.active_count() <= threads + 6  # Those of the loop's executor stay.
    assert not [one for one in threading.enumerate() if one.name.startswith("database") and one not in before]

    async def ask(number: int) -> object:
        async with shelf.use(f"tenant{number}") as db:
            return (await db.query("SELECT a FROM t")).rows[0][0]

    took = time.perf_counter()
    assert await asyncio.gather(*(ask(3) for _ in range(20))) == [3] * 20
    assert time.perf_counter() - took < 10
    assert await asyncio.gather(*(ask(number) for number in range(6))) == list(range(6))
    with pytest.raises(NoSuchDatabase):
        async with shelf.use("none"):
            pass
    assert "none" not in shelf.names
    await shelf.close()
    with pytest.raises(HandleClosed):
        async with shelf.use("tenant1"):
            pass


async def test_a_closed_database_leaves_nothing_in_memory(ns: Namespace) -> None:
    shelf = Shelf(lambda name: ns.database(name), idle_s=0.05)
    async with shelf.use("tenant") as db:
        assert shelf.opened() == {"tenant": db}
        known = weakref.ref(db)
        del db
    await until(lambda: not shelf.names and not shelf._closing)
    assert shelf.opened() == {}

    def gone() -> bool:
        gc.collect()
        return known() is None

    await until(gone, "something holds the closed database")
    await shelf.close()


async def test_what_ended_while_nobody_used_it_is_opened_anew() -> None:
    opened: list[asyncio.Event] = []

    async def open_one(name: str) -> asyncio.Event:
        opened.append(asyncio.Event())
        return opened[-1]

    async def close_one(item: asyncio.Event) -> None:
        item.set()

    shelf = PlainShelf("events", open_one, close_one, asyncio.Event.is_set, idle_s=60.0, most_open=3)
    async with shelf.use("a") as first:
        assert not first.is_set()
    first.set()
    async with shelf.use("a") as second:
        assert (second is first, second.is_set(), len(opened)) == (False, False, 2)
    await shelf.close()


async def test_an_opening_that_failed_with_anything_is_tried_anew() -> None:
    opened: list[asyncio.Event] = []

    async def open_one(name: str) -> asyncio.Event:
        opened.append(asyncio.Event())
        if len(opened) == 1:
            raise OSError(28, "No space left on device")
        return opened[-1]

    async def close_one(item: asyncio.Event) -> None:
        item.set()

    shelf = PlainShelf("events", open_one, close_one, asyncio.Event.is_set, idle_s=60.0, most_open=3)
    first, second = await asyncio.gather(shelf.take("a"), shelf.take("a"), return_exceptions=True)
    assert isinstance(first, OSError)
    assert isinstance(second, OSError)
    async with shelf.use("a") as item:
        assert item is opened[1]
    await shelf.close()
    assert opened[1].is_set()


async def test_whoever_has_most_open_makes_room() -> None:
    async def open_one(name: str) -> asyncio.Event:
        return asyncio.Event()

    async def close_one(item: asyncio.Event) -> None:
        item.set()

    shelf = PlainShelf(
        "events",
        open_one,
        close_one,
        asyncio.Event.is_set,
        idle_s=60.0,
        most_open=4,
        holder=lambda name: name.partition("/")[0],
    )
    for name in ("alice/1", "alice/2", *(f"mallory/{number}" for number in range(20))):
        (await shelf.take(name)).give()
    assert shelf.names == ["alice/1", "alice/2", "mallory/18", "mallory/19"]
    await shelf.close()
