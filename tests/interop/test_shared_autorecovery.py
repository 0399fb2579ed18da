"""Ledgers on both kinds of bookies: Apache's auditor with our replicator, and our auditor with Apache's worker.

Marks, locks and the election are in Apache's tree. All tests share one cluster; each loses a bookie of one kind for
good, and an empty one of ours joins before the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.interop.apache import Java, outcome
from tests.interop.clusters import PASSWORD, Cluster, auto_recovery, payload
from tests.interop.words import check
from tests.support.polling import answered

from buckram.cluster import Client, connect
from buckram.config import HealingConfig
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair.replicator import Replicator
from buckram.metadata.records.auditor_election import Election, elected_of
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.process.tasks import TaskScope

pytestmark = pytest.mark.share(8, "mixed clusters")

AT_ONCE = HealingConfig(lost_bookie_delay_s=0.0, retry_s=0.5, open_ledger_grace_s=1.0)
ENTRIES = 30
each_victim = pytest.mark.parametrize("victim", ["ours", "theirs"])


@pytest.fixture(scope="module")
def cluster(zookeeper: str, workdir: Path, java: Java) -> Iterator[Cluster]:
    made = Cluster(f"zk+hierarchical://{zookeeper}/shared", workdir / "shared")
    try:
        made.init_with_apache(java)
        made.add(ours=1, theirs=3)
        yield made
    finally:
        made.close()


@asynccontextmanager
async def running(part: Auditor | Replicator) -> AsyncIterator[None]:
    async with TaskScope("healing") as scope:
        scope.spawn(part.run(), "part")
        yield
    await part.close()


async def lose_one(java: Java, cluster: Cluster, client: Client, victim: str) -> tuple[str, list[int]]:
    """Write two ledgers with the same member of one kind, one with each client, and kill it; its id and the ledgers."""
    ids = [b.bookie_id for b in cluster.all if b.running and cluster.is_ours(b.bookie_id) is (victim == "ours")]
    found: dict[str, list[int]] = {bookie: [] for bookie in ids}
    by_java = True
    for _ in range(80):
        by_java = not by_java
        if by_java:
            made = await outcome(java.start("Handles.create", uri=cluster.uri, e=3, qw=3, qa=2))
            await outcome(java.start("Handles.add", uri=cluster.uri, writer=made["writer"], count=ENTRIES))
            await outcome(java.start("Handles.closeWriter", uri=cluster.uri, writer=made["writer"]))
            ledger = int(made["ledger"])
        else:
            async with await client.create(ensemble=(3, 3, 2), password=PASSWORD) as writer:
                await writer.append_many(payload(number) for number in range(ENTRIES))
                ledger = writer.ledger_id
        for bookie in set(await members(client, ledger)) & set(found):
            if len(found[bookie]) == by_java:  # one of ours, then one of theirs
                found[bookie].append(ledger)
            if len(found[bookie]) == 2:
                cluster.find(bookie).kill()
                return bookie, found[bookie]
    raise AssertionError(f"no two ledgers of both kinds of writers with the same member of {ids}")


async def members(client: Client, ledger: int) -> list[str]:
    metadata = (await client.services.store.read_ledger(ledger)).metadata
    return [member for fragment in metadata.fragments for member in fragment.ensemble]


def tree_of(client: Client) -> Underreplication:
    return Underreplication(client.services.store.keys, client.services.store.root, "test")


async def healed(client: Client, gone: str, ledgers: list[int]) -> None:
    """Wait until nothing names the bookie and no mark is left, and read every copy of the ledgers."""

    async def done() -> bool:
        named = [ledger for ledger in ledgers if gone in await members(client, ledger)]
        return not named and not [ledger async for ledger in tree_of(client).marked()]

    await answered(done)
    for ledger in ledgers:
        report = await client.repair(ledger, password=PASSWORD)
        assert (report.healthy, report.entries_copied) == (True, 0)
        async with client.open(ledger, password=PASSWORD) as reader:
            await check(reader, 0, ENTRIES - 1)


async def elected(client: Client) -> str:
    store = client.services.store
    return elected_of(await Election(store.keys, store.root, "").votes())


@each_victim
async def test_apaches_auditor_with_our_replicator(java: Java, cluster: Cluster, victim: str) -> None:
    cluster.add(ours=1)
    async with connect(cluster.uri) as client:
        gone, ledgers = await lose_one(java, cluster, client, victim)
        with auto_recovery(java, cluster, "Auditor"):
            await answered(lambda: elected(client), lambda name: name.startswith("127.0.0.1:"))
            async with running(Replicator(client, "ours", AT_ONCE)):
                await healed(client, gone, ledgers)
        for ledger in ledgers:
            assert (await outcome(java.start("Handles.read", uri=cluster.uri, ledger=ledger)))["last"] == ENTRIES - 1


@each_victim
async def test_our_auditor_with_apaches_worker(java: Java, cluster: Cluster, victim: str) -> None:
    cluster.add(ours=1)
    async with connect(cluster.uri) as client:
        gone, ledgers = await lose_one(java, cluster, client, victim)
        async with running(Auditor(client, "ours", AT_ONCE)):
            await answered(lambda: elected(client), lambda name: name == "ours")
            with auto_recovery(java, cluster, "Worker"):
                await healed(client, gone, ledgers)
        for ledger in ledgers:
            assert (await outcome(java.start("Handles.read", uri=cluster.uri, ledger=ledger)))["last"] == ENTRIES - 1
