"""docs/howto/replace-apache.md with a broker of Pulsar: its bookies give way to ours while it produces, and back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.interop.apache import ApacheBookie, Java, JavaFailed
from tests.interop.clusters import Cluster, OurBookie, our_autorecovery
from tests.interop.pulsar import Broker, Talk
from tests.interop.test_autorecovery import facts
from tests.interop.test_replace import commanded

pytestmark = pytest.mark.soak  # it fetches 240 MB of jars

RACKS = ("/rack-1", "/rack-2", "/rack-2")
PER_SECOND = 100
PAUSE_S = 20.0
"""About one second is usual, on a busy machine more; a client's operations fail after thirty."""


class Scene:
    """A broker, its client, and the bookies with their racks."""

    def __init__(self, java: Java, cluster: Cluster, broker: Broker, talk: Talk) -> None:
        self._java, self._cluster, self._broker, self._talk = java, cluster, broker, talk
        self._racks: dict[str, str] = {}

    def place(self, bookie: str, rack: str) -> None:
        self._racks[bookie] = rack
        self._broker.admin_tool("set-bookie-rack", bookie, rack)

    def unload(self) -> None:
        """The broker closes all ledgers that it has open, idle ones too."""
        self._broker.admin_tool("unload", "public/default")

    def replace(self, old: ApacheBookie, rack: str) -> None:
        """One of Apache's gives way to one of ours."""
        self._cluster.add(ours=1)
        self.place(self._cluster.ours[-1].bookie_id, rack)
        old.stop()
        self._talk.wait_more(PER_SECOND)
        self.unload()
        assert commanded(self._cluster, "bookie", "decommission", old.bookie_id)["remaining"] == 0
        self._talk.wait_more(PER_SECOND)

    def give_back(self, ours: OurBookie, rack: str) -> None:
        """One of ours gives way to one of Apache's, which is given its rack before it can be chosen."""
        self._cluster.add(theirs=1)
        self.place(self._cluster.theirs[-1].bookie_id, rack)
        commanded(self._cluster, "bookie", "readonly", ours.bookie_id)
        self.unload()
        assert commanded(self._cluster, "bookie", "drain", ours.bookie_id)["remaining"] == 0
        ours.stop()
        commanded(self._cluster, "bookie", "forget", ours.bookie_id)
        self._talk.wait_more(PER_SECOND)

    def check(self, *, ours: bool) -> None:
        """All ledgers of the cluster are on bookies of one kind and on two racks; the topic is read in order."""
        for ledger in commanded(self._cluster, "ledger", "list", "--ids")["ledgers"]:
            with contextlib.suppress(JavaFailed):  # the broker has deleted it, as it does with its positions
                for first, ensemble in facts(self._java, self._cluster, ledger)["fragments"].items():
                    assert {self._cluster.is_ours(one) for one in ensemble} == {ours}, f"{ledger} from {first} on"
                    assert len({self._racks[one] for one in ensemble}) == 2, f"{ledger} from {first} on: {ensemble}"
        acknowledged = len(self._talk.acknowledged)
        read = self._talk.read()
        assert read == list(range(len(read)))
        assert len(read) >= acknowledged


def test_bookies_give_way_below_a_broker_and_come_back(java: Java, zookeeper: str, workdir: Path) -> None:
    cluster = Cluster(
        f"zk+hierarchical://{zookeeper}/pulsar-replace/ledgers", workdir / "pulsar-replace", own_hosts=True
    )
    try:
        with cluster.nodes() as (zookeeper_client, root):
            zookeeper_client.ensure_path(root.rpartition("/")[0])
        cluster.init_with_apache(java)
        cluster.add(theirs=3)
        with Broker(cluster, {}) as broker, Talk(broker, cluster.root / "talk.log") as talk:
            scene = Scene(java, cluster, broker, talk)
            theirs = list(cluster.theirs)
            for old, rack in zip(theirs, RACKS, strict=True):
                scene.place(old.bookie_id, rack)
            talk.tell("follow")
            talk.tell(f"produce {PER_SECOND}")
            talk.wait_more(PER_SECOND)
            with our_autorecovery(cluster):
                for old, rack in zip(theirs, RACKS, strict=True):
                    scene.replace(old, rack)
                scene.check(ours=True)
                for ours, rack in zip(list(cluster.ours), RACKS, strict=True):
                    scene.give_back(ours, rack)
            sent = talk.finish()
            scene.check(ours=False)
            assert talk.acknowledged == list(range(sent))
            assert talk.longest_pause_s < PAUSE_S, "producing ended meanwhile"
            talk.wait(talk.followed, sent)
            assert sorted(set(talk.followed)) == list(range(sent))
    finally:
        cluster.close()
