"""docs/howto/replace-apache.md: Apache's bookies give way to ours one by one while Apache's client writes, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.chaos.processes import last_json, run
from tests.interop.apache import ApacheBookie, Java
from tests.interop.clusters import Cluster, our_autorecovery
from tests.interop.test_autorecovery import create, members
from tests.support.polling import wait_until

pytestmark = pytest.mark.share(8, "mixed clusters")

ENTRIES = 20


class Producer:
    """Apache's client, which rolls from ledger to ledger as a broker does."""

    def __init__(self, java: Java, cluster: Cluster) -> None:
        self._java, self._cluster = java, cluster
        self.written: dict[int, int] = {}
        self._roll()

    def _roll(self) -> None:
        self._ledger, self._writer = create(self._java, self._cluster, ENTRIES, close=False)
        self.written[self._ledger] = ENTRIES

    def go_on(self) -> None:
        """Append, whatever bookie is away, then begin the next ledger."""
        self._java.call("Handles.add", uri=self._cluster.uri, writer=self._writer, count=ENTRIES)
        self.written[self._ledger] += ENTRIES
        self.close()
        self._roll()

    def close(self) -> None:
        self._java.call("Handles.closeWriter", uri=self._cluster.uri, writer=self._writer)

    def check(self) -> None:
        """All that was acknowledged is read by Apache's client and by ours."""
        for ledger, count in self.written.items():
            assert self._java.call("Handles.read", uri=self._cluster.uri, ledger=ledger)["last"] == count - 1
            lines = run(
                ["ledger", "read", str(ledger), "--password", "secret", "--json"], self._cluster.uri
            ).splitlines()
            assert len(lines) == count


def commanded(cluster: Cluster, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = last_json(run([*words, "--json"], cluster.uri))
    return found


@pytest.mark.soak  # two minutes of waiting for bookies
def test_bookies_give_way_one_by_one_and_come_back(java: Java, zookeeper: str, workdir: Path) -> None:
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/replace", workdir / "replace")
    try:
        cluster.init_with_apache(java)
        cluster.add(theirs=3)
        theirs = list(cluster.theirs)
        producer = Producer(java, cluster)
        with our_autorecovery(cluster):
            for old in theirs:
                _replace(java, cluster, producer, old)
            assert {cluster.is_ours(one) for ledger in producer.written for one in members(java, cluster, ledger)} == {
                True
            }
            _give_back(java, cluster, producer)
        producer.close()
        producer.check()
    finally:
        cluster.close()


def _replace(java: Java, cluster: Cluster, producer: Producer, old: ApacheBookie) -> None:
    cluster.add(ours=1)
    old.stop()
    producer.go_on()
    assert commanded(cluster, "bookie", "decommission", old.bookie_id)["remaining"] == 0
    assert old.bookie_id not in cluster.shell(java, "listbookies", "-a"), "its cookie is still there"
    for ledger in list(producer.written)[:-1]:
        assert old.bookie_id not in members(java, cluster, ledger)


def _give_back(java: Java, cluster: Cluster, producer: Producer) -> None:
    """One of ours gives way to one of Apache's."""
    cluster.add(theirs=1)
    new, ours = cluster.theirs[-1], cluster.ours[0]
    wait_until(lambda: new.bookie_id in cluster.shell(java, "listbookies", "-rw"), "Apache's bookie is not there")
    producer.go_on()
    assert commanded(cluster, "bookie", "drain", ours.bookie_id)["remaining"] == 0
    ours.stop()
    commanded(cluster, "bookie", "forget", ours.bookie_id)
    assert all(ours.bookie_id not in members(java, cluster, ledger) for ledger in list(producer.written)[:-1])
    assert any(new.bookie_id in members(java, cluster, ledger) for ledger in producer.written)
