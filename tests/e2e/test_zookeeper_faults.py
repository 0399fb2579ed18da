"""A real ensemble of three under faults, with bookies as processes and a writer that goes on: leader change, ZooKeeper
away for longer than sessions live, sessions that expire. About a minute, nearly all of it the time-outs of sessions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.e2e.conftest import DEADLINE_S, buckram, environment
from tests.e2e.zookeeper_kit import need_zookeeper
from tests.support.polling import eventually

from buckram import Client, Writer, connect
from buckram.errors import MetadataUnavailable, NotEnoughBookies
from buckram.launch.processes import BookieProcess, stop_all
from buckram.launch.zookeeper_server import Ensemble, start_ensemble

pytestmark = pytest.mark.share(10, "stores")

IDS = ["bookie-1", "bookie-2", "bookie-3"]


@dataclass
class Cluster:
    ensemble: Ensemble
    bookies: list[BookieProcess]
    uri: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_zookeeper()
    root = tmp_path_factory.mktemp("cluster")
    with start_ensemble(root / "zookeeper") as ensemble:
        uri = f"zk://{ensemble.address}/ledgers"
        assert buckram("cluster", "init", uri=uri).code == 0
        bookies = [BookieProcess(uri, root / name, bookie_id=name) for name in IDS]
        try:
            for bookie in bookies:
                bookie.start()
            for bookie in bookies:
                bookie.wait_ready()
            yield Cluster(ensemble, bookies, uri)
        finally:
            stop_all(bookies)


def expirations(cluster: Cluster) -> int:
    """The number of sessions that the servers have expired."""
    return sum(server.log.read_bytes().count(b"Expiring session") for server in cluster.ensemble.servers)


async def writable(client: Client) -> list[str]:
    return list((await client.services.store.bookies()).writable)


class Pump:
    """Appends one entry after another and records what was acknowledged."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.acked: list[bytes] = []
        self._stopped = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopped:
            payload = b"%d" % len(self.acked)
            assert await self.writer.append(payload) == len(self.acked)
            self.acked.append(payload)
            await asyncio.sleep(0.002)

    async def more(self, count: int = 50) -> None:
        """Wait for that many further acknowledgements."""
        wanted = len(self.acked) + count

        async def reached() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.acked) >= wanted

        await eventually(reached, f"the writer stands at {len(self.acked)}")

    async def stop(self) -> None:
        self._stopped = True
        await self._task


async def create_when_possible(client: Client) -> Writer:
    made: list[Writer] = []

    async def attempt() -> bool:
        try:
            made.append(await client.create(ensemble="3/3/2"))
        except (MetadataUnavailable, NotEnoughBookies):  # bookies whose sessions ended register again a little later
            return False
        return True

    await eventually(attempt, "no ledger can be created")
    return made[0]


async def test_a_writer_survives_a_leader_change_and_an_absent_zookeeper(cluster: Cluster) -> None:
    ensemble = cluster.ensemble
    async with connect(cluster.uri) as client:
        pump = Pump(await client.create(ensemble="3/3/2"))
        await pump.more()

        leader = ensemble.leader()
        await asyncio.to_thread(ensemble.kill, leader)
        other = await create_when_possible(client)  # perhaps before the others noticed, perhaps only after an election
        await other.append(b"x")
        await other.close()
        assert await asyncio.to_thread(ensemble.leader) != leader
        await pump.more()
        await asyncio.to_thread(ensemble.restart, leader)

        for n in range(3):
            await asyncio.to_thread(ensemble.kill, n)
        away = time.monotonic()
        while time.monotonic() < away + 12:  # longer than sessions live
            with pytest.raises(MetadataUnavailable) as refused:
                await client.create(ensemble="3/3/2")
            assert ensemble.servers[0].address in str(refused.value)
            await pump.more()
        for n in range(3):
            await asyncio.to_thread(ensemble.restart, n, None)
        await asyncio.to_thread(ensemble.wait_ready)
        await (await create_when_possible(client)).close()

        async def all_there() -> bool:
            return await writable(client) == IDS

        await eventually(all_there, "a bookie is not registered")
        await pump.more()
        await pump.stop()
        assert not pump.writer.degraded
        await pump.writer.close()
        async with client.open(pump.writer.ledger_id) as reader:
            assert reader.metadata.closed
            assert [e.payload for e in await reader.read(0, len(pump.acked) - 1)] == pump.acked
    assert all(bookie.alive for bookie in cluster.bookies)


async def test_stopped_processes_continue_after_their_sessions_expired(cluster: Cluster) -> None:
    """A bookie and a client are stopped (SIGSTOP) until their sessions expire, and continue afterwards."""
    stopped = cluster.bookies[0]
    command = [sys.executable, "-m", "buckram", "ledger", "write", "--acks", "--close", "--ensemble", "2/2/2"]
    async with connect(cluster.uri) as client:
        pump = Pump(await client.create(ensemble="3/3/2"))
        writer = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(cluster.uri)
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        ledger = json.loads(await writer.stdout.readline())["ledger"]
        writer.stdin.write(b"before\n")
        assert await writer.stdout.readline() == b"0\n"
        expired = expirations(cluster)
        writer.send_signal(signal.SIGSTOP)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:

            async def both_are_gone() -> bool:
                return expirations(cluster) >= expired + 2 and await writable(client) == IDS[1:]

            await eventually(both_are_gone, "the sessions of stopped processes go on")
            await pump.more()
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
            writer.send_signal(signal.SIGCONT)

        async def all_there() -> bool:
            return await writable(client) == IDS

        await eventually(all_there, "the bookie does not register again")
        assert stopped.alive
        everywhere = await client.create(ensemble="3/3/3")  # the bookie's acknowledgement is needed
        await everywhere.append(b"x")
        await everywhere.close()
        await pump.more()
        await pump.stop()
        await pump.writer.close()
        async with asyncio.timeout(DEADLINE_S):
            out, err = await writer.communicate(b"after\n")
        assert writer.returncode == 0, err.decode()
        assert b"a new one serves" in err
        assert json.loads(out.splitlines()[-1]) == {"ledger": ledger, "entries": 2, "last_entry": 1}
        async with client.open(ledger) as reader:
            assert reader.metadata.closed
            assert [e.payload for e in await reader.read(0, 1)] == [b"before", b"after"]
        async with client.open(pump.writer.ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, len(pump.acked) - 1)] == pump.acked
