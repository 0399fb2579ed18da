"""Objects and uploads while clocks are wrong: nothing ends before its time, and afterwards all ends when it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.support.clock import DAY, SECOND, SettableClock
from tests.support.polling import eventually

from buckram.cluster import Client, connect
from buckram.errors import NoSuchObject
from buckram.runtime.production import production_runtime
from buckram.state.objects.objects import Objects
from buckram.testing import cluster

MONTH_S = 30 * 86_400.0
HOUR = 3600 * SECOND


@asynccontextmanager
async def shared_clock(clock: SettableClock) -> AsyncIterator[Client]:
    """A cluster with one time source for all."""
    async with cluster(bookies=3, clock=clock) as running:
        runtime = replace(production_runtime(), clock=clock)
        async with connect(running.uri, runtime=runtime) as client:
            await client.namespaces.create("shop")
            yield client


def near(time_us: int | None, wanted: int) -> bool:
    return time_us is not None and abs(time_us - wanted) < 60 * SECOND


async def is_certain(client: Client) -> bool:
    return not await client.services.clocks.doubt()


async def log_us(objects: Objects) -> int:
    return await objects._index.look(lambda state: state.now_us)


async def test_clocks_that_are_ahead_for_some_seconds_end_nothing_and_delay_nothing() -> None:
    clock = SettableClock()
    async with shared_clock(clock) as client, client.objects("shop") as objects:
        await objects.put("before", b"1", expires_s=MONTH_S)
        upload = await objects.begin_upload("parts")
        await objects.put_part(upload, 0, b"part")
        clock.ahead = 40 * DAY
        for _ in range(3):
            await objects.sweep()
        assert await objects.get("before") == b"1"
        assert len(await objects.parts(upload)) == 1
        meanwhile = await objects.put("meanwhile", b"2", expires_s=MONTH_S)
        assert near(meanwhile.expires, clock.wall_us() + 30 * DAY)  # the later one of both times that it may be
        other = await objects.begin_upload("other")
        clock.ahead, clock.passed = 0, 8 * SECOND
        await objects.sweep()
        assert near((await objects.info("meanwhile")).expires, clock.true_us() + 30 * DAY)
        assert near(await log_us(objects), clock.true_us())
        clock.passed += 7 * DAY + 60 * SECOND
        await objects.sweep()
        assert (await objects.upload_name(upload), await objects.upload_name(other)) == (None, None)
        assert [info.name for info in await objects.list()] == ["before", "meanwhile"]
        clock.passed += 23 * DAY
        await objects.sweep()
        assert await objects.list() == []


async def test_clocks_that_stay_ahead_are_believed_after_an_hour_and_what_was_put_meanwhile_lives_on() -> None:
    """As after a pause of the whole cluster that no clock of its machines counted."""
    clock = SettableClock()
    async with shared_clock(clock) as client, client.objects("shop") as objects:
        await objects.put("old", b"1", expires_s=MONTH_S)
        clock.ahead = 40 * DAY
        await objects.sweep()
        await objects.put("new", b"2", expires_s=MONTH_S)
        upload = await objects.begin_upload("parts")
        await clock.hold(HOUR - 20 * SECOND, client.services.clocks.doubt)
        await objects.sweep()
        assert [info.name for info in await objects.list()] == ["new", "old"]
        clock.passed += 40 * SECOND
        await eventually(lambda: is_certain(client))
        await objects.sweep()
        assert [info.name for info in await objects.list()] == ["new"]
        assert await objects.upload_name(upload) == "parts"
        clock.passed += 30 * DAY
        await objects.sweep()
        assert await objects.list() == []


async def test_a_log_that_was_ahead_goes_back_when_clocks_are_right() -> None:
    """All clocks were 40 days ahead from the first start on, and are set right."""
    clock = SettableClock(40 * DAY)
    async with shared_clock(clock) as client, client.objects("shop") as objects:
        await objects.put("ahead", b"1", expires_s=MONTH_S)
        clock.ahead = 0
        await objects.sweep()
        await clock.hold(HOUR + 20 * SECOND, client.services.clocks.doubt)
        await eventually(lambda: is_certain(client))
        await objects.sweep()
        assert near(await log_us(objects), clock.true_us())
        right = await objects.put("right", b"2", expires_s=MONTH_S)
        assert near(right.expires, clock.true_us() + 30 * DAY)
        assert near((await objects.info("ahead")).expires, clock.true_us() + 30 * DAY)
        clock.passed += 29 * DAY
        await objects.sweep()
        assert len(await objects.list()) == 2
        clock.passed += 2 * DAY
        await objects.sweep()
        with pytest.raises(NoSuchObject):
            await objects.info("ahead")
        assert await objects.list() == []
