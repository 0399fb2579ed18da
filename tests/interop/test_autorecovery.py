"""Apache's auditor and replication worker mend ledgers when bookies of ours die, onto bookies of ours.

Each test has a cluster of its own: what dies here shall not disturb others. `decommissionbookie` waits half a minute
inside Apache's code, so it runs beside all other interop tests (conftest.decommissioning).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.processes import last_json, run
from tests.interop.apache import Java
from tests.interop.clusters import Cluster, Decommissioning, auto_recovery
from tests.support.polling import wait_until

pytestmark = pytest.mark.share(8, "mixed clusters")


def create(java: Java, cluster: Cluster, count: int, *, close: bool, qa: int = 2) -> tuple[int, int]:
    """Ledger and writer of a new ledger on three bookies."""
    made: dict[str, Any] = java.call("Handles.create", uri=cluster.uri, e=3, qw=3, qa=qa)
    java.call("Handles.add", uri=cluster.uri, writer=made["writer"], count=count)
    if close:
        java.call("Handles.closeWriter", uri=cluster.uri, writer=made["writer"])
    return int(made["ledger"]), int(made["writer"])


def facts(java: Java, cluster: Cluster, ledger: int) -> dict[str, Any]:
    found: dict[str, Any] = java.call("Handles.metadata", uri=cluster.uri, ledger=ledger)
    return found


def members(java: Java, cluster: Cluster, ledger: int) -> set[str]:
    return {member for ensemble in facts(java, cluster, ledger)["fragments"].values() for member in ensemble}


@pytest.fixture
def cluster(zookeeper: str, workdir: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    name = request.node.name.removeprefix("test_")
    made = Cluster(f"zk+hierarchical://{zookeeper}/{name}", workdir / name)
    try:
        made.init_with_ours()
        made.add(ours=3)
        yield made
    finally:
        made.close()


def held_entries(cluster: Cluster, bookie: str, ledger: int) -> int:
    """How many entries of a ledger a bookie says it holds."""
    shown = last_json(run(["bookie", "entries", bookie, "--ledger", str(ledger), "--json"], cluster.uri))
    return len(shown["entries"])


def test_closed_ledgers_are_copied_to_a_bookie_of_ours(java: Java, cluster: Cluster) -> None:
    ledgers = [create(java, cluster, 40, close=True)[0] for _ in range(3)]
    cluster.add(ours=1)
    victim, spare = cluster.ours[0], cluster.ours[3]
    victim.kill()
    with auto_recovery(java, cluster):
        for ledger in ledgers:
            wait_until(lambda: victim.bookie_id not in members(java, cluster, ledger), "not replaced")  # noqa: B023
    for ledger in ledgers:
        assert spare.bookie_id in members(java, cluster, ledger)
        assert held_entries(cluster, spare.bookie_id, ledger) == 40
        assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 39
        run(["ledger", "read", str(ledger), "--password", "secret"], cluster.uri)


def test_an_open_ledger_of_a_lost_writer_is_closed_and_copied(java: Java, cluster: Cluster) -> None:
    ledger, _ = create(java, cluster, 25, close=False)
    java.call("Handles.abandon", uri=cluster.uri)
    cluster.add(ours=1)
    cluster.ours[1].kill()
    with auto_recovery(java, cluster, openLedgerRereplicationGracePeriod=500):
        wait_until(lambda: cluster.ours[1].bookie_id not in members(java, cluster, ledger), "not replaced")
    found = facts(java, cluster, ledger)
    assert (found["state"], found["last_entry"]) == ("CLOSED", 24)
    assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 24


def test_a_bookie_of_apaches_is_replaced_by_one_of_ours(java: Java, zookeeper: str, workdir: Path) -> None:
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/leaving", workdir / "leaving")
    try:
        cluster.init_with_apache(java)
        cluster.add(ours=1, theirs=2)
        ledgers = [create(java, cluster, 30, close=True)[0] for _ in range(2)]
        cluster.add(ours=1)
        leaving, spare = cluster.theirs[0], cluster.ours[1]
        leaving.stop()
        with auto_recovery(java, cluster):
            for ledger in ledgers:
                wait_until(lambda: leaving.bookie_id not in members(java, cluster, ledger), "not replaced")  # noqa: B023
        for ledger in ledgers:
            assert held_entries(cluster, spare.bookie_id, ledger) == 30
            assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 29
    finally:
        cluster.close()


def test_the_shell_recovers_a_dead_bookie(java: Java, cluster: Cluster) -> None:
    ledgers = [create(java, cluster, 15, close=True)[0] for _ in range(2)]
    cluster.add(ours=1)
    dead = cluster.ours[2].bookie_id
    cluster.ours[2].stop()
    one = cluster.shell(java, "recover", "-f", "-dr", dead)
    assert str(ledgers[0]) in one
    cluster.shell(java, "recover", "-f", "-l", str(ledgers[0]), dead)
    assert dead not in members(java, cluster, ledgers[0])
    assert dead in members(java, cluster, ledgers[1])
    cluster.shell(java, "recover", "-f", "-d", dead)
    assert dead not in members(java, cluster, ledgers[1])
    assert dead not in cluster.shell(java, "listbookies", "-a"), "its cookie is still there"
    for ledger in ledgers:
        assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 14


def test_audit_commands_with_a_live_auditor(java: Java, cluster: Cluster) -> None:
    create(java, cluster, 5, close=True)
    with auto_recovery(java, cluster):
        wait_until(lambda: "127.0.0.1" in cluster.shell(java, "whoisauditor"), "no auditor")
        cluster.shell(java, "triggeraudit")
        assert "ERROR" not in cluster.shell(java, "forceauditchecks", "-calc", "-ppc", "-rc")
        assert "No Ledger is being recovered" in cluster.shell(java, "queryautorecoverystatus")
        assert "count=0" in cluster.shell(java, "listunderreplicated")


def test_decommissionbookie(java: Java, decommissioning: Decommissioning) -> None:
    assert decommissioning.result() == 0
    cluster, gone = decommissioning.cluster, decommissioning.bookie
    for ledger in decommissioning.ledgers:
        assert gone not in members(java, cluster, ledger)
        assert java.call("Handles.read", uri=cluster.uri, ledger=ledger)["last"] == 9
    assert gone not in cluster.shell(java, "listbookies", "-a"), "its cookie is still there"
