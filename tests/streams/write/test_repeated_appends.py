"""An append that is repeated while the first one is in flight is stored once, and acknowledged when that is stored."""

from __future__ import annotations

import asyncio

from tests.streams.write.test_writer import values

from buckram.namespace import Namespace


async def test_a_repeated_append_is_answered_when_the_first_is_stored(ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as w:
        order: list[str] = []
        first = asyncio.ensure_future(w.append(b"a", producer="p", sequence=0))
        again = asyncio.ensure_future(w.append(b"a", producer="p", sequence=0))
        many = asyncio.ensure_future(w.append_many([b"a"], producer="p", sequence=0))
        for name, one in (("first", first), ("again", again), ("many", many)):
            one.add_done_callback(lambda _, name=name: order.append(name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [], "no bookie has answered yet"
        assert await again == await first == 0
        assert await many == range(1, 1)
        assert order[0] == "first"
    assert await values(ns, "s") == [b"a"]
