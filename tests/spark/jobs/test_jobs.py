"""Jobs on a real session and real bookies: what they find and change, and how they continue after a stop."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from buckram import sync
from buckram.cli import job as cli
from buckram.core.cluster.conviction import Accused
from buckram.core.entries.entry import Digest, master_key
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Record
from buckram.core.wire.messages import Add
from buckram.errors import InvalidArgument, NoSuchLedger, StreamError
from buckram.jobs import compact, orphans, scrub
from buckram.metadata.records.bookie_health import read_accused
from buckram.metadata.uri import open_store
from buckram.spark.jobs.scrub import ScrubSettings
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.orphans import find_orphans
from buckram.streams.shared.metadata import StreamStore
from buckram.testing import ThreadedCluster
from buckram.types import DigestType

pytestmark = pytest.mark.spark
MARK = b"here is the byte that will be flipped"
MIB = 1 << 20


@pytest.fixture
def own() -> Iterator[ThreadedCluster]:
    """A cluster for one test, which may break it."""
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.fixture
def client(own: ThreadedCluster) -> Iterator[sync.Client]:
    with sync.connect(own.uri) as connected:
        yield connected


def directory_of(running: ThreadedCluster, number: int) -> Path:
    return running._running._nodes[number].directory


def written(
    client: sync.Client, entries: int, size: int, ensemble: str = "3/3/2", password: str = "", digest: str = "crc32c"
) -> int:  # fmt: skip
    rng = Random(entries)
    with client.create(ensemble=ensemble, password=password, digest=digest) as writer:
        writer.append_many([rng.randbytes(size - len(MARK)) + MARK for _ in range(entries)])
        return writer.ledger_id


def accused(own: ThreadedCluster) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return the verdict, ledgers and entries of the evidence against each bookie."""

    async def look() -> list[Accused]:
        store = await open_store(own.uri)
        try:
            return await read_accused(store)
        finally:
            await store.close()

    return [(one.bookie, one.verdict, [(e.ledger, e.entry) for e in one.evidence]) for one in asyncio.run(look())]


def flip(directory: Path) -> None:
    for log in sorted(directory.glob("log-*")):
        place = log.read_bytes().find(MARK)
        if place >= 0:
            with log.open("r+b") as file:
                file.seek(place)
                file.write(b"H")
            return
    raise AssertionError("no log holds the mark")


# -- scrub ------------------------------------------------------------------------------------------------


def test_a_flipped_byte_and_a_truncated_replica(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client, tmp_path: Path
) -> None:
    bad = written(client, 6500, 4000, digest="mac")
    written(client, 400, 1000, "3/2/2")
    flip(directory_of(own, 1))
    cut = written(client, 300, 4000, password="secret")
    own.stop(2)
    log = max(path for path in directory_of(own, 2).glob("log-*") if MARK in path.read_bytes())
    os.truncate(log, log.read_bytes().rfind(MARK) - 200 * 4000)
    own.restart(2)
    seen: list[tuple[int, int]] = []
    found = scrub(
        spark, own.uri, report=str(tmp_path / "audits"), progress=lambda done, total: seen.append((done, total))
    )
    assert (found.ledgers, found.replicas, found.growing) == (3, 9, 0)
    assert not found.healthy
    assert seen[-1] == (3, 3)
    assert {(one.ledger, one.bookie) for one in found.bad} == {(bad, own.bookies[1]), (cut, own.bookies[2])}
    flipped, truncated = sorted(found.bad, key=lambda one: one.ledger)
    assert (flipped.kind, flipped.entries, flipped.examples) == ("damaged", 1, (0,))
    assert truncated.entries >= 190
    assert flipped.repair == f"buckram ledger repair {bad}"
    assert truncated.repair == f'buckram ledger repair {cut} --password "$LEDGER_PASSWORD"'
    assert found.unknown == []
    assert accused(own) == [(own.bookies[1], "suspect", [(bad, 0)])]
    rows = spark.read.parquet(str(tmp_path / "audits")).where(f"run = '{found.run}' and state != 'good'").collect()
    assert {(row["ledger"], row["bookie"]) for row in rows} == {(bad, own.bookies[1]), (cut, own.bookies[2])}
    for one in found.bad:
        client.repair(one.ledger, password="secret" if one.ledger == cut else "")
    again = scrub(spark, own.uri)
    assert again.healthy
    assert again.entries == 400 * 2 + 6500 * 3 + 300 * 3


@pytest.mark.share(4)
def test_a_scrub_continues_where_it_stopped(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = [written(client, 50, 30_000) for _ in range(3)]
    settings = ScrubSettings(piece_bytes=MIB, round_bytes=4 * MIB)
    rounds: list[int] = []
    original = scrub.__globals__["spread"]

    def counted(session: SparkSession, tasks: list[Any], *rest: Any) -> Any:
        if len(rounds) == 1 and not stopped:
            raise KeyboardInterrupt
        rounds.append(sum(len(task.pieces) for task in tasks))
        return original(session, tasks, *rest)

    stopped: list[bool] = []
    monkeypatch.setitem(scrub.__globals__, "spread", counted)
    with pytest.raises(KeyboardInterrupt):
        scrub(spark, own.uri, report=str(tmp_path), run="november", settings=settings)
    stopped.append(True)
    first = rounds[0]
    found = scrub(spark, own.uri, report=str(tmp_path), run="november", settings=settings)
    total = sum(rounds)
    assert 0 < first < total
    assert found.entries == 3 * 50 * 3
    assert found.replicas == 9
    assert scrub(spark, own.uri, report=str(tmp_path), run="november", settings=settings).entries == found.entries
    assert sum(rounds) == total  # No piece was read twice.
    other = scrub(spark, own.uri, report=str(tmp_path), run="december", ledgers=ledgers[:1])
    assert other.entries == 150


def test_a_rate_limit_makes_rounds_smaller() -> None:
    assert ScrubSettings().round_of(3) == 2048 * MIB
    assert ScrubSettings(bytes_per_s=1e6).round_of(3) == 90_000_000
    assert ScrubSettings(bytes_per_s=1e12).round_of(3) == 2048 * MIB


@pytest.mark.share(4)
def test_an_unreachable_bookie_is_unknown_and_read_again(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client, tmp_path: Path
) -> None:
    ledger = written(client, 10, 1000)
    own.kill(1)
    found = scrub(spark, own.uri, report=str(tmp_path), run="r")
    assert found.bad == []
    assert [(one.ledger, one.bookie, one.kind) for one in found.unknown] == [(ledger, own.bookies[1], "unknown")]
    own.restart(1)
    assert scrub(spark, own.uri, report=str(tmp_path), run="r").healthy


def test_replicas_with_good_digests_and_other_contents_differ(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client
) -> None:
    """One bookie has an entry with other bytes and a good digest, as of a second writer that was not fenced."""
    ledger = written(client, 5, 1000)
    digest = Digest(DigestType.CRC32C, b"")

    async def forge(lac: int, payload: bytes, bookie: str) -> None:
        stored = digest.seal(ledger, 4, lac, 5000, payload)
        request = Add(ledger, 4, master_key(b""), stored, recovery=True)
        await client._client.services.pool.call(bookie, request)

    present = client.open(ledger).read(4, 4)[0].payload
    client._thread.run(lambda: forge(1, present, own.bookies[0]))
    assert scrub(spark, own.uri).healthy  # Recovery may leave another LAC with the same payload.
    client._thread.run(lambda: forge(3, b"z" * 1000, own.bookies[2]))
    found = scrub(spark, own.uri)
    assert {(one.kind, one.examples, one.repair) for one in found.bad} == {("differs", (4,), "")}
    assert len(found.bad) == 3


@pytest.mark.share(4)
def test_the_rate_limit_of_a_scrub_holds(spark: SparkSession, own: ThreadedCluster, client: sync.Client) -> None:
    written(client, 300, 10_000)
    found = scrub(spark, own.uri, settings=ScrubSettings(bytes_per_s=2_000_000))
    assert found.bytes > 9_000_000
    assert found.seconds > 1.0  # Each bookie has 3 MB.


def test_bad_arguments_of_jobs_are_refused(spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path) -> None:
    with pytest.raises(NoSuchLedger, match="999999"):
        scrub(spark, cluster.uri, ledgers=[999_999])
    with pytest.raises(InvalidArgument, match="one of them"):
        scrub(spark, cluster.uri, report=str(tmp_path), table="x")
    with pytest.raises(InvalidArgument, match="letters"):
        scrub(spark, cluster.uri, run="a b")
    with pytest.raises(InvalidArgument, match="tasks_per_bookie = 0"):
        ScrubSettings(tasks_per_bookie=0)
    with pytest.raises(InvalidArgument, match="bytes_per_s"):
        compact(spark, cluster.uri, bytes_per_s=0)
    with pytest.raises(StreamError, match="does not exist"):
        compact(spark, cluster.uri, streams=["no-such-stream"])


# -- compact ----------------------------------------------------------------------------------------------


def micro_batches(client: sync.Client, stream: str, count: int) -> list[Record]:
    space, _, bare = stream.partition("/")
    ns = client.namespace(space)
    ns.create(bare)
    for number in range(count):
        step = ns.bulk(bare, application="sink", version=number)
        ledger = step.create_ledger()
        ledger.append_many([b"%d-%d" % (number, k) + bytes(50) for k in range(20)])
        step.publish([ledger.close()])
    return list(ns.read(bare))


@pytest.mark.share(4)
def test_small_segments_become_large_ones(
    spark: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    with sync.connect(any_cluster.uri) as client:
        before = micro_batches(client, stream, 12)
        ns, bare = client.namespace("default"), stream.partition("/")[2]
        found = compact(spark, any_cluster.uri, streams=[stream], report=str(tmp_path), bytes_per_s=10_000_000)
        assert (found.segments, found.made, found.problems) == (12, 1, [])
        assert list(ns.read(bare)) == before
        (row,) = ns.segments(bare)
        assert (row.base, row.end) == (0, 240)
        (kept,) = spark.read.parquet(str(tmp_path)).collect()
        assert (kept["state"], kept["segments"], kept["ledger"]) == ("replaced", 12, row.ledger)
        rows = spark.read.format("buckram").option("metadata", any_cluster.uri).load(stream)
        assert sorted(r["offset"] for r in rows.select("offset").collect()) == list(range(240))
        assert compact(spark, any_cluster.uri, streams=[stream]).made == 0


def test_small_targets_give_several(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client:
        before = micro_batches(client, stream, 12)
        found = compact(spark, cluster.uri, streams=[stream], target_bytes=4096)
        assert found.made > 1
        assert list(client.namespace("default").read(stream.partition("/")[2])) == before


# -- orphans ----------------------------------------------------------------------------------------------


def test_the_job_finds_the_orphans_that_the_command_finds(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client, tmp_path: Path
) -> None:
    micro_batches(client, "default/s", 3)
    step = client.namespace("default").bulk("s", application="left", version=1)
    pending = step.create_ledger().ledger_id
    micro_batches(client, "default/gone", 2)
    inner = client._client
    streams = StreamStore(inner.services.store)

    async def remove_head() -> None:
        """Delete only the head, as a deletion that missed everything else would."""
        key = streams.layout.head(StreamName("default", "gone"))
        await streams.keys.delete(key, (await streams.keys.get(key)).version)

    client._thread.run(remove_head)
    expected = client._thread.run(lambda: find_orphans(inner, streams, in_progress=True))
    found = orphans(spark, own.uri)
    assert [(o.ledger, o.reason, o.safe) for o in found.orphans] == [(o.ledger, o.reason, o.safe) for o in expected]
    assert {o.reason for o in found.orphans} == {"in progress", "stream deleted"}
    done = orphans(spark, own.uri, delete=True, deletes_per_s=50, report=str(tmp_path))
    assert len(done.deleted) == 2
    assert spark.read.parquet(str(tmp_path)).where("deleted").count() == 2
    assert [o.ledger for o in orphans(spark, own.uri).orphans] == [pending]


# -- the commands -----------------------------------------------------------------------------------------


def run_cli(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, *arguments: str) -> tuple[int, list[str]]:
    """Make the commands use the session of the tests."""
    monkeypatch.setattr(cli, "_session", lambda *_: nullcontext(spark))
    result = CliRunner().invoke(cli.job, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout.splitlines()


@pytest.mark.share(4)
def test_the_job_commands(
    spark: SparkSession, own: ThreadedCluster, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batches(client, "default/s", 4)
    uri = ("--metadata", own.uri)
    code, lines = run_cli(monkeypatch, spark, "compact", "--stream", "s", "--target", "1MiB", *uri)
    assert (code, lines[0].split()[:3]) == (0, ["STREAM", "SEGMENTS", "BECAME"])
    code, lines = run_cli(monkeypatch, spark, "compact", "--json", *uri)
    assert (code, json.loads(lines[-1])["made"]) == (0, 0)
    code, lines = run_cli(monkeypatch, spark, "scrub", "--rate", "100MB", *uri)
    assert (code, lines[-1]) == (0, "all of them are good")
    own.kill(0)
    code, lines = run_cli(monkeypatch, spark, "scrub", "--json", *uri)
    said = json.loads(lines[-1])
    assert (code, said["healthy"], {one["bookie"] for one in said["unknown"]}) == (1, False, {own.bookies[0]})
    own.restart(0)
    code, lines = run_cli(monkeypatch, spark, "orphans", "--json", *uri)
    assert code == 0
    assert {one["reason"] for one in json.loads(lines[-1])["orphans"]} == {"in progress"}  # Compaction retired them.
    inner = client._client
    client._thread.run(lambda: Janitor(inner, JanitorSettings(grace_s=0, retired_s=0)).clean())
    code, lines = run_cli(monkeypatch, spark, "orphans", "--delete", "--yes", *uri)
    assert (code, lines[-1].split(", ")[1:]) == (0, ["0 orphans", "0 deleted"])
    assert run_cli(monkeypatch, spark, "file")[1] == [str(Path(cli.__file__).resolve())]
