"""HerdDB with its commit log on bookies of ours alone: a bookie and the leader are killed, and all rows are there."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from javakit.programs import HERDDB
from tests.interop.clusters import Cluster
from tests.interop.talker import Talker, classes_of
from tests.support.polling import wait_until

from buckram.launch.child_process import free_port

pytestmark = pytest.mark.soak  # it fetches jars

HOST = "127.0.0.1"
ROWS = 600
# Two copies of each entry; ledgers and the time between checkpoints are short, so that there are several of both.
SETTINGS = {
    "server.mode": "cluster", "server.host": HOST, "server.jmx.enable": "false", "tablespace.default.replica.count": 2,
    "server.zookeeper.session.timeout": 4000, "server.bookkeeper.start": "false",
    "server.bookkeeper.ensemble.size": 2, "server.bookkeeper.write.quorum.size": 2,
    "server.bookkeeper.ack.quorum.size": 2, "server.bookkeeper.ledgers.max.size": 60_000,
    "server.bookkeeper.ledgers.retention.period": 12_000, "server.checkpoint.period": 3000,
}  # fmt: skip
SPACES = "run select leader, replica from systablespaces"
REPLICAS = (
    "run ALTER TABLESPACE 'herd','leader:one','replica:one,two','expectedreplicacount:2','maxleaderinactivitytime:5000'"
)


def test_herddb_keeps_its_rows_on_our_bookies(zookeeper: str, workdir: Path) -> None:
    classes = classes_of(HERDDB, "herd")
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/herddb/ledgers", workdir / "herddb")
    talks = contextlib.ExitStack()

    def talk(name: str, *arguments: str) -> Talker:
        talker = Talker(classes, arguments, cluster.root / f"{name}.log")
        talks.callback(talker.kill)
        return talker

    def node(name: str) -> Talker:
        settings = {
            **SETTINGS, "server.node.id": name, "server.port": free_port(HOST), "server.zookeeper.address": zookeeper,
            "server.zookeeper.path": "/herddb/nodes", "server.bookkeeper.ledgers.path": "/herddb/ledgers",
        }  # fmt: skip
        given = [f"{key}={value}" for key, value in settings.items()]
        return talk(name, "herd.Node", str(cluster.root / name), *given)

    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        leader, _ = node("one"), node("two")
        rows = talk("rows", "herd.Rows", f"jdbc:herddb:zookeeper:{zookeeper}/herddb/nodes")
        wait_until(lambda: "one,two" in rows.ask(SPACES, "done"), "the second node is no replica", 60)
        rows.ask("run create table numbers (n int primary key, text string)", "done")
        rows.ask(REPLICAS, "done")
        rows.tell("insert 200")
        rows.wait("acknowledged", ROWS)
        cluster.ours[0].kill()
        rows.wait_more("acknowledged", ROWS)
        cluster.revive()
        rows.wait_more("acknowledged", ROWS)
        leader.kill()
        rows.wait_more("acknowledged", ROWS)  # by the other node, which has read the log to its end
        total = rows.count("finish", "finished")
        assert rows.ask(SPACES, "done").startswith("two")
        assert rows.count("read", "end") == total
        assert rows.numbers("read") == rows.numbers("acknowledged") == list(range(total))
    finally:
        talks.close()
        cluster.close()
