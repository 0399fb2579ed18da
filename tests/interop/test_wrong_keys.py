"""On our bookies Apache's client keeps its ledgers after a fencing read with a wrong password (F14).

With its metadata at hand a bookie refuses the stranger; while it is away the stranger's key stays until the owner's
comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import Cluster
from tests.interop.words import JAVA_DIGEST, entries
from tests.support.bookie_kit import OTHER_KEY, Wire

from buckram import connect
from buckram.core.wire.messages import Read
from buckram.errors import Code
from buckram.launch.zookeeper_server import start_zookeeper

pytestmark = pytest.mark.share(5)


class Stoppable:
    """A cluster of ours whose ZooKeeper can be made to answer nothing for a while."""

    def __init__(self, cluster: Cluster, pid: int) -> None:
        self.cluster, self._pid = cluster, pid

    @contextlib.contextmanager
    def without_metadata(self, away: bool) -> Iterator[None]:
        if not away:
            yield
            return
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    async def settled(self) -> None:
        """Wait until every bookie is registered: a long stop of ZooKeeper ends their sessions."""
        async with connect(self.cluster.uri) as client, asyncio.timeout(60):
            store = client.services.store
            while len((await store.bookies()).writable) < len(self.cluster.ours):  # noqa: ASYNC110 - others do it
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def place(have_java: None, workdir: Path) -> Iterator[Stoppable]:
    server = start_zookeeper(workdir / "wrong-keys-zookeeper", sync=False)
    cluster = Cluster(f"zk+hierarchical://{server.address}/keys", workdir / "wrong-keys")
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        yield Stoppable(cluster, server.pid)
    finally:
        cluster.close()
        server.kill()


@contextlib.asynccontextmanager
async def raw(bookie_id: str) -> AsyncIterator[Wire]:
    host, _, port = bookie_id.rpartition(":")
    wire = Wire(*await asyncio.open_connection(host, int(port)), protocol=2)
    try:
        yield wire
    finally:
        await wire.close()


async def fence(bookie_id: str, ledger: int) -> Code:
    """Send a fencing read with a wrong key for a ledger that the bookie has never seen."""
    async with raw(bookie_id) as wire:
        reply = await wire.call(Read(ledger, -1, fence=True, master_key=OTHER_KEY))
        assert isinstance(reply.code, Code)
        return reply.code


@pytest.mark.parametrize("away", [False, True], ids=["refused", "unproven"])
@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_java_is_not_harmed_by_a_fencing_read_with_a_wrong_key(
    java: Java, place: Stoppable, wire: str, away: bool
) -> None:
    known = {"uri": place.cluster.uri, "wire": wire, "digest": JAVA_DIGEST["crc32c"], "client": f"keys-{wire}-{away}"}
    await place.settled()
    made = java.call("Handles.create", **known)
    ledger = made["ledger"]
    with place.without_metadata(away):
        answers = await asyncio.gather(*(fence(bookie.bookie_id, ledger) for bookie in place.cluster.ours))
    assert set(answers) == {Code.NO_ENTRY if away else Code.UNAUTHORIZED}
    await place.settled()
    java.call("Handles.add", **known, writer=made["writer"], count=5)
    found = java.call("Handles.read", **(known | {"client": "another"}), ledger=ledger, recover=True)
    assert (found["last"], found["closed"]) == (4, True)
    async with connect(place.cluster.uri) as client, client.open(ledger, password=b"secret") as reader:
        assert [entry.payload for entry in await reader.read(0, 4)] == entries(0, 4)
    java.call("Handles.delete", **known, ledger=ledger)
    assert ledger not in java.call("Handles.list", **known)
