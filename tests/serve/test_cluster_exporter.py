"""What the exporter sees of a cluster, and what it shows while it cannot look."""

from __future__ import annotations

import asyncio
import re

from tests.support.exporter_kit import furnished
from tests.support.polling import eventually

from buckram.cluster import connect
from buckram.runtime.net.http_server import Request
from buckram.serve.cluster_exporter import Exporter, look
from buckram.serve.cluster_exporter import cluster as cluster_of
from buckram.testing import ThreadedCluster


async def shown(exporter: Exporter) -> dict[str, float]:
    """Values by name with labels."""
    text = (await exporter.answer(Request("GET", "/metrics"))).content.decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[:1] != "#"}


async def test_streams_cursors_databases_namespaces_and_lost_copies() -> None:
    with ThreadedCluster(bookies=1) as cluster:
        async with furnished(cluster.uri) as client:
            exporter = Exporter(cluster_of(client, 100), 10.0)
            assert (await exporter.answer(Request("GET", "/ready"))).status == 503

            async def complete() -> bool:
                await exporter.look()
                found = await shown(exporter)
                replica = 'buckram_database_replica_lag_records{database="shop/main",server="server-1"}'
                return found.get(replica) == 1 and bool(found.get('buckram_namespace_stored_bytes{namespace="shop"}'))

            await eventually(complete, "the replica or the usage is not shown")
            found = await shown(exporter)
            assert found['buckram_cluster_bookies{state="writable"}'] == 1
            assert found["buckram_cluster_auditor"] == 0
            assert found["buckram_cluster_marked_ledgers"] == 0
            assert found['buckram_stream_end_offset{stream="shop/orders"}'] == 11
            assert found['buckram_cursor_lag_records{cursor="billing",stream="shop/orders"}'] == 7
            assert found['buckram_stream_application_version{application="counts",stream="shop/orders"}'] == 7
            assert found['buckram_database_leaders{database="shop/main"}'] == 0
            assert found['buckram_namespace_quota{namespace="shop",quota="stored_bytes"}'] == 10**9
            assert (await exporter.answer(Request("GET", "/ready"))).status == 200

            # What is gone leaves no line behind.
            await client.namespace("shop").delete("orders")
            await exporter.look()
            assert not [name for name in await shown(exporter) if "shop/orders" in name]


async def test_streams_beyond_the_limit_are_counted() -> None:
    with ThreadedCluster(bookies=1) as cluster:
        async with connect(cluster.uri) as client:
            for number in range(5):
                await client.namespace("default").create(f"s{number}")
            found = await look(client, 3)
            assert [one.info.name for one in found.streams] == ["default/s0", "default/s1", "default/s2"]
            assert found.left_out == 2


async def test_what_was_seen_last_is_shown_while_looks_fail() -> None:
    with ThreadedCluster(bookies=1) as cluster:
        async with connect(cluster.uri) as client:
            exporter = Exporter(cluster_of(client, 100), 0.01)
            await exporter.look()
        before = await shown(exporter)  # the client is closed now: every look fails
        task = asyncio.ensure_future(exporter.run())

        async def failed() -> bool:
            return (await shown(exporter))["buckram_exporter_failed_looks_total"] > 2

        await eventually(failed, "no look failed")
        task.cancel()
        after = await shown(exporter)
        seen = re.compile(r"buckram_(?!exporter)")
        assert {k: v for k, v in after.items() if seen.match(k)} == {k: v for k, v in before.items() if seen.match(k)}
        assert after["buckram_exporter_look_timestamp_seconds"] == before["buckram_exporter_look_timestamp_seconds"]


async def test_other_pages_are_refused() -> None:
    with ThreadedCluster(bookies=1) as cluster:
        async with connect(cluster.uri) as client:
            exporter = Exporter(cluster_of(client, 1), 1.0)
            assert (await exporter.answer(Request("GET", "/x"))).status == 404
            assert (await exporter.answer(Request("POST", "/metrics"))).status == 405
            assert (await exporter.answer(Request("GET", "/health"))).status == 200
