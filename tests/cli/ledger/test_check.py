"""`buckram ledger check` and `repair`, for one ledger, many, and all: what lacks is named, and stops no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.cli.cluster.test_doctor import with_client
from tests.client.maintain.test_replica_audit import MARK, directory_of, flip
from tests.e2e.conftest import Ended

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.client.maintain.check import check_ledger
from buckram.cluster import Client
from buckram.core.ledgers.metadata import member_replaced
from buckram.core.ledgers.replica_audit import without
from buckram.testing import ThreadedCluster, cluster

Run = Callable[..., Ended]


@pytest.fixture
def running() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=4) as cluster:
        yield cluster


@pytest.fixture
def run(running: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BUCKRAM_METADATA", running.uri)

    def run(*words: object) -> Ended:
        code = in_process([str(word) for word in words])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Ended(code, said.out, said.err)

    return run


async def write(client: Client, ensemble: tuple[int, int, int] = (3, 3, 2), entries: int = 20) -> int:
    async with client.create(ensemble=ensemble) as writer:
        for entry in range(entries):
            writer.append_nowait(b"%d" % entry)
    return writer.ledger_id


def lines(said: Ended) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.out.splitlines()]


def made(running: ThreadedCluster, work: Callable[[Client], Awaitable[object]]) -> None:
    with_client(running, work)


def test_what_lacks_is_named_and_repaired_and_stops_no_other(running: ThreadedCluster, run: Run) -> None:
    whole: list[int] = []
    lacking: list[tuple[int, str]] = []

    async def prepare(client: Client) -> None:
        store = client.services.store
        whole.extend([await write(client), await write(client, (3, 2, 2))])
        ledger = await write(client)
        found = await store.read_ledger(ledger)
        inside = found.metadata.fragments[0].ensemble
        other = next(bookie for bookie in running.bookies if bookie not in inside)
        # The record names a bookie that has nothing of the ledger.
        await store.write_ledger(ledger, member_replaced(found.metadata, 0, inside[0], other), found.version)
        lacking.append((ledger, other))

    made(running, prepare)
    (ledger, bookie), *_ = lacking
    one = run("ledger", "check", whole[0], "--json")
    assert (one.code, one.json["healthy"], one.json["state"], one.json["problems"]) == (0, True, "healthy", [])
    assert one.json["replicas"] == 60
    said = run("ledger", "check", "--all", "--json")
    assert said.code == Exit.FAILED
    *each, sums = lines(said)
    assert [(one["ledger"], one["state"]) for one in each] == [
        (whole[0], "healthy"),
        (whole[1], "healthy"),
        (ledger, "lacks copies"),
    ]
    assert each[2]["lacking"] == [
        {"bookie": bookie, "kind": "missing", "entries": 20, "rows": [[0, 19]], "why": "it knows no such ledger"}
    ]
    assert (sums["ledgers"], sums["healthy"], sums["stopped"]) == (3, False, None)
    assert sums["states"] == {"healthy": 2, "lacks copies": 1}
    assert f"ledger {ledger}, bookie {bookie}: 20 entries (0 to 19)" in run("ledger", "check", ledger).out
    assert run("ledger", "check", ledger, "--read").code == Exit.FAILED
    mended = run("ledger", "repair", "--all", "--rate", "50MB", "--json")
    assert mended.code == 0, mended.out
    assert lines(mended)[-1]["entries_copied"] == 20
    checked = run("ledger", "check", "--all", "--read", "--rate", "50MB")
    assert (checked.code, checked.out) == (0, "3 ledgers: 3 healthy\n")


def test_a_record_that_cannot_be_read_stops_no_other(running: ThreadedCluster, run: Run) -> None:
    ledgers: list[int] = []

    async def prepare(client: Client) -> None:
        store = client.services.store
        ledgers.extend([await write(client), await write(client), await write(client)])
        key = await store.ledgers.key(ledgers[0])  # type: ignore[attr-defined]  # a TreeStore has it
        await store.keys.set(key, b"nonsense", (await store.keys.get(key)).version)

    made(running, prepare)
    for command in ("check", "repair"):
        said = run("ledger", command, "--all", "--json")
        *each, sums = lines(said)
        assert [one["state"] for one in each] == ["failed", "healthy", "healthy"], command
        assert (said.code, sums["healthy"], sums["ledgers"]) == (Exit.FAILED, False, 3)
    said = run("ledger", "check", ledgers[1], 12345, "--json")
    assert (said.code, [one["state"] for one in lines(said)[:-1]]) == (Exit.NOT_FOUND, ["healthy", "failed"])
    assert run("ledger", "check", 12345).code == Exit.NOT_FOUND


def test_copies_on_a_bookie_that_is_down_lack(running: ThreadedCluster, run: Run) -> None:
    ledgers: list[int] = []

    async def prepare(client: Client) -> None:
        ledgers.append(await write(client, (4, 4, 2)))

    made(running, prepare)
    running.stop(3)
    said = run("ledger", "check", ledgers[0], "--json")
    assert said.code == Exit.FAILED
    assert [(one["bookie"], one["kind"], one["entries"]) for one in said.json["lacking"]] == [("bookie-3", "away", 20)]
    repaired = run("ledger", "repair", ledgers[0])
    assert (repaired.code, "no other bookie is free: start one more" in repaired.out) == (Exit.FAILED, True)
    assert run("ledger", "repair", ledgers[0], "--json").json["healthy"] is False
    running.add()
    assert run("ledger", "repair", ledgers[0]).code == 0
    assert run("ledger", "check", ledgers[0]).code == 0


def test_a_bookie_that_does_not_answer_leaves_it_unknown(running: ThreadedCluster, run: Run) -> None:
    ledgers: list[int] = []

    async def prepare(client: Client) -> None:
        ledgers.append(await write(client, (4, 4, 2)))

    made(running, prepare)
    running.pause(2)
    try:
        said = run("ledger", "check", ledgers[0], "--json")
    finally:
        running.resume(2)
    assert (said.code, said.json["state"], list(said.json["unknown"])) == (Exit.TRY_AGAIN, "unknown", ["bookie-2"])


def test_what_can_still_be_written_is_not_judged(running: ThreadedCluster, run: Run) -> None:
    ledger = run("ledger", "create", "--json").json["ledger"]
    said = run("ledger", "check", ledger, "--json")
    assert (said.code, said.json["open_from"], said.json["replicas"]) == (0, 0, 0)
    assert "entries from 0 on can still be written" in run("ledger", "check", ledger).out


async def test_damaged_copies_are_found_by_reading_only() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        async with client.create(ensemble=(3, 3, 2)) as writer:
            for _ in range(20):
                await writer.append(MARK)
        flip(directory_of(c, 1), 7)
        assert (await check_ledger(client.services, writer.ledger_id)).healthy
        found = await check_ledger(client.services, writer.ledger_id, read=True)
        assert (found.state, [(one.bookie, one.rows) for one in found.lacking]) == (
            "damaged",
            [(c.bookies[1], ((7, 7),))],
        )
        assert (await client.repair(writer.ledger_id)).healthy
        assert (await check_ledger(client.services, writer.ledger_id, read=True)).healthy


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "name the ledgers, or give --all"),
        (("7", "--all"), "--all: name no ledgers"),
        (("7", "--rate", "0"), "--rate 0"),
        (("--", "-1"), "-1"),
    ],
)
@pytest.mark.parametrize("command", ["check", "repair"])
def test_what_makes_no_sense_is_refused(
    command: str, words: tuple[str, ...], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--read",) if "--rate" in words and command == "check" else ()
    assert in_process(["ledger", command, *options, *words]) == Exit.USAGE
    assert named in capfd.readouterr().err


def test_a_rate_without_reading_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_process(["ledger", "check", "7", "--rate", "1MB"]) == Exit.USAGE
    assert "it limits --read" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "runs", "left"),
    [
        ([(0, 9)], [], [(0, 9)]),
        ([(0, 9)], [(0, 10)], []),
        ([(0, 9)], [(3, 2), (7, 1)], [(0, 2), (5, 6), (8, 9)]),
        ([(0, 3), (6, 9)], [(2, 6)], [(0, 1), (8, 9)]),
        ([(5, 6), (8, 9)], [(0, 2), (9, 50)], [(5, 6), (8, 8)]),
    ],
)
def test_what_no_run_covers(
    wanted: list[tuple[int, int]], runs: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert list(without(wanted, runs)) == left


def test_a_store_that_goes_away_ends_it_and_says_so(
    running: ThreadedCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from buckram.client.maintain import check
    from buckram.errors import MetadataUnavailable

    async def prepare(client: Client) -> None:
        for _ in range(2):
            await write(client)

    made(running, prepare)

    async def away(*_: object, **__: object) -> None:
        await asyncio.sleep(0)
        raise MetadataUnavailable("it is away")

    monkeypatch.setattr(check, "check_ledger", away)
    said = run("ledger", "check", "--all", "--json")
    assert said.code == Exit.TRY_AGAIN
    assert lines(said)[-1]["stopped"] == "it is away (may succeed later)"
    assert "stopped before all were done" in said.err


def test_check_says_how_much_lacks_of_how_much(running: ThreadedCluster, run: Run) -> None:
    found: list[int] = []

    async def prepare(client: Client) -> None:
        store = client.services.store
        found.extend([await write(client), await write(client)])
        record = await store.read_ledger(found[1])
        inside = record.metadata.fragments[0].ensemble
        other = next(bookie for bookie in running.bookies if bookie not in inside)
        await store.write_ledger(found[1], member_replaced(record.metadata, 0, inside[0], other), record.version)

    made(running, prepare)
    said = run("ledger", "check", *found)
    assert "healthy, 60 copies of entries\n" in said.out
    assert "lacks copies, 20 of 60 copies of entries are missing" in said.out
    assert said.out.splitlines()[-1].endswith("; 20 of 120 copies of entries are missing")
    *each, sums = lines(run("ledger", "check", *found, "--json"))
    assert [(one["replicas"], one["replicas_lacking"], one["replicas_unknown"]) for one in (*each, sums)] == [
        (60, 0, 0),
        (60, 20, 0),
        (120, 20, 0),
    ]
