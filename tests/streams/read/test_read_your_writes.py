"""What was acknowledged a moment ago: found by its offset at once, though readers are told a moment later."""

from __future__ import annotations

import time

import pytest

from buckram import connect
from buckram.config import ClientConfig
from buckram.errors import OffsetNotReadable, OffsetOutOfRange
from buckram.namespace import Namespace
from buckram.testing import Cluster

ROUNDS = 25


async def test_get_finds_what_an_append_has_just_returned(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as reading, ns.writer("s") as writer:
        there = reading.namespace(ns.name)
        for number in range(ROUNDS):
            value = b"%d" % number
            by = (ns, there)[number % 2]
            assert (await by.get("s", await writer.append(value))).value == value
            if number % 10 == 7:
                assert await writer.roll()  # an offset in a segment that has just begun


async def test_offsets_of_acknowledged_records_are_good_everywhere(ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        end = await writer.append(b"a") + 1
        await ns.move_cursor("s", "c", end)
        end = await writer.append(b"b") + 1
        async with ns.read("s", start=end) as reader:
            assert await reader.next_batch() is None
            end = await writer.append(b"c") + 1
            await reader.seek(end)
        end = await writer.append(b"d") + 1
        assert await ns.truncate("s", before=end) == end


async def test_what_nobody_has_written_is_refused_at_once(ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"a")
        began = time.process_time(), time.monotonic()
        for offset in (1, 2, 10**15):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is out of range") as refused:
                await ns.get("s", offset)
            assert not refused.value.retryable
            assert not isinstance(refused.value, OffsetNotReadable)
        assert time.monotonic() - began[1] < 2.5, "it waited for what nobody has written"


async def test_a_record_whose_writer_died_is_said_to_be_written(three_bookies: Cluster, ns: Namespace) -> None:
    """Its writer can tell nobody any more that it was acknowledged; the next one makes it readable."""
    async with connect(three_bookies.uri, config=ClientConfig(idle_lac_ms=0)) as dying:
        writer = await dying.namespace(ns.name).writer("s")
        await writer.append(b"a")
        await writer.append(b"b")
        await dying.close()  # leaves its ledger open
    with pytest.raises(OffsetNotReadable, match=r"offset 1 is written and not readable yet.*stream seal") as found:
        await ns.get("s", 1)
    assert found.value.retryable
    with pytest.raises(OffsetOutOfRange, match="offset 3 is out of range"):
        await ns.get("s", 3)
    async with ns.writer("s"):
        assert (await ns.get("s", 1)).value == b"b"
