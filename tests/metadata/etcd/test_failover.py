"""EtcdKeys among three servers: a leader that is killed, a server that is stopped in its tracks, no quorum."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.conftest import Watch
from tests.support.etcd_kit import new_root, opened

from buckram.errors import ConfigError, MetadataUnavailable, VersionConflict
from buckram.launch.etcd_server import EtcdCluster, start_etcd_cluster


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[EtcdCluster]:
    try:
        cluster = start_etcd_cluster(tmp_path, sync=False)
    except ConfigError as error:
        pytest.skip(f"needs a real etcd: {error}")
    with cluster:
        yield cluster


async def test_a_killed_leader_costs_no_session_and_no_change(trio: EtcdCluster) -> None:
    root = new_root()
    leader = trio.servers[trio.leader()]
    # The one that is asked first, by both: the hosts are given so.
    async with opened(leader.address + "," + trio.address, root) as keys, opened(trio.address, root) as other:
        keys.client._at = 0
        lost, changed = Watch(), Watch()
        keys.on_session_lost(lost)
        await keys.create("/live/a", b"", ephemeral=True)
        await other.create("/counter", b"0")
        await keys.get("/counter", changed)
        lease = keys.session.lease
        await asyncio.to_thread(leader.kill)
        began, done = time.monotonic(), 0
        while done < 5:
            try:
                found = await other.get("/counter")
                await other.set("/counter", b"%d" % (found.version + 1), found.version)
                done += 1
            except (MetadataUnavailable, VersionConflict):
                assert time.monotonic() - began < 15
        await changed.fired()
        found = await keys.get("/counter")
        assert found.value == b"%d" % found.version, "each change happened once and as it was meant"
        assert (await keys.get("/live/a")).owned
        assert (keys.session.lease, lost.times) == (lease, 0)
        assert time.monotonic() - began < 15


async def test_a_server_that_is_stopped_in_its_tracks_is_left_by_watches_too(trio: EtcdCluster) -> None:
    """It takes connections and says nothing. Nothing is asked but what the watches themselves ask."""
    root = new_root()
    follower = trio.servers[(trio.leader() + 1) % 3]
    async with opened(trio.address, root) as keys, opened(trio.address, root) as other:
        keys.client._at = trio.servers.index(follower)
        other.client._at = trio.leader()
        await other.create("/a", b"")
        watch = Watch()
        await keys.get("/a", watch)
        follower.pause()
        try:
            await other.set("/a", b"1", 0)
            await watch.fired()
        finally:
            follower.resume()


async def test_without_a_quorum_everything_ends_in_time_and_goes_on_afterwards(trio: EtcdCluster) -> None:
    async with opened(trio.address, timeout_s=2.0) as keys:
        await keys.create("/a", b"")
        lease = keys.session.lease
        for server in trio.servers[:2]:
            await asyncio.to_thread(server.kill)
        began = time.monotonic()
        for attempt in (keys.get("/a"), keys.set("/a", b"1", 0), keys.children("/")):
            with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1"):
                await attempt
        assert time.monotonic() - began < 8
        trio.servers[0].start()
        await asyncio.to_thread(trio.servers[0].wait_ready)
        found = await keys.get("/a")
        assert await keys.set("/a", b"2", found.version) == found.version + 1
        assert keys.session.lease == lease
