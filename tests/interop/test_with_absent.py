"""Ledgers of ours that were made while a member was away (M11): Apache's client reads and recovers them.

The member comes back as it was and denies everything that was acknowledged meanwhile, which is what it should do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import PASSWORD, Cluster
from tests.interop.words import JAVA_DIGEST, entries

from buckram import connect

pytestmark = pytest.mark.share(8, "mixed clusters")


@pytest.fixture
def cluster(zookeeper: str, workdir: Path) -> Iterator[Cluster]:
    made = Cluster(f"zk+hierarchical://{zookeeper}/absent", workdir / "absent")
    try:
        made.init_with_ours()
        made.add(ours=3)
        yield made
    finally:
        made.close()


async def test_java_reads_and_recovers_a_ledger_made_with_a_member_away(java: Java, cluster: Cluster) -> None:
    away = cluster.ours[2]
    away.stop()
    async with connect(cluster.uri) as client:
        closed = await client.create(password=PASSWORD)
        assert away.bookie_id in closed.metadata.last_fragment.ensemble
        assert closed.degraded
        await closed.append_many(entries(0, 50))
        await closed.close()
        left = await client.create(password=PASSWORD)
        assert left.degraded
        await left.append_many(entries(0, 50))
        await left.abandon()
    known = {"uri": cluster.uri, "wire": "v2", "digest": JAVA_DIGEST["crc32c"]}
    assert java.call("Handles.read", **known, ledger=closed.ledger_id)["last"] == 50
    away.start()  # it denies, another one that has it all is away; Apache's recovery needs a third to write to
    cluster.add(ours=1)
    cluster.ours[1].stop()
    found = java.call("Handles.read", **known, ledger=left.ledger_id, recover=True)
    assert (found["last"], found["closed"]) == (50, True)
    facts = java.call("Handles.metadata", **known, ledger=left.ledger_id)
    assert (facts["state"], facts["last_entry"]) == ("CLOSED", 50)
