"""buckram.testing: clusters in a test's own process, with kill, pause and restart, and the pytest fixture."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until

import buckram.sync
from buckram.errors import InvalidArgument, NotEnoughBookies
from buckram.testing import ThreadedCluster, cluster


async def test_a_cluster_writes_and_reads() -> None:
    async with cluster(bookies=3) as c:
        async with c.client() as client, client.create() as writer:
            await writer.append_many([b"a", b"b"])
            ledger = writer.ledger_id
        async with c.client() as client, client.open(ledger) as reader:
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"a", b"b"]


async def test_nothing_is_left_at_the_end() -> None:
    before, threads = asyncio.all_tasks(), threading.enumerate()
    async with cluster(bookies=2) as c:
        client = await c.client()
        await client.create(ensemble=2)
        directories = [node.directory for node in c._nodes]
    assert asyncio.all_tasks() == before
    assert not any(directory.exists() for directory in directories)
    left = [thread for thread in threading.enumerate() if thread not in threads]
    assert not [thread for thread in left if thread.name.startswith(("buckram", "sqlite"))]


async def test_a_killed_bookie_can_be_restarted() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        async with client.create() as writer:
            await writer.append(b"before")
            await c.kill(0)
            await writer.append(b"while one is gone")
            await until(lambda: writer.degraded)  # two may have acknowledged before it hears of the third
        await c.restart(0)
        await c.kill(1)
        async with client.recover(writer.ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, 1)] == [b"before", b"while one is gone"]


async def test_a_restart_waits_until_the_port_is_free_again() -> None:
    async with cluster(bookies=1) as c:
        await c.kill(0)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", c._nodes[0].config.port))
            other.listen()
            restarting = asyncio.ensure_future(c.restart(0))
            await pass_time(0.5)
            assert not restarting.done()
        await restarting
        async with c.client() as client, client.create(ensemble=1) as writer:
            await writer.append(b"a")


async def test_a_paused_bookie_answers_nothing_until_it_is_resumed() -> None:
    async with cluster(bookies=1) as c, c.client() as client, client.create(ensemble=1) as writer:
        await writer.append(b"first")
        await c.pause(0)
        waiting = asyncio.ensure_future(writer.append(b"second"))
        await pass_time(0.2)
        assert not waiting.done()
        await c.resume(0)
        assert await waiting == 1


async def test_a_paused_bookie_can_be_killed_and_comes_back() -> None:
    async with cluster(bookies=1) as c, c.client() as client:
        async with client.create(ensemble=1) as writer:
            await writer.append(b"stored")
        await c.pause(0)
        new = await client.create(ensemble=1)
        lost = asyncio.ensure_future(new.append(b"never looked at"))
        await pass_time(0.1)
        await c.kill(0)
        await c.restart(0)
        async with client.open(writer.ledger_id) as reader:
            assert (await reader.get(0)).payload == b"stored"
        await asyncio.gather(lost, return_exceptions=True)


async def test_a_bookie_can_be_added() -> None:
    async with cluster(bookies=1) as c, c.client() as client:
        with pytest.raises(NotEnoughBookies):
            await client.create(ensemble=2)
        assert await c.add() == 1
        async with client.create(ensemble="2/2/2") as writer:
            await writer.append(b"x")
        with pytest.raises(InvalidArgument, match="numbered from 0"):
            await c.kill(2)


def test_the_threaded_cluster_serves_sync_clients() -> None:
    with ThreadedCluster(bookies=3) as c, buckram.sync.connect(c.uri) as client:
        with client.create() as writer:
            writer.append(b"one")
            c.kill(2)
            writer.append(b"two")
        c.restart(2)
        with client.open(writer.ledger_id) as reader:
            assert reader.read_payloads(0, 1) == [b"one", b"two"]


def test_the_fixture_serves_a_sync_test(buckram_cluster: ThreadedCluster) -> None:
    with buckram.sync.connect(buckram_cluster.uri) as client, client.create() as writer:
        assert writer.append(b"x") == 0


async def test_the_fixture_serves_an_async_test(buckram_cluster: ThreadedCluster) -> None:
    async with buckram.connect(buckram_cluster.uri) as client, client.create() as writer:
        assert await writer.append(b"x") == 0


def test_the_plugin_imports_nothing_until_it_is_used(tmp_path: Path) -> None:
    """Every pytest run loads the plugin where the package is installed."""
    heavy = "('buckram.client', 'buckram.bookie', 'buckram.runtime.net', 'uvloop', 'rich')"
    (tmp_path / "test_nothing.py").write_text(
        f"import sys\ndef test_it(): assert not [m for m in sys.modules if m.startswith({heavy})]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
