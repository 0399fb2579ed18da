"""Apache's shell on a cluster of ours: the commands that work over the wire and on metadata."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import Cluster, payload


@pytest.fixture(scope="module")
def ledger(java: Java, ours: Cluster) -> int:
    """A closed ledger of 30 entries."""
    return written(java, ours)


def written(java: Java, cluster: Cluster, *, count: int = 30, close: bool = True) -> int:
    made: dict[str, Any] = java.call("Handles.create", uri=cluster.uri)
    java.call("Handles.add", uri=cluster.uri, writer=made["writer"], count=count)
    if close:
        java.call("Handles.closeWriter", uri=cluster.uri, writer=made["writer"])
    return int(made["ledger"])


def facts(java: Java, cluster: Cluster, ledger: int) -> dict[str, Any]:
    found: dict[str, Any] = java.call("Handles.metadata", uri=cluster.uri, ledger=ledger)
    return found


def test_simpletest(java: Java, ours: Cluster) -> None:
    output = ours.shell(java, "simpletest", "-e", "3", "-w", "3", "-a", "2", "-n", "200")
    assert "200" in output
    assert "rror" not in output


@pytest.mark.parametrize("option", ["-rw", "-a"])
def test_listbookies(java: Java, ours: Cluster, option: str) -> None:
    output = ours.shell(java, "listbookies", option)
    assert all(bookie in output for bookie in ours.bookies)


def test_listbookies_readonly(java: Java, ours: Cluster) -> None:
    assert "No bookie exists" in ours.shell(java, "listbookies", "-ro")


def test_bookieinfo(java: Java, ours: Cluster) -> None:
    output = ours.shell(java, "bookieinfo")
    assert all(bookie in output for bookie in ours.bookies)
    assert "Total free disk space in the cluster" in output


def test_endpointinfo(java: Java, ours: Cluster) -> None:
    output = ours.shell(java, "endpointinfo", "-b", ours.bookies[0])
    assert "bookie-rpc" in output
    assert ours.bookies[0].split(":")[1] in output


def test_clusterinfo(java: Java, ours: Cluster) -> None:
    assert re.search(r"otalBookiesCount\D+3", ours.shell(java, "clusterinfo"))


def test_whatisinstanceid(java: Java, ours: Cluster) -> None:
    assert re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", ours.shell(java, "whatisinstanceid"))


def test_listledgers(java: Java, ours: Cluster, ledger: int) -> None:
    assert str(ledger) in ours.shell(java, "listledgers")
    assert str(ledger) in ours.shell(java, "listledgers", "-bookieid", ours.bookies[0])
    assert "CLOSED" in ours.shell(java, "listledgers", "-m")


def test_ledgermetadata(java: Java, ours: Cluster, ledger: int) -> None:
    output = ours.shell(java, "ledgermetadata", "-l", str(ledger))
    assert "CLOSED" in output
    assert all(bookie in output for bookie in ours.bookies)


def test_ledgermetadata_dump_and_restore(java: Java, ours: Cluster, tmp_path: Path) -> None:
    ledger = written(java, ours, count=4)
    before, kept = facts(java, ours, ledger), tmp_path / "metadata"
    ours.shell(java, "ledgermetadata", "-l", str(ledger), "-dumptofile", str(kept))
    java.call("Handles.delete", uri=ours.uri, ledger=ledger)
    ours.shell(java, "ledgermetadata", "-l", str(ledger), "-restorefromfile", str(kept))
    assert facts(java, ours, ledger) == before
    assert java.call("Handles.read", uri=ours.uri, ledger=ledger)["last"] == 3


def test_readledger(java: Java, ours: Cluster, ledger: int) -> None:
    output = ours.shell(java, "readledger", "-l", str(ledger), "-fe", "3", "-le", "7", "-m")
    for number in range(3, 8):
        assert payload(number).decode() in output
    assert "entry 2 " not in output
    assert "entry 8 " not in output


def test_readledger_from_one_bookie(java: Java, ours: Cluster, ledger: int) -> None:
    output = ours.shell(java, "readledger", "-l", str(ledger), "-fe", "0", "-le", "5", "-b", ours.bookies[1])
    # Read from one bookie, Apache's command leaves out the last entry that was asked for.
    assert re.findall(r"entryId=(\d+)", output) == ["0", "1", "2", "3", "4"]


def test_readledger_that_recovers_first(java: Java, ours: Cluster) -> None:
    ledger = written(java, ours, count=5, close=False)
    output = ours.shell(java, "readledger", "-l", str(ledger), "-fe", "0", "-le", "4", "-m", "-r")
    assert "entry 4" in output
    assert facts(java, ours, ledger)["state"] == "CLOSED"


def test_bookiesanity(java: Java, ours: Cluster) -> None:
    port = ours.bookies[0].split(":")[1]
    assert "rror" not in ours.shell(java, "bookiesanity", "-e", "20", bookiePort=port)


def test_deleteledger(java: Java, ours: Cluster) -> None:
    ledger = written(java, ours, count=2)
    ours.shell(java, "deleteledger", "-l", str(ledger), "-f")
    assert not re.search(rf"\b{ledger}\b", ours.shell(java, "listledgers"))


def test_recover_query(java: Java, ours: Cluster, ledger: int) -> None:
    assert str(ledger) in ours.shell(java, "recover", "-q", "-f", ours.bookies[0])


def test_lostbookierecoverydelay(java: Java, ours: Cluster) -> None:
    ours.shell(java, "lostbookierecoverydelay", "-s", "7")
    assert "7" in ours.shell(java, "lostbookierecoverydelay", "-g")


def test_autorecovery_off_and_on(java: Java, ours: Cluster) -> None:
    ours.shell(java, "autorecovery", "-d")
    assert "disabled" in ours.shell(java, "autorecovery")
    ours.shell(java, "autorecovery", "-e")
    assert "enabled" in ours.shell(java, "autorecovery")


def test_listunderreplicated(java: Java, ours: Cluster) -> None:
    ours.shell(java, "listunderreplicated")


def test_cookie_get(java: Java, ours: Cluster) -> None:
    output = ours.shell(java, "cookie_get", ours.bookies[0])
    assert f'bookieHost: "{ours.bookies[0]}"' in output


def test_cookie_get_takes_no_plain_ids(java: Java, ours: Cluster) -> None:
    """Apache's cookie commands look at the form of the id before they ask anybody: HOST:PORT or nothing, whoever's
    bookie it is. The same cookie is printed for an id of that form, so that nothing of ours is missing."""
    with ours.nodes() as (zookeeper, root):
        cookie, _ = zookeeper.get(f"{root}/cookies/{ours.bookies[0]}")
        for bookie in ("bookie-1", "bookie-1:0"):
            zookeeper.create(f"{root}/cookies/{bookie}", cookie)
        try:
            output = ours.shell(java, "cookie_get", "bookie-1", ok=False)
            assert "Invalid bookie id 'bookie-1'" in output
            assert "in the format of '<hostname>:<port>'" in output
            assert cookie.decode().strip().splitlines()[-1] in ours.shell(java, "cookie_get", "bookie-1:0")
        finally:
            for bookie in ("bookie-1", "bookie-1:0"):
                zookeeper.delete(f"{root}/cookies/{bookie}")


def test_metaformat_is_refused_on_a_live_cluster(java: Java, ours: Cluster, ledger: int) -> None:
    ours.shell(java, "metaformat", "-n", ok=False)
    assert java.call("Handles.read", uri=ours.uri, ledger=ledger)["last"] == 29


def test_nukeexistingcluster_is_refused_on_a_live_cluster(java: Java, ours: Cluster, ledger: int) -> None:
    root = "/" + ours.uri.rsplit("/", 1)[1]
    ours.shell(java, "nukeexistingcluster", "-p", root, "-f", ok=False)
    assert java.call("Handles.read", uri=ours.uri, ledger=ledger)["last"] == 29


def test_initnewcluster_is_refused_on_a_live_cluster(java: Java, ours: Cluster) -> None:
    before = ours.shell(java, "whatisinstanceid")
    ours.shell(java, "initnewcluster", ok=False)
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", before)
    assert found == re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", ours.shell(java, "whatisinstanceid"))
