"""The load generators of both sides against our bookies: every load answers with what the table needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.java.loads import Loaders, LoadFailed, ask_together
from bench.java.sides import OurSide, answers
from bench.ledgers import add_entry, holds
from javakit.programs import missing_tools

from buckram.launch.zookeeper_server import ZooKeeperServer

SHORT = {"seconds": 0.6, "warm": 1.0, "outstanding": 400, "size": 1024}


@pytest.fixture(scope="module")
def side(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurSide]:
    made = OurSide(zookeeper_server.address, tmp_path_factory.mktemp("bench-ours"))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    made = Loaders(tmp_path_factory.mktemp("bench-clients"))
    yield made
    made.close()


def needs_java(client: str) -> None:
    if client != "ours" and missing_tools():
        pytest.skip(missing_tools())


@pytest.mark.share(2)
@pytest.mark.parametrize("client", ["ours", "apache-2", "apache-3"])
def test_each_load_reports_consistent_figures(client: str, side: OurSide, loaders: Loaders, tmp_path: Path) -> None:
    needs_java(client)
    loader = loaders[client]

    def ask(load: str, **more: Any) -> dict[str, Any]:
        request = {**SHORT, "uri": side.uri, "protocol": 3 if client == "apache-3" else 2, "load": load, **more}
        return loader.ask(request, tmp_path, side.pids)

    written = ask("write", ledgers=3)
    assert len(written["ledgers"]) == 3
    # How much was done in a moment of a machine that does much else is no matter; that it adds up is.
    assert written["all_entries"] > 0
    assert written["all_entries"] >= written["entries"]
    assert (written["per_s"] > 0) is (written["entries"] > 0)
    assert written["p50_ms"] <= written["p99_ms"] <= written["p999_ms"] <= written["max_ms"] + 0.001
    assert written["cpu_us"] == pytest.approx(written["client_us"] + written["servers_us"], abs=0.01)
    paced = ask("paced", rate=1000)
    assert paced["entries"] == 600
    filled = ask("fill", entries=2000, ledgers=2)
    assert filled["all_entries"] == 2000
    batch = client != "apache-3"  # Apache's client has batch reads on v2 only
    assert ask("sequential", ledgers=filled["ledgers"], range=100, batch=batch)["per_s"] > 0
    read = ask("random", ledgers=filled["ledgers"], outstanding=8)
    assert 0 < read["p50_ms"] <= read["p99_ms"]
    ask("drop", ledgers=filled["ledgers"])
    with pytest.raises(LoadFailed):
        ask("sequential", ledgers=filled["ledgers"])


@pytest.mark.parametrize("run", [1, 20])
def test_our_client_appends_one_by_one_and_in_runs(run: int, side: OurSide, loaders: Loaders, tmp_path: Path) -> None:
    request = {**SHORT, "uri": side.uri, "load": "write", "ledgers": 5, "run": run}
    written = loaders["ours"].ask(request, tmp_path, side.pids)
    assert written["all_entries"] >= written["entries"] > 0
    assert written["entries"] % run == 0
    assert 0 < written["busiest_thread_us"] <= written["busiest_process_us"] <= written["cpu_us"]


def test_several_processes_put_one_load_on_a_cluster(side: OurSide, loaders: Loaders, tmp_path: Path) -> None:
    request = {**SHORT, "uri": side.uri, "load": "write", "ledgers": 2, "run": 1}
    written = ask_together([loaders["ours#0"], loaders["ours#1"]], request, tmp_path, side.pids)
    assert len(written["ledgers"]) == 4
    assert written["entries"] > 0
    assert written["per_s"] > 0
    assert written["cpu_us"] > 0


def test_raw_adds_fill_ledgers_that_metadata_does_not_know(side: OurSide) -> None:
    port = side.ports[0]
    assert answers(port)
    ids = range(1 << 40, (1 << 40) + 3000)
    assert add_entry(port, ids) == 0
    assert add_entry(port, ids, 1) == 0
    assert holds(port, ids[-1], 1)
    assert not holds(port, ids[-1] + 1)
