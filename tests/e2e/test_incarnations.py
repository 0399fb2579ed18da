"""An old disk, and processes that hang while their id is given away, among real processes: none passes for a member."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.conftest import buckram
from tests.support.polling import wait_until

from buckram import connect
from buckram.cli.shared.exits import Exit
from buckram.core.healing.needs import members_of
from buckram.errors import ConfigError
from buckram.launch.etcd_server import find_etcd, start_etcd
from buckram.launch.processes import BookieProcess, stop_all
from buckram.metadata.uri import open_store

pytestmark = pytest.mark.share(10, "stores")


@dataclass
class Cluster:
    uri: str
    root: Path
    bookies: dict[str, BookieProcess]

    def start(self, bookie: str, directory: str = "") -> BookieProcess:
        process = BookieProcess(self.uri, self.root / (directory or bookie), bookie_id=bookie)
        process.start()
        process.wait_ready()
        self.bookies[directory or bookie] = process
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A server of etcd, where a session ends ten seconds after its process was last heard of, and two bookies."""
    try:
        find_etcd()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no etcd server can be started: {error}")
        pytest.skip(f"no etcd server can be started: {error}")
    with start_etcd(tmp_path / "etcd") as server:
        found = Cluster(f"etcd://{server.address}/buckram", tmp_path, {})
        assert buckram("cluster", "init", uri=found.uri).code == 0
        try:
            found.start("b0")
            found.start("b1")
            yield found
        finally:
            for process in found.bookies.values():
                if process.alive:
                    process.signal(signal.SIGCONT)
            stop_all(list(found.bookies.values()))


async def ten_entries(uri: str) -> int:
    """A ledger of 2/2/2 on b0 and b1 with ten acknowledged entries, whose writer is gone."""
    async with connect(uri) as client:
        writer = await client.create(ensemble=(2, 2, 2), password=b"")
        assert set(members_of(writer.metadata)) == {"b0", "b1"}
        for number in range(10):
            await writer.append(b"%d" % number)
        await writer.abandon()
        return writer.ledger_id


def registered(uri: str) -> list[str]:
    async def main() -> list[str]:
        store = await open_store(uri)
        try:
            return [name for name, _ in (await store.bookies()).everybody()]
        finally:
            await store.close()

    return asyncio.run(main())


def last_entry(uri: str, ledger: int) -> int:
    found = buckram("ledger", "recover", ledger, "--json", uri=uri)
    assert found.code == 0, found.err
    return int(found.json["last_entry"])


def test_an_old_directory_does_not_pass_for_the_bookie_that_took_its_id_over(cluster: Cluster) -> None:
    uri = cluster.uri
    assert cluster.bookies["b1"].stop() == 0
    assert buckram("bookie", "rejoin", "b1", uri=uri).code == 0
    successor = cluster.start("b1", "b1-new")
    ledger = asyncio.run(ten_entries(uri))
    assert successor.stop() == 0
    old = BookieProcess(uri, cluster.root / "b1", bookie_id="b1")
    old.start()
    assert old.reap() == Exit.REFUSED
    for part in ("b1 was replaced", "generation 2", "took the id over at", "--id NEW-ID", str(cluster.root / "b1")):
        assert part in old.last_words()
    assert cluster.bookies["b0"].stop() == 0
    assert buckram("ledger", "recover", ledger, uri=uri).code != 0, "nobody is there who knows its end"
    cluster.start("b0")
    cluster.start("b1", "b1-new")
    assert last_entry(uri, ledger) == 9


def test_processes_that_hang_while_their_id_is_given_away_end_when_they_wake(cluster: Cluster) -> None:
    uri = cluster.uri
    replaced, removed = cluster.bookies["b1"], cluster.start("b2")
    for process in (replaced, removed):
        process.signal(signal.SIGSTOP)
    wait_until(lambda: registered(uri) == ["b0"], "their sessions did not end")
    assert buckram("bookie", "rejoin", "b1", uri=uri).code == 0
    assert buckram("bookie", "decommission", "b2", uri=uri).code == 0
    successor = cluster.start("b1", "b1-new")
    ledger = asyncio.run(ten_entries(uri))
    assert successor.stop() == 0
    assert cluster.bookies["b0"].stop() == 0
    for process in (replaced, removed):
        process.signal(signal.SIGCONT)
    assert buckram("ledger", "recover", ledger, uri=uri).code != 0, "nobody is there who knows its end"
    for process, why in ((replaced, "b1 was replaced"), (removed, "b2 was taken out")):
        assert process.reap() == Exit.REFUSED
        assert why in process.last_words()
    assert registered(uri) == []
    cluster.start("b0")
    cluster.start("b1", "b1-new")
    assert last_entry(uri, ledger) == 9
    checked = buckram("cluster", "check", "--json", uri=uri).json["problems"]
    assert {one["what"] for one in checked if one["severity"] == "error"} == {"auditor-missing"}
