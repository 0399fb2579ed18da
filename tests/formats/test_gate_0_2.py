"""A cluster that commit 6930de3f wrote is used by a tenant who is held to grants, and judged by what changes mean.

Records of that time name their owners as those of today do, so nothing has to be stamped: what the tenant had he has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.formats.make_0_2 import record
from tests.formats.test_cluster_0_2 import (
    BOOKIES,
    FACTS,
    STORE,
    check_live_stream,
    check_machines,
    check_streams,
    place,
)
from tests.support.secure_kit import Files

from buckram.bookie.process import Bookie
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.cli.cluster.metadata_backup import open_tree
from buckram.cluster import Client, connect
from buckram.config import AuthConfig, BookieConfig, ClientConfig, NetConfig
from buckram.core.streams.names import StreamName
from buckram.errors import AccessRefused
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.uri import open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.offload import check_stream

__all__ = ["place"]
GRANTED = ("read", "append", "create", "delete")
LOGINS = AuthConfig(logins="token", authorisation="on", mixed="refused")
QUIET = ClientConfig(local_read_bytes=0)


@asynccontextmanager
async def secured(place: Path) -> AsyncIterator[tuple[Client, Client]]:
    """The tenant's client, which knows the bookies alone, and an operator's."""
    uri, runtime, files = f"sqlite://{place}/metadata.db", production_runtime(), Files(place / "ca")
    tree = await open_tree(uri)
    try:
        security = SecurityStore(tree)
        await security.change_acl(lambda acl: acl.granting("token:tenant", "shop", GRANTED))
        _, tenant = await security.create_token("tenant", (), 1.0, 4e9)
        _, operator = await security.create_token("operator", ("admin",), 1.0, 4e9)
    finally:
        await tree.close()
    async with AsyncExitStack() as cleanup:
        ports = []
        for name in BOOKIES:
            metadata = await open_store(uri, runtime)
            cleanup.push_async_callback(metadata.close)
            disk = LocalDisk(place / name, "inline")
            cleanup.callback(disk.close)
            config, door = BookieConfig(port=0, bookie_id=name), ConnectionGate(files.bookie, LOGINS)
            bookie = Bookie(
                runtime, disk, metadata, config, STORE, NetConfig(), door=door, open_store=lambda: open_store(uri)
            )
            info = await bookie.start()
            cleanup.push_async_callback(bookie.stop)
            assert info.address is not None
            ports.append(f"127.0.0.1:{info.address.port}")
        served = f"buckram+tls://{','.join(ports)}/"
        async with (
            connect(served, tls=files.client, token=tenant, config=QUIET) as his,
            connect(uri, tls=files.client, token=operator, config=QUIET) as own,
        ):
            yield his, own


async def test_a_tenant_goes_on_with_what_he_had(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    async with secured(place) as (his, own):
        await check_streams(his)
        await check_machines(his)
        await check_live_stream(his)
        shop = his.namespace("shop")
        async with shop.writer("orders") as writer:
            assert await writer.append(record(50), producer="till", sequence=40) == FACTS["records"]
        await shop.fork_stream("orders", "orders-now", offset=45)
        assert [one.value async for one in shop.read("orders-now")] == [record(number) for number in range(45)]
        step = await shop.bulk("orders", application="counts", version=5)
        bulk = await step.create_ledger()
        await bulk.append_many([record(51)])
        await step.publish([await bulk.close()])
        await shop.truncate("orders", before=20)
        async with shop.database("main") as database:
            await database.lead()
            await database.execute("INSERT INTO t (b) VALUES ('now')")
        async with his.objects("shop") as objects:
            await objects.complete_upload(FACTS["upload"], 1)
            await objects.delete("small")
        cleaned = await Janitor(own, JanitorSettings(grace_s=0, retired_s=0, bulk_age_s=0)).clean()
        assert cleaned.problems == []
        for name in ("orders", "orders-then", "orders-now", "live", "packed"):
            assert (await check_stream(own, shop.store, StreamName("shop", name))).problems == [], name
        for name in ("orders", "orders-then"):
            await shop.delete(name)
        assert [one.value async for one in shop.read("orders-now")][20:] == [record(number) for number in range(20, 45)]
        with pytest.raises(AccessRefused):
            await his.namespace("copied").info("news")
