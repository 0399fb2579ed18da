"""Apache's shell where auditor and replicator are ours: what it asks for happens, and it can read what is there.

`buckram autorecovery run` is a process of its own. It waits an hour for lost bookies unless the shell says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import Cluster, Decommissioning, our_autorecovery, overview
from tests.support.polling import wait_until

pytestmark = pytest.mark.share(8, "mixed clusters")


@pytest.fixture(scope="module")
def cluster(zookeeper: str, workdir: Path) -> Iterator[Cluster]:
    made = Cluster(f"zk+hierarchical://{zookeeper}/shell", workdir / "shell")
    try:
        made.init_with_ours()
        made.add(ours=3)
        with our_autorecovery(made):
            yield made
    finally:
        made.close()


def lose_member(java: Java, cluster: Cluster) -> tuple[int, str]:
    """A closed ledger, and the bookie of it that stopped in good order, so that its registration is gone."""
    made: dict[str, Any] = java.call("Handles.create", uri=cluster.uri, e=3, qw=3, qa=2)
    java.call("Handles.add", uri=cluster.uri, writer=made["writer"], count=15)
    java.call("Handles.closeWriter", uri=cluster.uri, writer=made["writer"])
    ledger = int(made["ledger"])
    gone = next(
        bookie for bookie in cluster.ours if bookie.running and bookie.bookie_id in members(java, cluster, ledger)
    )
    gone.stop()
    return ledger, gone.bookie_id


def members(java: Java, cluster: Cluster, ledger: int) -> set[str]:
    found: dict[str, Any] = java.call("Handles.metadata", uri=cluster.uri, ledger=ledger)
    return {member for ensemble in found["fragments"].values() for member in ensemble}


def healed(java: Java, cluster: Cluster, ledger: int, gone: str) -> None:
    wait_until(lambda: gone not in members(java, cluster, ledger), f"{gone} is not replaced")
    assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 14
    wait_until(lambda: "count=0" in cluster.shell(java, "listunderreplicated"), "a mark is left")


def test_whoisauditor_names_ours(java: Java, cluster: Cluster) -> None:
    assert str(overview(cluster)["auditor"]) in cluster.shell(java, "whoisauditor")


def test_listunderreplicated_shows_a_ledger_that_waits_with_us(java: Java, cluster: Cluster) -> None:
    """Why it waits is in keys of our own: Apache's record has what Apache's tools know, and nothing else."""
    ledger, gone = lose_member(java, cluster)
    assert gone in members(java, cluster, ledger)
    cluster.shell(java, "lostbookierecoverydelay", "-s", "1")

    def waits() -> bool:
        return any(one["ledger"] == ledger and one["state"] == "waiting" for one in overview(cluster)["queue"])

    wait_until(waits, "it does not wait for a bookie")
    with cluster.nodes() as (zookeeper, root):
        mark, _ = zookeeper.get(f"{root}/underreplication/ledgers/0000/0000/0000/{ledger:04x}/urL{ledger:010d}")
    assert [line.split(":")[0] for line in mark.decode().splitlines()] == ["replica", "ctime"]
    shown = cluster.shell(java, "listunderreplicated", "-pmr", "-mr", gone)
    assert str(ledger) in shown
    assert gone in shown
    cluster.add(ours=1)
    healed(java, cluster, ledger, gone)


def test_triggeraudit_ends_the_wait_for_a_lost_bookie(java: Java, cluster: Cluster) -> None:
    cluster.shell(java, "lostbookierecoverydelay", "-s", "3600")
    assert "3600" in cluster.shell(java, "lostbookierecoverydelay", "-g")
    cluster.add(ours=1)
    ledger, gone = lose_member(java, cluster)
    assert gone in members(java, cluster, ledger)
    cluster.shell(java, "triggeraudit")
    healed(java, cluster, ledger, gone)


def test_nothing_begins_while_apaches_switch_is_off(java: Java, cluster: Cluster) -> None:
    cluster.add(ours=1)
    cluster.shell(java, "autorecovery", "-d")
    ledger, gone = lose_member(java, cluster)
    cluster.shell(java, "triggeraudit", ok=False)
    cluster.shell(java, "lostbookierecoverydelay", "-s", "1")
    assert overview(cluster)["enabled"] is False
    assert gone in members(java, cluster, ledger)
    assert "count=0" in cluster.shell(java, "listunderreplicated")
    cluster.shell(java, "autorecovery", "-e")
    healed(java, cluster, ledger, gone)


def test_recover_beside_our_replicator(java: Java, cluster: Cluster) -> None:
    cluster.shell(java, "lostbookierecoverydelay", "-s", "3600")
    cluster.add(ours=1)
    ledger, gone = lose_member(java, cluster)
    cluster.shell(java, "recover", "-f", "-d", gone)
    healed(java, cluster, ledger, gone)
    assert gone not in cluster.shell(java, "listbookies", "-a"), "its cookie is still there"


def test_decommissionbookie_with_our_auditor(java: Java, decommissioning_with_ours: Decommissioning) -> None:
    """Our auditor would wait an hour; the command asks for an audit, and that does not."""
    assert decommissioning_with_ours.result() == 0
    cluster, gone = decommissioning_with_ours.cluster, decommissioning_with_ours.bookie
    for ledger in decommissioning_with_ours.ledgers:
        assert gone not in members(java, cluster, ledger)
        assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 9
    assert gone not in cluster.shell(java, "listbookies", "-a"), "its cookie is still there"
