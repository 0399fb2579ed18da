"""A broker of Pulsar on bookies of ours alone: it takes messages, is killed, takes more, and gives all back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.processes import last_json, run
from tests.interop.apache import Java
from tests.interop.clusters import Cluster, our_autorecovery
from tests.interop.pulsar import Broker, Talk
from tests.interop.test_autorecovery import facts, members
from tests.interop.test_replace import commanded

pytestmark = pytest.mark.soak  # it fetches 240 MB of jars

FULL = 1000
MESSAGES = FULL + FULL // 2
"""The broker is killed in the middle of a ledger: what it acknowledged there has to be recovered."""


@pytest.mark.parametrize("v2", ["true", "false"], ids=["v2", "v3"])
def test_a_broker_keeps_its_messages_on_our_bookies(zookeeper: str, workdir: Path, v2: str) -> None:
    name = f"pulsar-v2-{v2}"
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/{name}/ledgers", workdir / name)
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        with (
            Broker(cluster, {"bookkeeperUseV2WireProtocol": v2, "managedLedgerMaxEntriesPerLedger": FULL}) as broker,
            Talk(broker, cluster.root / "talk.log") as talk,
        ):
            talk.tell("follow")
            talk.tell("produce 500")
            talk.wait(talk.acknowledged, MESSAGES)
            broker.kill()
            broker.start()  # it recovers the ledgers that it had open, and the client sends again what has no answer
            talk.wait_more(MESSAGES)
            sent = talk.finish()
            assert talk.acknowledged == list(range(sent))
            assert talk.read() == list(range(sent))
            talk.wait(talk.followed, sent)
            assert sorted(set(talk.followed)) == list(range(sent))
            ledgers = broker.ledgers()
            assert any(0 < entries < FULL for entries in list(ledgers.values())[:-1]), "it had no ledger to recover"
            # Our commands take the address as Pulsar's operators have it.
            listed = last_json(run(["ledger", "list", "--ids", "--json"], broker.bookkeeper))["ledgers"]
            assert set(ledgers) <= set(listed)
    finally:
        cluster.close()


def test_a_topic_goes_on_whose_idle_ledger_was_recovered(java: Java, zookeeper: str, workdir: Path) -> None:
    """Nobody writes to it, so that nobody sees a bookie go: the decommission closes its ledger over the broker."""
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/pulsar-idle/ledgers", workdir / "pulsar-idle")
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        with Broker(cluster, {}) as broker, Talk(broker, cluster.root / "talk.log") as talk:
            talk.tell("produce 100")
            talk.wait_more(20)
            before = talk.finish()
            open_ledger = list(broker.ledgers())[-1]
            gone = next(one for one in cluster.ours if one.bookie_id in members(java, cluster, open_ledger))
            cluster.add(ours=1)
            gone.stop()
            with our_autorecovery(cluster, BUCKRAM_HEALING_OPEN_LEDGER_GRACE_S="2"):
                assert commanded(cluster, "bookie", "decommission", gone.bookie_id)["remaining"] == 0
            assert facts(java, cluster, open_ledger)["state"] == "CLOSED"
            talk.tell("produce 100")
            talk.wait_more(20)
            sent = talk.finish()
            assert sent > before
            assert talk.acknowledged == list(range(sent))
            assert talk.read() == list(range(sent))
            assert list(broker.ledgers())[-1] > open_ledger
    finally:
        cluster.close()
