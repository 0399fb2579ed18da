"""The async twin, and what connections of one loop share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.replication.restoring import backed_up, restored
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.sql import InterfaceError, OperationalError, aio
from buckram.sql.shared_databases import LINGER_S, sharing
from buckram.testing import Cluster, cluster


@pytest.fixture
async def running() -> AsyncIterator[Cluster]:
    async with cluster(bookies=3) as started:
        async with started.client() as client:
            await client.namespaces.create("shop")
        yield started
        await sharing().close()


async def test_the_same_names_with_await(running: Cluster) -> None:
    async with aio.connect(running.uri, "shop/main") as connection:
        await connection.executescript("CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1);")
        assert connection.in_transaction
        await connection.commit()
        async with await connection.execute("SELECT x FROM t") as cursor:
            assert await cursor.fetchone() == (1,)
            assert await cursor.fetchone() is None
        await connection.executemany("INSERT INTO t VALUES (?)", [(2,), (3,)])
        await connection.rollback()
        await connection.execute("INSERT INTO t VALUES (4)")
    connection = await aio.connect(running.uri, "shop/main")
    cursor = await connection.execute("SELECT x FROM t ORDER BY x")
    assert [row async for row in cursor] == [(1,), (4,)]
    assert await cursor.fetchall() == []
    assert await cursor.fetchmany(3) == []
    await connection.close()
    with pytest.raises(InterfaceError, match="the connection is closed"):
        await connection.commit()


async def test_connections_share_a_database_which_lingers(running: Cluster) -> None:
    first, second = await asyncio.gather(*(aio.connect(running.uri, "shop/main") for _ in range(2)))
    shared = first._shared
    assert second._shared.database is shared.database
    await first.close()
    await second.close()
    again = await aio.connect(running.uri, "shop/main")
    assert again._shared.database is shared.database
    await again.close()
    await pass_time(LINGER_S + 1)
    await until(lambda: shared.database.role == "stopped")
    async with aio.connect(running.uri, "shop/main") as connection:
        assert connection._shared.database is not shared.database


async def test_a_process_that_follows_reads_stale_and_is_told_who_leads(running: Cluster) -> None:
    async with running.client() as other, other.namespace("shop").database("main", announce="http://leader") as leader:
        await leader.lead()
        await leader.execute("CREATE TABLE t (x)")
        async with aio.connect(running.uri, "shop/main", consistency="stale", at_most_s=0) as connection:
            assert await (await connection.execute("SELECT x FROM t")).fetchall() == []
        connection = await aio.connect(running.uri, "shop/main")
        with pytest.raises(OperationalError, match="'http://leader' leads it"):
            await connection.execute("INSERT INTO t VALUES (1)")
        await connection.close()


async def test_a_connection_waits_while_leaders_change(running: Cluster) -> None:
    async with running.client() as other:
        leader = await other.namespace("shop").database("main")
        await leader.lead()
        await leader.execute("CREATE TABLE t (x)")
        connection = await aio.connect(running.uri, "shop/main")
        closing = asyncio.ensure_future(leader.aclose())
        await until(lambda: leader.role != "leader")
        await connection.execute("INSERT INTO t VALUES (1)")
        await connection.commit()
        await closing
        await connection.close()


async def test_who_connects_again_after_a_restore_is_served(running: Cluster) -> None:
    """The client that all share was connected before and refuses the store for good; it must not be the next one's."""
    first = await aio.connect(running.uri, "shop/main")
    await first.executescript("CREATE TABLE t (x INTEGER)")
    await first.commit()
    await restored(running, await backed_up(running))
    for name in ("shop/main", "shop/second"):
        async with aio.connect(running.uri, name) as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER)")
    assert len(sharing()._left) == 1
    await first.close()


async def test_a_restore_that_nobody_accepted_is_told_each_time(running: Cluster) -> None:
    async with aio.connect(running.uri, "shop/main"):
        pass
    await restored(running, await backed_up(running), accepted=False)
    for _ in range(2):
        with pytest.raises(OperationalError, match="accept-restore"):
            await aio.connect(running.uri, "shop/other")
    assert len(sharing()._left) == 1
