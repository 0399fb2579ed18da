"""Members that are slow for long are told, and give way where that is wanted."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.scripted_bookie import scripted

from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.metadata.records.bookie_health import degraded_bookies


def make_slow(client: Client, bookie: str, seconds: float) -> None:
    """As if adds took so long there lately, and two milliseconds elsewhere."""
    adds, now = client.services.bookies.recent.adds, asyncio.get_running_loop().time()
    for name in client.services.bookies.bookies.writable:
        adds.forget(name)
        adds.took(name, seconds if name == bookie else 0.002, now)


async def test_a_slow_bookie_is_told_and_taken_back() -> None:
    async with scripted(config=ClientConfig(degraded_after_s=0.001)) as (cluster, client):
        slow = client.services.slow
        make_slow(client, "b1", 0.5)
        await slow.look()
        await pass_time(0.002)
        await slow.look()
        (found,) = (await degraded_bookies(cluster.store)).items()
        assert found[0] == "b1"
        assert "0.5 s there" in found[1]
        make_slow(client, "b1", 0.002)
        await slow.look()
        assert not await degraded_bookies(cluster.store)


@pytest.mark.parametrize("replace_slow_s", [0.0, 0.001])
async def test_a_slow_member_gives_way_only_where_that_is_set(replace_slow_s: float) -> None:
    async with scripted(4, config=ClientConfig(replace_slow_s=replace_slow_s)) as (_, client):
        writer = await client.create()
        await writer.append(b"x")
        member = writer.metadata.last_fragment.ensemble[0]
        make_slow(client, member, 0.5)
        await client.services.slow.look()
        await pass_time(0.002)
        await client.services.slow.look()
        if replace_slow_s:
            await until(lambda: writer.ensemble_changes == 1, "nobody took its place")
        await writer.append(b"y")
        assert writer.ensemble_changes == bool(replace_slow_s)
        assert (member in writer.metadata.last_fragment.ensemble) == (not replace_slow_s)
        await writer.close()
