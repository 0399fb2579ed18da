"""A broker of Pulsar on bookies of ours alone: it takes messages, is killed, takes more, and gives all back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.processes import last_json, run
from tests.interop.clusters import Cluster
from tests.interop.pulsar import Broker, Talk

pytestmark = pytest.mark.soak  # it fetches 240 MB of jars

MESSAGES = 1000


@pytest.mark.parametrize("v2", ["true", "false"], ids=["v2", "v3"])
def test_a_broker_keeps_its_messages_on_our_bookies(zookeeper: str, workdir: Path, v2: str) -> None:
    name = f"pulsar-v2-{v2}"
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/{name}/ledgers", workdir / name)
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        with (
            Broker(cluster, {"bookkeeperUseV2WireProtocol": v2}) as broker,
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
            assert len(ledgers) > 1, "the broker never began another ledger"
            # Our commands take the address as Pulsar's operators have it.
            listed = last_json(run(["ledger", "list", "--ids", "--json"], broker.bookkeeper))["ledgers"]
            assert set(ledgers) <= set(listed)
    finally:
        cluster.close()
