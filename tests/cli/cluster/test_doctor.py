"""`buckram doctor` names each fault that was made, mends what loses nothing, and leaves the rest to people."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.e2e.conftest import Ended, environment
from tests.support.polling import wait_until

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.cluster import Client, connect
from buckram.core.healing.operator_requests import OperatorRequest
from buckram.core.healing.status import WaitingLedger
from buckram.core.streams.names import OWNER, OWNER_UID
from buckram.core.wire.introduction import INCARNATION_PROPERTY
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.operator_requests import change_wish
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.uri import open_store
from buckram.testing import ThreadedCluster
from buckram.types import BookieInfo

Run = Callable[..., Ended]
GONE = 999
"""A ledger that does not exist."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BUCKRAM_METADATA", cluster.uri)

    def run(*words: object) -> Ended:
        code = in_process([str(word) for word in words])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Ended(code, said.out, said.err)

    return run


def with_client(cluster: ThreadedCluster, work: Callable[[Client], Awaitable[object]]) -> None:
    async def main() -> None:
        async with connect(cluster.uri) as client:
            await work(client)

    asyncio.run(main())


def tree(client: Client) -> Underreplication:
    return Underreplication(client.services.store.keys, client.services.store.root, "test")


def problems(said: Ended) -> dict[str, dict[str, str]]:
    assert all(set(one) == {"what", "where", "why", "do", "severity", "runbook"} for one in said.json["problems"])
    return {one["what"]: one for one in said.json["problems"]}


def errors(said: Ended) -> set[str]:
    """How full the disk of this machine is, is not of interest."""
    return {name for name, one in problems(said).items() if one["severity"] == "error"}


def test_a_cluster_that_nobody_heals_is_not_healthy(run: Run) -> None:
    said = run("doctor", "--json")
    assert (said.code, said.json["healthy"]) == (Exit.FAILED, False)
    assert errors(said) == {"auditor-missing"}
    assert "buckram autorecovery run" in problems(said)["auditor-missing"]["do"]
    assert [one["id"] for one in said.json["bookies"]] == ["bookie-0", "bookie-1", "bookie-2"]
    assert all(0 < one["open_files"] < one["most_files"] and one["version"] for one in said.json["bookies"])
    assert "1 error" in run("doctor").out


def test_leftovers_are_named_and_removed(cluster: ThreadedCluster, run: Run) -> None:
    async def leave(client: Client) -> None:
        marks = tree(client)
        await marks.prepare()
        await marks.mark(GONE, ["bookie-0"], 0)
        await HealingStatusStore(client.services.store).say_waiting(WaitingLedger(GONE + 1, (), 1, "nobody", 0))
        await change_wish(client.services.store, "stranger", lambda _: OperatorRequest(readonly=True))

    with_client(cluster, leave)
    found = [one for one in run("doctor", "--json").json["problems"] if one["what"] == "leftovers"]
    assert [one["where"] for one in found] == [
        f"marks of ledgers {GONE}",
        f"reasons of ledgers {GONE + 1}",
        "requests to bookies stranger",
    ]
    mended = run("doctor", "--fix", "--json").json
    done = {one["done"] for one in mended["fixed"]}
    assert {"removed 1 marks", "removed the reasons of 1 ledgers", "removed the requests to stranger"} == done
    assert not any(one["what"] == "leftovers" for one in mended["problems"])
    again = run("doctor", "--fix")
    assert not any(line.startswith("fixed:") for line in again.out.splitlines())
    assert "not fixed: it could lose data, or needs a decision" in again.out, "auditor-missing"
    assert again.code == Exit.FAILED


def test_orphans_are_named_and_deleted(cluster: ThreadedCluster, run: Run) -> None:
    made: list[int] = []

    async def leave(client: Client) -> None:
        owner = {OWNER: b"default/gone", OWNER_UID: b"00000000000000000000000000000000"}
        async with client.create(ensemble=(3, 3, 2), custom_metadata=owner) as writer:
            made.append(writer.ledger_id)

    with_client(cluster, leave)
    assert str(made[0]) in problems(run("doctor", "--json"))["orphans"]["where"]
    assert "deleted 1 orphans" in [one["done"] for one in run("doctor", "--fix", "--json").json["fixed"]]
    assert run("ledger", "show", made[0]).code == Exit.NOT_FOUND
    assert "orphans" not in problems(run("doctor", "--json"))


def test_an_old_mark_is_named_with_its_age(cluster: ThreadedCluster, run: Run) -> None:
    async def leave(client: Client) -> None:
        await tree(client).prepare()
        async with client.create(ensemble=(3, 3, 2)) as writer:
            await tree(client).mark(
                writer.ledger_id, ["bookie-0"], client.services.clocks.now() // 1000 - 3 * 3_600_000
            )
        async with client.create(ensemble=(3, 3, 2)) as writer:  # by a clock that is ahead
            await tree(client).mark(writer.ledger_id, ["bookie-0"], client.services.clocks.now() // 1000 + 3_600_000)

    with_client(cluster, leave)
    said = problems(run("doctor", "--json"))["under-replicated"]
    assert said["why"].startswith("2 ledgers lack copies, for 3 h at most")
    shown = run("status")
    assert "3 h ago" in shown.out
    assert "0 s ago" in shown.out
    ages = [one["age_s"] for one in run("status", "--json").json["queue"]]
    assert [age >= 0 for age in ages] == [True, True]

    async def tidy(client: Client) -> None:
        marks = tree(client)
        async for ledger in marks.marked():
            mark = await marks.read_mark(ledger)
            assert mark is not None
            await marks.unmark(mark)

    with_client(cluster, tidy)


def test_ids_that_are_used_twice_are_named(cluster: ThreadedCluster, run: Run) -> None:
    async def main() -> None:
        async with connect(cluster.uri) as client:
            store = client.services.store
            real = (await store.bookies()).writable["bookie-0"]
            assert real.incarnation is not None
            ghosts = await open_store(cluster.uri)
            try:
                ghost = BookieInfo("ghost", real.address, {INCARNATION_PROPERTY: real.incarnation})
                await ghosts.register(ghost, readonly=True)
                await asyncio.to_thread(look)
            finally:
                await ghosts.close()
            async with client.create(ensemble=(3, 3, 2)) as writer:
                metadata = (await store.read_ledger(writer.ledger_id)).metadata
            copied = await store.allocate_ledger_id()
            version = (await store.create_ledger(copied, metadata)).version
            await asyncio.to_thread(look_at_births)
            await store.delete_ledger(copied, version)

    def look() -> None:
        found = problems(run("doctor", "--json"))
        assert found["address-used-twice"]["where"] == "bookie-0, ghost"
        assert found["directory-used-twice"]["where"] == "bookie-0, ghost"

    def look_at_births() -> None:
        why = problems(run("doctor", "--json"))["repeated-births"]["why"]
        assert why == "1 ledgers have the birth of another one: their records are copies"

    asyncio.run(main())
    wait_until(lambda: errors(run("doctor", "--json")) == {"auditor-missing"}, "the ghost is still there")


def test_a_bookie_that_is_down_and_one_that_hangs_are_named(cluster: ThreadedCluster, run: Run) -> None:
    cluster.stop(2)
    cluster.pause(1)
    try:
        found = run("doctor", "--json").json["problems"]
        states = {one["where"]: one["what"] for one in found if one["what"].startswith("bookie-")}
    finally:
        cluster.resume(1)
        cluster.restart(2)
    assert states == {"bookie-1": "bookie-silent", "bookie-2": "bookie-down"}


def test_a_cluster_that_is_healed_by_itself_is_healthy(cluster: ThreadedCluster, run: Run) -> None:
    command = [sys.executable, "-m", "buckram", "autorecovery", "run", "--json"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(cluster.uri))
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        wait_until(lambda: run("doctor", "--json").code == 0, "not healthy")
        healthy = run("doctor", "--json").json
        assert healthy["healthy"] is True
        assert all(one["severity"] != "error" for one in healthy["problems"])
        assert " error" not in run("doctor").out
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0
