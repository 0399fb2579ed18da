"""Batch reads of streams without Spark: the planned partitions, and the rows that an executor reads."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import InputPartition
from tests.spark import reading
from tests.spark.reading import batch_reader, numbered, offsets, record_batches, rows, write

from buckram import sync
from buckram.errors import InvalidArgument, NoSuchStream, OffsetOutOfRange, ReadFailed, RecordsLost
from buckram.spark.shared import clients
from buckram.spark.shared.stream_partition import StreamPartition
from buckram.spark.source import partition_reader as stream_read
from buckram.spark.source.stream_planner import Planner, Wanted
from buckram.testing import ThreadedCluster
from buckram.types import BookieAddress, BookieInfo


def test_every_record_is_read_once_with_all_columns(cluster: ThreadedCluster, stream: str) -> None:
    values = [None if n % 7 == 0 else b"v%d" % n * (n % 5) for n in range(200)]
    keys = [b"k%d" % n if n % 3 else None for n in range(200)]
    times = [1_700_000_000_000_000 + n for n in range(200)]
    headers = [{"n": b"%d" % n} if n % 2 else None for n in range(200)]
    write(cluster.uri, stream, values, keys=keys, timestamps=times, headers=headers)  # type: ignore[arg-type]
    reader = batch_reader(cluster.uri, *reading.STREAM_NAMES, "headers", subscribe=stream, includeHeaders=True)
    found = rows(reader)
    assert [row["value"] for row in found] == values
    assert [row["key"] for row in found] == keys
    assert [row["offset"] for row in found] == list(range(200))
    assert {row["stream"] for row in found} == {stream}
    assert [row["timestamp"] for row in found] == [datetime.fromtimestamp(t / 1e6, UTC) for t in times]
    assert all(row["append_time"].tzinfo is not None for row in found)
    assert [row["headers"] for row in found] == [
        [{"key": "n", "value": b"%d" % n}] if n % 2 else [] for n in range(200)
    ]


def test_large_segments_are_cut_and_small_ones_joined(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, *(numbered(50, 50 * n) for n in range(6)))
    whole = batch_reader(cluster.uri, subscribe=stream)
    (only,) = whole.partitions()
    assert len(only.slices) == 6
    for least in (2, 3, 6, 17, 300):
        reader = batch_reader(cluster.uri, subscribe=stream, minPartitions=least)
        parts = reader.partitions()
        assert len(parts) >= least
        assert [row["value"] for row in rows(reader, parts)] == numbered(300)
    small = batch_reader(cluster.uri, subscribe=stream, maxPartitionBytes=500)
    assert len(small.partitions()) > 6
    assert [row["offset"] for row in rows(small)] == list(range(300))


def test_an_open_segment_is_read_up_to_its_end_at_planning(any_cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(any_cluster.uri) as client:
        ns = client.namespace()
        with ns.writer(stream) as writer:
            writer.append_many(numbered(100))
            writer.roll()
            for n in range(100, 150, 10):
                writer.append_many(numbered(10, n))
            reading.readable(any_cluster.uri, stream, 150)
            reader = batch_reader(any_cluster.uri, subscribe=stream, minPartitions=4)
            parts = reader.partitions()
            writer.append(b"too late")
            assert [row["value"] for row in rows(reader, parts)] == numbered(150)
            writer.append(b"and not fenced")


def test_offsets_bound_a_read(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(30), numbered(30))
    read = {"subscribe": stream}
    some = '{"%s": %d}'
    assert offsets(cluster.uri, **read, startingOffsets=some % (stream, 17)) == list(range(17, 60))
    assert offsets(cluster.uri, **read, endingOffsets=some % (stream, 33)) == list(range(33))
    both = {"startingOffsets": some % (stream, 29), "endingOffsets": some % (stream, 31)}
    assert offsets(cluster.uri, **read, **both) == [29, 30]
    assert offsets(cluster.uri, **read, startingOffsets="latest") == []
    assert offsets(cluster.uri, **read, endingOffsets="earliest") == []
    with pytest.raises(OffsetOutOfRange, match="offset 61 is out of range"):
        offsets(cluster.uri, **read, startingOffsets=some % (stream, 61))
    with pytest.raises(OffsetOutOfRange, match="offset 99"):
        offsets(cluster.uri, **read, endingOffsets=some % (stream, 99))
    swapped = {"startingOffsets": some % (stream, 31), "endingOffsets": some % (stream, 29)}
    with pytest.raises(InvalidArgument, match="which is before"):
        offsets(cluster.uri, **read, **swapped)


def test_append_times_bound_a_read(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(8), numbered(8))
    times = [row["append_time"] for row in rows(batch_reader(cluster.uri, subscribe=stream))]
    assert times == sorted(times)
    middle = -(-int(times[8].timestamp() * 1000) // 1)
    first = next((n for n, time in enumerate(times) if time.timestamp() * 1000 >= middle), 16)
    assert offsets(cluster.uri, subscribe=stream, startingTimestamp=middle) == list(range(first, 16))
    assert offsets(cluster.uri, subscribe=stream, endingTimestamp=middle) == list(range(first))
    assert offsets(cluster.uri, subscribe=stream, startingTimestamp=2**41) == []
    assert offsets(cluster.uri, subscribe=stream, startingTimestamp=0) == list(range(16))
    write(cluster.uri, f"{stream}-b", numbered(5))
    both = {"subscribe": f"{stream},{stream}-b", "startingOffsets": json.dumps({f"{stream}-b": 3})}
    found = rows(batch_reader(cluster.uri, **both, startingTimestamp=json.dumps({stream: middle})))
    assert [(row["stream"], row["offset"]) for row in found] == [
        *[(stream, n) for n in range(first, 16)], (f"{stream}-b", 3), (f"{stream}-b", 4),
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match='"startingTimestamp" names default/z, which is not among'):
        batch_reader(cluster.uri, subscribePattern=f"{stream}.*", startingTimestamp='{"z": 1}').partitions()


def test_several_streams_and_patterns(cluster: ThreadedCluster, stream: str) -> None:
    for n in range(3):
        write(cluster.uri, f"{stream}-{n}", numbered(n + 1))
    bare = stream.removeprefix("default/")
    found = rows(batch_reader(cluster.uri, subscribe=f"{stream}-2,{bare}-0"))
    assert [(row["stream"], row["offset"]) for row in found] == [
        (f"{stream}-2", 0), (f"{stream}-2", 1), (f"{stream}-2", 2), (f"{stream}-0", 0),
    ]  # fmt: skip
    for pattern in (f"{bare}-[12]", f"default/{bare}-[12]", f"def.*/{bare}-[12]"):
        found = rows(batch_reader(cluster.uri, subscribePattern=pattern))
        assert {row["stream"] for row in found} == {f"{stream}-1", f"{stream}-2"}
    assert rows(batch_reader(cluster.uri, subscribePattern=f"{bare}-[12]x")) == []
    # A pattern has to match the whole name.
    assert rows(batch_reader(cluster.uri, subscribePattern=f"{bare}-")) == []


def test_a_missing_stream_is_one_plain_error_at_planning(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, f"{stream}-there", numbered(1))
    reader = batch_reader(cluster.uri, subscribe=f"{stream}-there,{stream}")
    with pytest.raises(NoSuchStream, match=f"{stream}: does not exist.*stream create") as missing:
        reader.partitions()
    assert reading.raises_plainly(missing.value)


def test_a_narrow_schema_builds_only_its_columns(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(10))
    (batch,) = record_batches(reader := batch_reader(cluster.uri, "value", subscribe=stream), reader.partitions())
    assert batch.schema.names == ["value"]
    assert batch.column(0).to_pylist() == numbered(10)


def test_a_null_in_a_not_null_column_is_refused(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, [b"a", None])  # type: ignore[list-item]
    source = reading.BuckramDataSource({"metadata": cluster.uri, "subscribe": stream})
    reader = source.reader(reading.schema("value", nullable=False))
    with pytest.raises(InvalidArgument, match='"value" was asked for as not null and has a null'):
        rows(reader)


def test_small_entries_are_joined_in_one_record_batch(cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream, linger_ms=0) as writer:
        for n in range(40):
            writer.append(b"%d" % n)
    reader = batch_reader(cluster.uri, subscribe=stream)
    batches = record_batches(reader, reader.partitions())
    assert [len(batch) for batch in batches] == [40]
    batches[0].validate(full=True)
    assert batches[0].column("value").to_pylist() == numbered(40)


def test_large_entries_are_not_joined(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, [os.urandom(1000)] * 12_000)
    reader = batch_reader(cluster.uri, "offset", "value", subscribe=stream)
    batches = record_batches(reader, reader.partitions())
    assert sum(map(len, batches)) == 12_000
    assert max(batch.nbytes for batch in batches) < 9_000_000
    assert len(batches) < 12


def test_a_truncated_start_is_an_error_that_says_what_to_do(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(20), numbered(20))
    with sync.connect(cluster.uri) as client:
        client.namespace().truncate(stream, before=25)
    assert offsets(cluster.uri, subscribe=stream) == list(range(25, 40))
    wanted = {"subscribe": stream, "startingOffsets": json.dumps({stream: 3})}
    with pytest.raises(RecordsLost, match=r"offset 3 is wanted.*earliest is now 25.*failOnDataLoss.*cursor"):
        offsets(cluster.uri, **wanted)
    assert offsets(cluster.uri, **wanted, failOnDataLoss="false") == list(range(25, 40))


def without_ledgers(parts: list[StreamPartition], below: int) -> list[StreamPartition]:
    """Return the partitions as if the ledgers of the records below that offset were deleted on all bookies."""
    for part in parts:
        known = part.ledgers
        part.slices = [replace(s, ledger=s.ledger + 10**9) if s.first < below else s for s in part.slices]
        part.ledgers = {s.ledger: known[s.ledger % 10**9] for s in part.slices}
    return parts


def test_ledgers_replaced_after_planning_are_read_through_the_list(any_cluster: ThreadedCluster, stream: str) -> None:
    """After compaction the records are read from their new ledger."""
    write(any_cluster.uri, stream, numbered(20), numbered(20), numbered(20))
    reader = batch_reader(any_cluster.uri, subscribe=stream, minPartitions=3)
    parts = without_ledgers(reader.partitions(), 30)
    assert [row["offset"] for row in rows(reader, parts)] == list(range(60))


def test_records_truncated_after_planning_fail_the_task_or_are_skipped(
    any_cluster: ThreadedCluster, stream: str
) -> None:
    """The task fails, or continues at the earliest record."""
    write(any_cluster.uri, stream, numbered(20), numbered(20), numbered(20))
    strict = batch_reader(any_cluster.uri, "offset", subscribe=stream, minPartitions=3)
    lax = batch_reader(any_cluster.uri, "offset", subscribe=stream, minPartitions=3, failOnDataLoss="false")
    parts, others = without_ledgers(strict.partitions(), 30), without_ledgers(lax.partitions(), 30)
    with sync.connect(any_cluster.uri) as client:
        client.namespace().truncate(stream, before=25)
    with pytest.raises(RecordsLost, match=r"offset 0 is wanted and was truncated, the earliest is now 25"):
        rows(strict, parts)
    assert [row["offset"] for row in rows(lax, others)] == list(range(25, 60))
    with sync.connect(any_cluster.uri) as client:
        client.namespace().delete(stream)
    with pytest.raises(RecordsLost, match="offset 0 is wanted and is no longer there"):
        rows(strict, parts[:1])


def test_tasks_do_not_read_another_stream_of_the_same_name(cluster: ThreadedCluster, stream: str) -> None:
    """The stream was deleted and created again while tasks waited, so its offsets mean other records."""
    write(cluster.uri, stream, numbered(20), numbered(20))
    strict = batch_reader(cluster.uri, "value", subscribe=stream)
    lax = batch_reader(cluster.uri, "value", subscribe=stream, failOnDataLoss="false")
    parts, others = without_ledgers(strict.partitions(), 20), without_ledgers(lax.partitions(), 20)
    late = without_ledgers(batch_reader(cluster.uri, subscribe=stream).partitions(), 40)
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream)
    write(cluster.uri, stream, [b"of another stream"] * 25)
    with pytest.raises(RecordsLost, match="offset 0 is wanted and is no longer there"):
        rows(strict, parts)
    # The ledger of one segment exists until the bookies have followed its recorded deletion.
    assert [row["value"] for row in rows(lax, others)] in (numbered(20), [])
    late[0].slices = late[0].slices[1:]
    with pytest.raises(RecordsLost, match="offset 20 is wanted and is no longer there"):
        rows(strict, late)


def test_planning_refuses_another_stream_of_the_same_name(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(20))
    options = batch_reader(cluster.uri, subscribe=stream).options
    with sync.connect(cluster.uri) as client:
        planner = Planner(client._client)
        (state,) = client._thread.run(lambda: planner.read_states([stream])).values()
        client.namespace().delete(stream)
        write(cluster.uri, stream, [b"of another stream"] * 25)
        with pytest.raises(RecordsLost, match="deleted and made anew"):
            client._thread.run(lambda: planner.partitions([Wanted(state, 0, 20)], options))


def test_executors_need_no_metadata_store(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(100), numbered(100))
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream) as writer:
        writer.append_many(numbered(5))
        reading.readable(cluster.uri, stream, 205)
        reader = batch_reader(cluster.uri, "value", subscribe=stream, minPartitions=3)
        parts = reader.partitions()
        reader._uri = "sqlite:///nowhere/there"
        assert [row["value"] for row in rows(reader, parts)] == numbered(100) * 2 + numbered(5)
    assert not any(asked_the_store(parts[0].cluster, "sqlite:///nowhere/there"))


def test_the_error_names_the_address_of_an_unreachable_bookie(stream: str) -> None:
    with ThreadedCluster(bookies=3) as cluster:
        write(cluster.uri, stream, numbered(10))
        reader = batch_reader(cluster.uri, subscribe=stream)
        parts = reader.partitions()
        address = str(parts[0].bookies[0].address)
        for number in range(3):
            cluster.kill(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_read, "_PAUSES_S", (0.01,))
            with pytest.raises(ReadFailed, match=f"every executor must reach the bookies .*{address}") as failed:
                rows(reader, parts)
        assert stream in str(failed.value)
        clients.close_connections()


def test_everything_is_read_without_one_bookie(stream: str) -> None:
    with ThreadedCluster(bookies=3) as cluster:
        write(cluster.uri, stream, numbered(2_000))
        reader = batch_reader(cluster.uri, "value", subscribe=stream, minPartitions=3)
        parts = reader.partitions()
        cluster.kill(1)
        assert [row["value"] for row in rows(reader, parts)] == numbered(2_000)
        clients.close_connections()


def asked_the_store(cluster: str, uri: str) -> list[bool]:
    """Of each client that reads this cluster directly, whether it has opened the metadata store."""
    return [
        one.store._real is not None
        for key, one in clients._PROCESS._direct.items()
        if key[3] == cluster and key[1] == uri
    ]


def test_replicas_copied_after_planning_are_found_through_the_store(stream: str) -> None:
    """Replicas were copied to other bookies and the old ones are gone, so the reader asks the store, once."""
    with ThreadedCluster(bookies=3) as cluster:
        write(cluster.uri, stream, numbered(500))
        reader = batch_reader(cluster.uri, "value", subscribe=stream)
        (part,) = parts = reader.partitions()
        assert isinstance(part, StreamPartition)
        part.bookies = [BookieInfo(info.bookie_id, BookieAddress("127.0.0.1", 1), {}) for info in part.bookies]
        assert [row["value"] for row in rows(reader, parts)] == numbered(500)
        assert asked_the_store(part.cluster, cluster.uri) == [True]
        clients.close_connections()


def test_spark_s_empty_partition_has_no_rows(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(1))
    reader = batch_reader(cluster.uri, subscribe=stream, startingOffsets="latest")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_filters_are_left_to_spark(cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(1))
    assert "pushFilters" not in vars(type(batch_reader(cluster.uri, subscribe=stream)))
    with pytest.raises(InvalidArgument, match=r"'pushdown' was dropped: .*startingOffsets"):
        batch_reader(cluster.uri, subscribe=stream, pushdown="true")
