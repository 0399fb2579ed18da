"""A log of DistributedLog on bookies of ours alone: a bookie and its writer are killed, and it has every record."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from javakit.programs import DISTRIBUTEDLOG
from tests.chaos.processes import last_json, run
from tests.interop.clusters import Cluster
from tests.interop.talker import Talker, classes_of

pytestmark = pytest.mark.soak  # it fetches jars

RECORDS = 2000


def _ledgers(cluster: Cluster) -> list[int]:
    listed: list[int] = last_json(run(["ledger", "list", "--ids", "--json"], cluster.uri))["ledgers"]
    return listed


def test_distributedlog_keeps_its_records_on_our_bookies(zookeeper: str, workdir: Path) -> None:
    classes = classes_of(DISTRIBUTEDLOG, "distributedlog")
    root = "/distributedlog/ledgers"
    cluster = Cluster(f"zk+hierarchical://{zookeeper}{root}", workdir / "distributedlog")
    talks = contextlib.ExitStack()

    def talk(name: str) -> Talker:
        uri = f"distributedlog://{zookeeper}/distributedlog/logs"
        talker = Talker(classes, ["distributedlog.Talk", uri, zookeeper, root], cluster.root / f"{name}.log")
        talks.callback(talker.kill)
        return talker

    try:
        cluster.init_with_ours()
        cluster.add(ours=4)
        first, follower = talk("first"), talk("follower")
        follower.tell("follow")
        first.tell("write 400")
        first.wait("acknowledged", RECORDS // 2)
        cluster.ours[0].kill()
        first.wait_more("acknowledged", RECORDS // 2)  # new segments are begun on it, and mended
        cluster.revive()
        first.wait_more("acknowledged", RECORDS // 2)
        first.kill()
        second = talk("second")
        second.tell("write 400")
        second.wait("acknowledged", RECORDS // 2)
        kept = second.numbers("opened")[0]
        assert kept > first.numbers("acknowledged")[-1], "an acknowledged record was lost"
        total = second.count("finish", "finished")
        follower.wait("followed", total)
        assert follower.numbers("followed") == list(range(total))
        assert second.count("read", "end") == total

        segments, ledgers = second.count("segments", "end"), len(_ledgers(cluster))
        assert segments >= 4
        assert second.ask(f"truncate {RECORDS}", "truncated") == "0"
        assert second.count("read", "end") == total - RECORDS
        second.ask("delete", "deleted")
        assert ledgers >= segments
        assert _ledgers(cluster) == []
    finally:
        talks.close()
        cluster.close()
