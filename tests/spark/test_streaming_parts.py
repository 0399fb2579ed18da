"""The source of streaming queries without Spark: offsets from batch to batch, limits, and lost records."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tests.spark.reading import STREAM_NAMES, live_reader, numbered, readable, rows, schema, write

from buckram import sync
from buckram.errors import InvalidArgument, NamespaceExists, NoSuchStream, NotReadable, RecordsLost
from buckram.spark.shared.clients import close_connections
from buckram.spark.shared.columns import STREAM_COLUMNS, Shape
from buckram.spark.shared.rollback_detection import without_notes
from buckram.spark.source.micro_batches import LiveReader, positions
from buckram.spark.source.planning import StreamOptions
from buckram.spark.source.query_cursor import cursor_move
from buckram.testing import ThreadedCluster

EARLIEST = {"startingOffsets": "earliest"}


class Run:
    """One run of a query, which drives the source as Spark's engine does; `start` is the checkpoint's offset."""

    def __init__(self, uri: str, start: dict[str, Any] | None = None, **options: object) -> None:
        self.reader = live_reader(uri, **options)
        self.limit = self.reader.getDefaultReadLimit()
        self.start = _json(self.reader.initialOffset() if start is None else start)

    def batch(self) -> list[dict[str, Any]] | None:
        """Return the rows of the next batch, or None if there is none."""
        end = _json(self.reader.latestOffset(self.start, self.limit))
        if json.dumps(end) == json.dumps(self.start):
            return None
        found = rows(self.reader, self.reader.partitions(self.start, end))
        self.before, self.start = self.start, end
        return found

    def offsets(self) -> list[list[int]]:
        """Return the rows of all batches until there is no more."""
        found = []
        while (batch := self.batch()) is not None:
            found.append([row["offset"] for row in batch])
        return found


def _json(offset: dict[str, Any]) -> dict[str, Any]:
    """Pass an offset through JSON, as a checkpoint does."""
    found = json.loads(json.dumps(offset))
    assert isinstance(found, dict)
    return found


def test_offsets_are_json_with_the_uid_of_each_stream(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(5))
    run = Run(cluster.uri, subscribe=stream, **EARLIEST)
    with sync.connect(cluster.uri) as client:
        uid = client.namespace().info(stream).uid
    assert without_notes(run.start) == {stream: 0, "uids": {stream: uid}, "initial": True}
    assert run.offsets() == [list(range(5))]
    assert without_notes(run.start["began"]) == {stream: 0, "uids": {stream: uid}}
    assert without_notes({**run.start, "began": 0}) == {stream: 5, "uids": {stream: uid}, "began": 0}
    assert list(run.start["times"]) == [stream]
    assert run.reader.reportLatestOffset() == {stream: 5, "lag": {}}


def test_a_query_begins_at_the_end_by_default(any_cluster: ThreadedCluster, stream: str) -> None:
    write(any_cluster.uri, stream, numbered(5))
    run = Run(any_cluster.uri, subscribe=stream)
    assert run.batch() is None
    write(any_cluster.uri, stream, numbered(3))
    assert run.offsets() == [[5, 6, 7]]
    middle = Run(any_cluster.uri, subscribe=stream, startingOffsets=json.dumps({stream: 6}))
    assert middle.offsets() == [[6, 7]]
    late = Run(any_cluster.uri, subscribe=stream, startingTimestamp=2**41)
    assert late.offsets() == []


def test_a_repeated_first_batch_has_the_same_start(cluster: ThreadedCluster, stream: str) -> None:
    """Spark records only where batches end, and asks again where the query begins, when `latest` is further.

    Without the start in the first batch's end, the records of an interrupted first batch would never be read.
    """
    write(cluster.uri, stream, numbered(10))
    first = Run(cluster.uri, subscribe=stream)
    assert first.batch() is None
    write(cluster.uri, stream, numbered(5, 10))
    # Spark asks twice in one run.
    assert first.reader.initialOffset() == first.start
    end = _json(first.reader.latestOffset(first.start, first.limit))
    write(cluster.uri, stream, numbered(5, 15))
    for reader in (first.reader, live_reader(cluster.uri, subscribe=stream)):
        found = rows(reader, reader.partitions(_json(reader.initialOffset()), end))
        assert [row["offset"] for row in found] == list(range(10, 15))
    again = Run(cluster.uri, end, subscribe=stream)
    assert again.offsets() == [list(range(15, 20))]
    assert "began" not in again.start
    # An offset that contains the start of its batch is a normal start of the next one.
    assert rows(again.reader, again.reader.partitions(end, again.start)) == rows(
        again.reader, again.reader.partitions({k: v for k, v in end.items() if k != "began"}, again.start)
    )


def test_a_restarted_query_continues_at_its_offset(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(5))
    first = Run(cluster.uri, subscribe=stream, **EARLIEST)
    first.offsets()
    write(cluster.uri, stream, numbered(4))
    again = Run(cluster.uri, first.start, subscribe=stream, startingOffsets="earliest")
    assert again.offsets() == [[5, 6, 7, 8]]


def test_a_replayed_batch_has_the_same_rows(any_cluster: ThreadedCluster, stream: str) -> None:
    """This holds whatever was appended meanwhile, and however the batch is cut into partitions."""
    write(any_cluster.uri, stream, numbered(40), numbered(40))
    run = Run(any_cluster.uri, subscribe=stream, maxOffsetsPerTrigger=50, **EARLIEST)
    first = run.batch()
    write(any_cluster.uri, stream, numbered(40))
    other = live_reader(any_cluster.uri, subscribe=stream, minPartitions=7)
    assert rows(other, other.partitions(run.before, run.start)) == first
    assert rows(run.reader, run.reader.partitions(run.before, run.start)) == first


def test_a_batch_that_cannot_be_read_to_its_end_fails(cluster: ThreadedCluster, stream: str) -> None:
    """Records up to the checkpoint's offset were readable once, so they are not skipped if they are not now."""
    write(cluster.uri, stream, numbered(40))
    run = Run(cluster.uri, subscribe=stream, failOnDataLoss="false", **EARLIEST)
    with pytest.raises(NotReadable, match="up to offset 50 are wanted, as the checkpoint says, and those from 40 on"):
        run.reader.partitions(run.start, {**run.start, stream: 50})


def test_a_waiting_query_survives_unreachable_bookies(stream: str) -> None:
    """It remembers what was readable, and reads more when the bookies are back."""
    with ThreadedCluster(bookies=3) as cluster:
        with sync.connect(cluster.uri) as client, client.namespace().writer(stream) as writer:
            writer.append_many(numbered(10))
            readable(cluster.uri, stream, 10)
            run = Run(cluster.uri, subscribe=stream, **EARLIEST)
            assert len(run.batch() or []) == 10
            for number in range(3):
                cluster.kill(number)
            assert run.batch() is None
            for number in range(3):
                cluster.restart(number)
        write(cluster.uri, stream, numbered(5, 10))
        assert [row["offset"] for row in run.batch() or []] == list(range(10, 15))
        close_connections()


def test_batches_are_limited_by_records(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(25), numbered(25))
    run = Run(cluster.uri, subscribe=stream, maxOffsetsPerTrigger=20, **EARLIEST)
    assert isinstance(run.limit, ReadMaxRows)
    assert run.limit.max_rows == 20
    assert run.offsets() == [list(range(20)), list(range(20, 40)), list(range(40, 50))]
    whole = Run(cluster.uri, subscribe=stream, maxOffsetsPerTrigger=20, **EARLIEST)
    whole.limit = ReadAllAvailable()  # Trigger.Once passes this limit.
    assert whole.offsets() == [list(range(50))]


def test_small_streams_share_limits_and_tasks(cluster: ThreadedCluster, stream: str) -> None:
    """A limit of 10 over 60 streams holds, and does not make 60 tasks."""
    names = [f"{stream}-{n:02}" for n in range(60)]
    for name in names:
        write(cluster.uri, name, numbered(3))
    run = Run(cluster.uri, subscribe=",".join(names), maxOffsetsPerTrigger=10, **EARLIEST)
    batches = [run.batch() or [] for _ in range(18)]
    assert [len(batch) for batch in batches] == [10] * 18
    assert len({row["stream"] for batch in batches[:6] for row in batch}) == 60
    assert run.batch() is None
    whole = Run(cluster.uri, subscribe=",".join(names), **EARLIEST)
    assert len(whole.batch() or []) == 180
    assert len(whole.reader.partitions({**whole.before}, whole.start)) <= 8


def test_batches_are_limited_by_bytes(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, [b"x" * 1000] * 40, [b"x" * 1000] * 40)
    run = Run(cluster.uri, subscribe=stream, maxBytesPerTrigger="20k", **EARLIEST)
    assert isinstance(run.limit, ReadMaxBytes)
    batches = run.offsets()
    assert [offset for batch in batches for offset in batch] == list(range(80))
    assert all(15 <= len(batch) <= 21 for batch in batches[:-1])
    tiny = Run(cluster.uri, subscribe=stream, maxBytesPerTrigger="1", **EARLIEST)
    assert [len(tiny.batch() or []) for _ in range(3)] == [1, 1, 1]
    both = Run(cluster.uri, subscribe=stream, maxBytesPerTrigger="20k", maxOffsetsPerTrigger=7, **EARLIEST)
    assert len(both.batch() or []) == 7


def test_a_limit_is_shared_by_streams_so_that_none_starves(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(300))
    write(cluster.uri, f"{stream}-b", numbered(100))
    run = Run(cluster.uri, subscribe=f"{stream},{stream}-b", maxOffsetsPerTrigger=40, **EARLIEST)
    first = run.batch() or []
    assert [row["stream"] for row in first].count(stream) == 30
    assert [row["stream"] for row in first].count(f"{stream}-b") == 10
    rest = run.offsets()
    assert sum(map(len, rest)) == 360


def test_an_open_segment_is_followed(any_cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(any_cluster.uri) as client:
        ns = client.namespace()
        with ns.writer(stream) as writer:
            run = Run(any_cluster.uri, subscribe=stream, **EARLIEST)
            expected = 0
            follower = iter(ns.read(stream, follow=True))
            for n in range(6):
                writer.append_many(numbered(10, expected))
                if n == 3:
                    writer.roll()
                expected += 10
                while next(follower).offset < expected - 1:
                    pass
                assert [row["value"] for row in run.batch() or []] == numbered(10, expected - 10)
            assert run.batch() is None


def test_available_now_stops_at_the_end_of_when_it_began(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(25))
    run = Run(cluster.uri, subscribe=stream, maxOffsetsPerTrigger=10, **EARLIEST)
    run.reader.prepareForTriggerAvailableNow()
    write(cluster.uri, stream, numbered(25))
    write(cluster.uri, f"{stream}-new", numbered(25))
    assert [len(batch) for batch in run.offsets()] == [10, 10, 5]


def test_a_new_stream_of_a_pattern_is_read_from_its_start(any_cluster: ThreadedCluster, stream: str) -> None:
    bare = stream.removeprefix("default/")
    write(any_cluster.uri, f"{stream}-1", numbered(3))
    run = Run(any_cluster.uri, subscribePattern=f"{bare}-.*")
    assert run.batch() is None
    write(any_cluster.uri, f"{stream}-2", numbered(4))
    # The stream first enters the offset, so that its start is in the checkpoint before it is read.
    assert run.batch() == []
    assert positions(run.start) == {f"{stream}-1": 3, f"{stream}-2": 0}
    assert run.offsets() == [[0, 1, 2, 3]]


def test_truncated_records_stop_the_query_or_are_skipped(any_cluster: ThreadedCluster, stream: str) -> None:
    write(any_cluster.uri, stream, numbered(20), numbered(20))
    strict = Run(any_cluster.uri, subscribe=stream, maxOffsetsPerTrigger=10, **EARLIEST)
    lax = Run(any_cluster.uri, subscribe=stream, maxOffsetsPerTrigger=10, failOnDataLoss="false", **EARLIEST)
    strict.batch()
    lax.batch()
    with sync.connect(any_cluster.uri) as client:
        client.namespace().truncate(stream, before=25)
    with pytest.raises(RecordsLost, match=r"offset 10 is wanted and was truncated, the earliest is now 25.*failOn"):
        strict.batch()
    assert [offset for batch in lax.offsets() for offset in batch] == list(range(25, 40))


def test_a_recreated_stream_is_not_taken_for_the_old_one(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(20))
    strict = Run(cluster.uri, subscribe=stream, **EARLIEST)
    lax = Run(cluster.uri, subscribe=stream, failOnDataLoss="false", **EARLIEST)
    strict.offsets()
    lax.offsets()
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream)
        with pytest.raises(RecordsLost, match="the stream was deleted"):
            strict.batch()
        assert lax.batch() == []
    write(cluster.uri, stream, numbered(30))
    with pytest.raises(RecordsLost, match="deleted and made anew"):
        strict.batch()
    assert [offset for batch in lax.offsets() for offset in batch] == list(range(30))


class OldRun(Run):
    """A run on PySpark 4.0 or 4.1, which do not pass the start when they ask for the end."""

    def __init__(self, uri: str, **options: object) -> None:
        given = {"metadata": uri, **{key: str(value) for key, value in options.items()}}
        parsed = StreamOptions.parse(given, "stream")
        self.reader = LiveReader(parsed, Shape.of(schema(*STREAM_NAMES), STREAM_COLUMNS))
        self.start = _json(self.reader.initialOffset())

    def batch(self) -> list[dict[str, Any]] | None:
        end = _json(self.reader.latestOffset())
        if json.dumps(end) == json.dumps(self.start):
            return None
        found = rows(self.reader, self.reader.partitions(self.start, end))
        self.before, self.start = self.start, end
        return found


def test_an_old_pyspark_notices_a_deleted_or_recreated_source(cluster: ThreadedCluster, stream: str) -> None:
    """Otherwise a deleted source would go unnoticed, and the first records of a recreated one would be lost."""
    write(cluster.uri, stream, numbered(20))
    write(cluster.uri, f"{stream}-other", numbered(1))
    both = {"subscribePattern": f"{stream}.*", **EARLIEST}
    strict, late = OldRun(cluster.uri, **both), OldRun(cluster.uri, **both)
    lax = OldRun(cluster.uri, failOnDataLoss="false", **both)
    for run in (strict, late, lax):
        assert sum(map(len, run.offsets())) == 21
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream)
    with pytest.raises(RecordsLost, match="the stream was deleted"):
        strict.batch()
    write(cluster.uri, stream, numbered(30))
    with pytest.raises(RecordsLost, match="deleted and made anew"):
        late.batch()
    assert [offset for batch in lax.offsets() for offset in batch] == list(range(30))


def test_a_missing_stream_is_an_error_before_the_first_batch(cluster: ThreadedCluster, stream: str) -> None:
    with pytest.raises(NoSuchStream, match="does not exist"):
        Run(cluster.uri, subscribe=stream)
    assert Run(cluster.uri, subscribePattern=f"{stream}-.*").offsets() == []


def test_the_cursor_moves_with_the_batches(any_cluster: ThreadedCluster, stream: str) -> None:
    write(any_cluster.uri, stream, numbered(30))
    with sync.connect(any_cluster.uri) as client:
        ns = client.namespace()
        run = Run(any_cluster.uri, subscribe=stream, maxOffsetsPerTrigger=10, cursor="billing", **EARLIEST)
        assert not ns.cursors(stream)
        places = []
        for _ in range(3):
            run.batch()
            places.append(ns.cursors(stream)[0].offset)
            run.reader.commit(run.before)
        # The cursor is placed at the query's start at once; Spark commits a batch when it plans the next one.
        assert places == [0, 0, 10]
        assert [(c.name, c.offset, c.lag) for c in ns.cursors(stream)] == [("billing", 20, 10)]
        # A repeated batch or an older run does not move it back.
        run.reader.commit({stream: 5, "uids": {}})
        assert ns.cursors(stream)[0].offset == 20


def test_the_end_offset_names_the_cursor_for_the_listener(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(3))
    run = Run(cluster.uri, subscribe=stream, cursor="billing", **EARLIEST)
    run.offsets()
    assert cursor_move(json.dumps(run.start)) == (cluster.uri, "billing", {stream: 3})
    for foreign in (None, "", "17", '{"orders": {"0": 5}}', "not json", json.dumps({stream: 3, "uids": {}})):
        assert cursor_move(foreign) is None


def test_a_checkpoint_gets_no_stream_of_another_namespace_read(cluster: ThreadedCluster, stream: str) -> None:
    """Whoever may write where a checkpoint lies would read, and hold with a cursor, whatever the query may."""
    secret = f"hidden/{stream.partition('/')[2]}"
    with sync.connect(cluster.uri) as client:
        with suppress(NamespaceExists):
            client.namespaces.create("hidden")
        with client.namespace("hidden").writer(secret.partition("/")[2]) as writer:
            writer.append_many([b"secret"] * 3)
        uid = client.namespace("hidden").info(secret.partition("/")[2]).uid
    write(cluster.uri, stream, numbered(5))
    for options in ({"subscribe": stream}, {"subscribePattern": f"{stream}.*"}):
        run = Run(cluster.uri, cursor="billing", **options, **EARLIEST)
        end = _json(run.reader.latestOffset(run.start, run.limit))
        forged = {**end, secret: 3, "uids": {**end["uids"], secret: uid}}
        begun = {**run.start, secret: 0, "uids": {**run.start["uids"], secret: uid}}
        for start in (run.start, begun):
            with pytest.raises(InvalidArgument, match=f"the checkpoint names {secret}"):
                run.reader.partitions(start, forged)
        with pytest.raises(InvalidArgument, match="the checkpoint names"):
            run.reader.commit(forged)
        with pytest.raises(InvalidArgument, match="the checkpoint names"):
            Run(cluster.uri, begun, cursor="billing", **options).batch()
        assert len(rows(run.reader, run.reader.partitions(run.start, end))) == 5
    with sync.connect(cluster.uri) as client:
        assert not client.namespace("hidden").cursors(secret.partition("/")[2])
    # What a query was to read before its options changed is of the same namespace.
    live_reader(cluster.uri, subscribe=stream).options.check_reads([stream, f"{stream}-gone"])
    live_reader(cluster.uri, subscribePattern="(a/x|b/.*)").options.check_reads(["b/y", "a/x"])
    with pytest.raises(InvalidArgument):
        live_reader(cluster.uri, subscribePattern="(a/x|b/.*)").options.check_reads(["c/y"])


def test_a_credential_goes_only_to_a_cluster_that_a_query_vouches_for(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener finds the cluster in the end of a batch, and a repeated batch has its end from the checkpoint."""
    write(cluster.uri, stream, numbered(3))
    monkeypatch.delenv("BUCKRAM_METADATA", raising=False)
    plain = Run(cluster.uri, subscribe=stream, cursor="billing", **EARLIEST)
    plain.offsets()
    assert "vouched" not in plain.start
    monkeypatch.setenv("BUCKRAM_TOKEN", "e30.e30.c2VjcmV0")
    run = Run(cluster.uri, subscribe=stream, cursor="billing", **EARLIEST)
    run.offsets()
    assert "c2VjcmV0" not in json.dumps(run.start)
    assert cursor_move(json.dumps(run.start)) == (cluster.uri, "billing", {stream: 3})
    evil = {"cluster": "buckram://198.51.100.7:3181/"}
    for changed in (
        evil,
        {"cursor": "others"},
        {"hidden/orders": 9},
        {"vouched": ""},
        {"vouched": 7},
        {"vouched": "\u00e4"},
    ):
        assert cursor_move(json.dumps({**run.start, **changed})) is None, changed
    assert cursor_move(json.dumps({**plain.start, **evil})) is None
    monkeypatch.setenv("BUCKRAM_METADATA", cluster.uri)
    assert cursor_move(json.dumps(plain.start)) is not None, "this process names the cluster itself"
    assert cursor_move(json.dumps({**plain.start, **evil})) is None
    monkeypatch.setenv("BUCKRAM_TOKEN", "e30.e30.b3RoZXI")
    monkeypatch.delenv("BUCKRAM_METADATA")
    assert cursor_move(json.dumps(run.start)) is None, "another program's query"
    # An offset that differs by its proof alone is no new batch.
    again = Run(cluster.uri, run.start, subscribe=stream, cursor="billing")
    assert again.batch() is None


def test_batch_options_are_refused(cluster: ThreadedCluster, stream: str) -> None:
    with pytest.raises(InvalidArgument, match='"endingOffsets" is for batch reads only'):
        live_reader(cluster.uri, subscribe=stream, endingOffsets="latest").initialOffset()
    with pytest.raises(InvalidArgument, match='"ledgers" is for batch reads only'):
        live_reader(cluster.uri, ledgers="all").latestOffset()


def test_a_batch_waits_for_enough_records_and_not_for_ever(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(3))
    run = Run(cluster.uri, subscribe=stream, minOffsetsPerTrigger=10, maxTriggerDelay="1h", **EARLIEST)
    patient = Run(cluster.uri, subscribe=stream, minOffsetsPerTrigger=10, maxTriggerDelay="0ms", **EARLIEST)
    assert [len(one.batch() or ()) for one in (run, patient)] == [3, 3]  # the first one never waits
    write(cluster.uri, stream, numbered(9))
    assert run.batch() is None
    assert len(patient.batch() or ()) == 9
    write(cluster.uri, stream, numbered(1))
    assert len(run.batch() or ()) == 10
    write(cluster.uri, stream, numbered(2))
    assert run.batch() is None
    run.reader.prepareForTriggerAvailableNow()
    assert len(run.batch() or ()) == 2
    with pytest.raises(InvalidArgument, match=r"500ms, 30s, 15m or 2h"):
        live_reader(cluster.uri, subscribe=stream, maxTriggerDelay="soon").initialOffset()


def test_no_partition_has_more_records_than_allowed(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(100))
    run = Run(cluster.uri, subscribe=stream, maxRecordsPerPartition=7, **EARLIEST)
    end = run.reader.latestOffset(run.start, run.limit)
    parts = run.reader.partitions(run.start, end)
    sizes = [sum(piece.stop - piece.first for piece in part.slices) for part in parts]  # type: ignore[attr-defined]
    assert max(sizes) <= 7
    assert sum(sizes) == 100
    assert [row["offset"] for row in rows(run.reader, parts)] == list(range(100))
