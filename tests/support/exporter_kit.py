"""A small cluster that has one of everything that the exporter shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from buckram.cluster import Client, connect
from buckram.metadata.records.tenants import TenantStore
from buckram.state.db.commits.replica_reports import ReplicaReport, ReplicaReporter


@asynccontextmanager
async def furnished(uri: str) -> AsyncIterator[Client]:
    """A stream with a cursor and an application's step, a database with a replica that is behind, a quota."""
    async with connect(uri) as client:
        await client.namespaces.create("shop", ensemble="1/1/1")
        shop = client.namespace("shop")
        async with shop.writer("orders") as writer:
            for number in range(10):
                await writer.append(b"order %d" % number)
        reader = shop.read("orders", cursor="billing")
        async with reader:
            async for record in reader:
                if record.offset == 3:
                    break
            await reader.commit()
        step = await shop.bulk("orders", application="counts", version=7)
        ledger = await step.create_ledger()
        await ledger.append_many([b"one"])
        await step.publish([await ledger.close()])
        await TenantStore(client.services.store).set_quotas("shop", {"stored_bytes": 10**9})
        async with shop.database("main") as database:
            await database.lead()
            await database.execute("CREATE TABLE t (a)")
        info = await shop.info("main")

        async def behind() -> ReplicaReport:
            return ReplicaReport("server-1", "follower", max(0, info.end - 1), 0, "00")

        sign = ReplicaReporter(shop.store.keys, f"{shop.store.layout.replicas(info.uid)}/server-1", behind)
        sign.start()
        try:
            yield client
        finally:
            await sign.close()
