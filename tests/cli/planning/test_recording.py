"""The usage history is a stream that several processes may add to."""

from __future__ import annotations

from dataclasses import replace

from tests.support.clock import DAY, SettableClock

from buckram.cli.planning.history import NAMESPACE, STREAM
from buckram.cli.planning.recording import APPLICATION, US, history, record, sample
from buckram.cluster import connect
from buckram.metadata.records.topology import change_rack_map
from buckram.runtime.production import production_runtime
from buckram.streams.system_streams import RETENTION_S, append_in_one_step
from buckram.testing import ThreadedCluster


async def test_samples_are_kept_in_order_and_not_too_many() -> None:
    with ThreadedCluster(bookies=3) as cluster:
        async with connect(cluster.uri) as client:
            assert await history(client) == []
            first = await record(client)
            assert first is not None
            assert len(first.bookies) == 3
            assert all(0 < one.free_bytes <= one.total_bytes for one in first.bookies.values())
            assert {one.rack for one in first.bookies.values()} == {"/default-rack"}
            assert await record(client, 300.0) is None, "another process has just recorded"
            second = await record(client)
            assert second is not None
            found = await history(client)
            assert found == [first, second]
            assert await history(client, second.wall_s + 1) == []
            info = await client.namespace(NAMESPACE).info(STREAM)
            assert info.policy.retention_s == 400 * 86_400
            # The other streams of the namespace, such as the audit trail, have the namespace's, whichever was first.
            assert (await client.namespaces.get(NAMESPACE)).policy["retention_s"] == RETENTION_S


async def test_a_wrong_clock_neither_dates_samples_nor_keeps_others_from_being_taken() -> None:
    with ThreadedCluster(bookies=3) as cluster:
        async with connect(cluster.uri, runtime=replace(production_runtime(), clock=SettableClock(40 * DAY))) as wrong:
            now_s = SettableClock().true_us() / US
            ahead = await record(wrong)
            assert ahead is not None
            assert abs(ahead.wall_s - now_s) < 60
            # All clocks were wrong for so long that they were believed, and were set right since.
            info = await wrong.namespace(NAMESPACE).info(STREAM)
            dated = ahead._replace(wall_s=ahead.wall_s + 40 * 86_400)
            await append_in_one_step(wrong, info, APPLICATION, [dated.encode()], [round(dated.wall_s * US)])
            right = await record(wrong, 300.0)
            assert right is not None
            assert abs(right.wall_s - now_s) < 60
            assert await record(wrong, 300.0) is None


async def test_racks_are_those_of_the_topology() -> None:
    with ThreadedCluster(bookies=1) as cluster:
        async with connect(cluster.uri) as client:
            store, bookie = client.services.store, cluster.bookies[0]
            await change_rack_map(store, lambda kept: kept.placed(bookie, "/eu/r7"))
        async with connect(cluster.uri) as client:
            found = await sample(client)
            assert {one: space.rack for one, space in found.bookies.items()} == {bookie: "/eu/r7"}
