"""Machines are taken out with the commands for it: drained, stopped and forgotten, or replaced by another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import Up, buckram
from tests.support.polling import wait_until

from buckram.cli.shared.exits import Exit
from buckram.core.healing.needs import members_of
from buckram.healing.operations.dependency_check import ledger_records
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.uri import open_store

pytestmark = pytest.mark.share(10, "clusters")

LINES = b"".join(b"line %d\n" % number for number in range(1000))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Five bookies that heal themselves, and closed ledgers of three copies."""
    up = Up(tmp_path_factory.mktemp("cluster") / "data", "--bookies", 5, "--janitor", "never")
    for _ in range(3):
        assert buckram("ledger", "write", "--ensemble", "3/3/2", "--close", uri=up.uri, stdin=LINES).code == 0
    wait_until(lambda: asyncio.run(audited(up.uri)), "no auditor")
    yield up
    assert up.stop() == 0


async def audited(uri: str) -> bool:
    store = await open_store(uri)
    try:
        return bool(await Election(store.keys, store.root, "").votes())
    finally:
        await store.close()


def named(up: Up) -> dict[str, list[int]]:
    """The ledgers that name each bookie."""

    async def main() -> dict[str, list[int]]:
        store = await open_store(up.uri)
        try:
            found: dict[str, list[int]] = {bookie["id"]: [] for bookie in up.ready["bookies"]}
            async for ledger, metadata in ledger_records(store):
                for member in members_of(metadata):
                    found[member].append(ledger)
            return found
        finally:
            await store.close()

    return asyncio.run(main())


def state(up: Up, bookie: str) -> tuple[str, str]:
    rows = buckram("bookie", "list", "--json", uri=up.uri).json["bookies"]
    return next(((row["state"], row["asked"]) for row in rows if row["id"] == bookie), ("", ""))


def test_a_drained_bookie_can_be_stopped_and_forgotten(cluster: Up) -> None:
    bookie, held = next((bookie, ledgers) for bookie, ledgers in named(cluster).items() if ledgers)
    drained = buckram("bookie", "drain", bookie, "--rate", "50MB", "--json", uri=cluster.uri)
    assert drained.code == 0, drained.err
    assert (drained.json["ledgers"], drained.json["entries_copied"]) == (len(held), 1000 * len(held))
    assert drained.json["remaining"] == 0
    steps = [json.loads(line) for line in drained.err.splitlines() if line.startswith("{")]
    assert steps[-1]["done"] == steps[-1]["total"] == len(held)
    assert named(cluster)[bookie] == []
    assert state(cluster, bookie) == ("readonly", "drain")
    assert buckram("bookie", "forget", bookie, uri=cluster.uri).code == Exit.FAILED, "it runs"
    number = [one["id"] for one in cluster.ready["bookies"]].index(bookie)
    os.kill(cluster.pids[number], signal.SIGTERM)
    wait_until(lambda: state(cluster, bookie)[0] == "down", "still registered")
    assert "is down" in buckram("bookie", "show", bookie, uri=cluster.uri).out
    assert buckram("bookie", "forget", bookie, uri=cluster.uri).code == 0
    assert state(cluster, bookie) == ("", "")
    assert buckram("cluster", "check", uri=cluster.uri).code == 0


def test_a_replaced_bookie_is_out_while_its_process_still_runs(cluster: Up) -> None:
    before = named(cluster)
    there = [bookie for bookie in before if state(cluster, bookie)[0] == "writable"]
    old = next(bookie for bookie in there if before[bookie])
    new = next(bookie for bookie in reversed(there) if bookie != old)
    replaced = buckram("bookie", "replace", old, new, "--json", uri=cluster.uri)
    assert replaced.code == 0, replaced.err
    assert (replaced.json["bookie"], replaced.json["remaining"]) == (old, 0)
    assert replaced.json["ledgers"] == len(before[old])
    assert set(named(cluster)[new]) == {*before[old], *before[new]}
    assert state(cluster, old) == ("", "")
    assert buckram("cluster", "check", uri=cluster.uri).code == 0
