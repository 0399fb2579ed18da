"""The sink without Spark: what is refused at planning, the identity of a task, and the steps of a write one by one."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.errors import (
    BuckramError,
    CheckpointReset,
    InvalidArgument,
    NoSuchStream,
    OpenSegment,
    RecordTooLarge,
    StaleTransaction,
    StreamError,
    UnknownQuery,
    WriterLost,
)
from buckram.spark.shared.clients import close_connections
from buckram.spark.sink.exactly_once import record_batches
from buckram.spark.sink.stream_sink import batch_writer, stream_writer
from buckram.spark.sink.transactions import Attempt, Part, in_order
from buckram.testing import ThreadedCluster

VALUE = "value binary"


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


HEADER = types.StructType([
    types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType()),
])  # fmt: skip
TYPES: dict[str, types.DataType] = {
    "binary": types.BinaryType(), "string": types.StringType(), "int": types.IntegerType(), "long": types.LongType(),
    "date": types.DateType(), "timestamp": types.TimestampType(), "timestamp_ntz": types.TimestampNTZType(),
    "headers": types.ArrayType(HEADER), "map": types.MapType(types.StringType(), types.BinaryType()),
}  # fmt: skip


def schema(ddl: str) -> StructType:
    """Make a schema without a JVM, with names and types from the table above."""
    columns = [column.split() for column in ddl.split(", ")]
    return StructType([types.StructField(name, TYPES[kind]) for name, kind in columns])


@contextmanager
def task(partition: int = 0, *, query: str = "", number: int = -1, attempt: int = 0) -> Iterator[None]:
    """Set the TaskContext by which Spark tells a worker which task it runs."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber, context._taskAttemptId = partition, attempt, 100 * partition + attempt
    said = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)} if query else {}
    context._localProperties = said
    try:
        yield
    finally:
        TaskContext._taskContext = None


def create(cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client:
        client.namespace().create(stream_name(stream).stream)


def values(cluster: ThreadedCluster, stream: str) -> list[bytes | None]:
    with sync.connect(cluster.uri) as client:
        return [record.value for record in client.namespace().read(stream_name(stream).stream)]


def planned(cluster: ThreadedCluster, stream: str, ddl: str = VALUE, **options: str) -> DataSourceWriter:
    """Return a batch writer as the planner makes it. Its tasks make ledgers, however few rows they have."""
    given = {"metadata": cluster.uri, "stream": stream, "smallPartBytes": "1", **options}
    made: DataSourceWriter = pickle.loads(pickle.dumps(batch_writer(given, schema(ddl), False)))
    return made


def streaming(cluster: ThreadedCluster, stream: str, **options: str) -> DataSourceStreamWriter:
    given = {"metadata": cluster.uri, "path": stream, "checkpointlocation": f"/{stream}", "smallPartBytes": "1"}
    given |= options
    made: DataSourceStreamWriter = pickle.loads(pickle.dumps(stream_writer(given, schema(VALUE), False)))
    return made


def written(writer: DataSourceWriter, *parts: Sequence[bytes]) -> list[WriterCommitMessage | None]:
    found: list[WriterCommitMessage | None] = []
    for place, part in enumerate(parts):
        with task(place):
            found.append(pickle.loads(pickle.dumps(writer.write(iter([batch(*part)])))))
    return found


def micro_batch(
    cluster: ThreadedCluster, stream: str, query: str, number: int, *parts: Sequence[bytes], **options: str
) -> tuple[DataSourceStreamWriter, list[WriterCommitMessage | None]]:
    """Run the tasks of one micro-batch without committing it."""
    writer, found = streaming(cluster, stream, **options), []
    for place, part in enumerate(parts):
        with task(place, query=query, number=number):
            found.append(writer.write(iter([batch(*part)])))
    return writer, found


def commit(
    cluster: ThreadedCluster, stream: str, query: str, number: int, *parts: Sequence[bytes], **options: str
) -> None:
    _, messages = micro_batch(cluster, stream, query, number, *parts, **options)
    streaming(cluster, stream, **options).commit(messages, number)  # As in Spark, another object commits than wrote.


def ledgers(cluster: ThreadedCluster) -> list[int]:
    with sync.connect(cluster.uri) as client:
        return sorted(client.list())


def test_partitions_and_rows_keep_their_order(cluster: ThreadedCluster, stream: str) -> None:
    writer = planned(cluster, stream, createStream="true")
    messages = written(writer, [b"a0", b"a1"], [], [b"c0"])
    assert values(cluster, stream) == []
    writer.commit([messages[2], messages[0], messages[1]])
    assert values(cluster, stream) == [b"a0", b"a1", b"c0"]


def test_a_task_ends_segments_by_size(cluster: ThreadedCluster, stream: str) -> None:
    writer = planned(cluster, stream, createStream="true", segmentBytes="10k")
    rows = [b"%03d" % n * 3000 for n in range(10)]
    with task():
        message = writer.write(batch(row) for row in rows)
    assert isinstance(message, Part)
    assert [ledger.records for ledger in message.ledgers] == [2] * 5
    writer.commit([message])
    assert values(cluster, stream) == rows


def test_a_named_job_is_published_once(cluster: ThreadedCluster, stream: str) -> None:
    for version in (1, 1, 2, 2):
        writer = planned(cluster, stream, createStream="true", txnAppId="job", txnVersion=str(version))
        before = ledgers(cluster)
        messages = written(writer, [b"v%d" % version])
        writer.commit(messages)
        writer.abort(messages)
        assert writer.done is (before == ledgers(cluster))  # type: ignore[attr-defined]
    assert values(cluster, stream) == [b"v1", b"v2"]
    with pytest.raises(StaleTransaction, match="version 1 is older than version 2"):
        planned(cluster, stream, txnAppId="job", txnVersion="1")


def test_two_runs_of_one_version_at_the_same_time(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writers = [planned(cluster, stream, txnAppId="job", txnVersion="1") for _ in range(2)]
    messages = [written(writer, [b"x", b"y"]) for writer in writers]
    for writer, message in zip(writers, messages, strict=True):
        writer.commit(message)
        writer.commit(message)
    assert values(cluster, stream) == [b"x", b"y"]


def test_a_commit_is_repeated_after_a_lost_reply(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream)  # It holds for a job without a name, too.
    messages = written(writer, [b"x"], [b"y"])
    for _ in range(3):
        writer.commit(messages)
    writer.abort(messages)
    writer.abort([None, None])
    assert values(cluster, stream) == [b"x", b"y"]


def test_a_write_with_missing_or_double_parts_is_not_published(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream)
    one, two = written(writer, [b"x"], [b"y"])
    for messages in ([one, None], [one, one], [two]):
        with pytest.raises(StreamError, match="nothing was published"):
            writer.commit(messages)
    assert values(cluster, stream) == []
    writer.commit([])
    writer.commit([one, two])
    assert values(cluster, stream) == [b"x", b"y"]
    with pytest.raises(StreamError):
        in_order("s", [None])


def test_batches_of_a_query_count_once(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    for number in (0, 0, 1, 2, 2):
        commit(cluster, stream, "q1", number, [b"%d.0" % number], [b"%d.1" % number])
    commit(cluster, stream, "q2", 0, [b"other query"], checkpointlocation="/elsewhere")
    commit(cluster, stream, "q1", 3, [], [])
    assert values(cluster, stream) == [b"0.0", b"0.1", b"1.0", b"1.1", b"2.0", b"2.1", b"other query"]
    with pytest.raises(StaleTransaction):
        commit(cluster, stream, "q1", 1, [b"from an old checkpoint"])
    writer, messages = micro_batch(cluster, stream, "q1", 4, [b"x"])
    with pytest.raises(StreamError, match="nothing was published"):
        writer.commit(messages, 5)


@pytest.mark.parametrize("name", [{}, {"txnAppId": "orders"}])
def test_a_reset_checkpoint_is_refused_and_a_replaced_query_ends(
    cluster: ThreadedCluster, stream: str, name: dict[str, str]
) -> None:
    create(cluster, stream)
    for number in range(3):
        commit(cluster, stream, "q1", number, [b"q1.%d" % number], **name)
    zombie, left = micro_batch(cluster, stream, "q1", 3, [b"q1.3"], **name)
    with pytest.raises(CheckpointReset, match=r"up to query q1 \(batch 2\).*onCheckpointReset=newEpoch"):
        commit(cluster, stream, "q2", 0, [b"q2.0"], **name)
    commit(cluster, stream, "q2", 0, [b"q2.0"], onCheckpointReset="newEpoch", **name)
    for _ in range(2):
        with pytest.raises(CheckpointReset, match="replaced by query q2"):
            zombie.commit(left, 3)
        with pytest.raises(CheckpointReset, match="replaced by query q2"):
            commit(cluster, stream, "q1", 3, [b"q1.3"], onCheckpointReset="newEpoch", **name)
        commit(cluster, stream, "q2", 1, [b"q2.1"], **name)
    commit(cluster, stream, "q2", 1, [b"q2.1"], txnAppId="renamed")
    commit(cluster, stream, "q2", 2, [b"q2.2"], txnAppId="renamed")
    assert values(cluster, stream) == [b"q1.0", b"q1.1", b"q1.2", b"q2.0", b"q2.1", b"q2.2"]


def test_a_sink_stream_that_was_deleted_between_two_runs(cluster: ThreadedCluster, stream: str) -> None:
    """If the query continued with its next batch in the new stream, the rows of earlier batches would be lost."""
    create(cluster, stream)
    for number in (0, 1):
        commit(cluster, stream, "q1", number, [b"%d" % number])
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream_name(stream).stream)
    for made_anew in (lambda: streaming(cluster, stream, createStream="true"), lambda: None):
        made_anew()
        with pytest.raises(UnknownQuery, match="comes with batch 2, and none of its batches before was published here"):
            commit(cluster, stream, "q1", 2, [b"2"], createStream="true")
    assert values(cluster, stream) == []
    commit(cluster, stream, "q1", 2, [b"2"], onCheckpointReset="newEpoch")
    commit(cluster, stream, "q1", 3, [b"3"])
    assert values(cluster, stream) == [b"2", b"3"]


def test_an_empty_first_batch_is_recorded(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    commit(cluster, stream, "q1", 0, [])
    commit(cluster, stream, "q1", 1, [])
    commit(cluster, stream, "q1", 2, [b"2"])
    assert values(cluster, stream) == [b"2"]
    with pytest.raises(UnknownQuery):
        commit(cluster, stream, "q2", 1, [b"x"], checkpointlocation="/other")


def test_a_sink_without_checkpoint_location_or_name_is_refused(cluster: ThreadedCluster, stream: str) -> None:
    """Spark does not pass its own configuration of checkpoints to a sink, so a reset could not be noticed."""
    create(cluster, stream)
    given = {"metadata": cluster.uri, "stream": stream}
    with pytest.raises(InvalidArgument, match='neither "checkpointLocation" nor "txnAppId"'):
        stream_writer(given, schema(VALUE), False)
    for one in ({"txnAppId": "orders"}, {"checkpointLocation": "/here"}):
        stream_writer({**given, **one}, schema(VALUE), False)


def test_a_batch_from_an_older_checkpoint_is_refused(cluster: ThreadedCluster, stream: str) -> None:
    """If its batch counted as published, the rows that it has in addition would be lost."""
    create(cluster, stream)
    commit(cluster, stream, "q", 0, [b"a"] * 100)
    commit(cluster, stream, "q", 1, [b"b"] * 5, [b"c"] * 5)
    commit(cluster, stream, "q", 1, [b"b"] * 4, [*[b"c"] * 5, b"b"])
    with pytest.raises(StreamError, match=r"published with 10 rows \(offsets 100 to 109\) and now has 20"):
        commit(cluster, stream, "q", 1, [b"b"] * 5, [b"c"] * 15)
    with pytest.raises(StreamError, match="now has 0"):
        commit(cluster, stream, "q", 1, [])
    late, messages = micro_batch(cluster, stream, "q", 2, [b"x"])
    commit(cluster, stream, "q", 2, [b"x", b"y"])
    with pytest.raises(StreamError, match=r"published with 2 rows .* and now has 1"):
        late.commit(messages, 2)
    assert len(values(cluster, stream)) == 112


def test_two_drivers_of_one_query(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    drivers = [micro_batch(cluster, stream, "q", 0, [b"a"], [b"b"]) for _ in range(2)]
    for writer, messages in reversed(drivers):
        writer.commit(messages, 0)
    assert values(cluster, stream) == [b"a", b"b"]


def test_ledgers_of_a_failed_task_are_deleted_at_once(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer, before = planned(cluster, stream, segmentBytes="1k"), ledgers(cluster)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(bytes(2000))
        yield batch(b"y")
        raise RuntimeError("the query's own function failed")

    with task(), pytest.raises(RuntimeError):
        writer.write(rows())
    assert ledgers(cluster) == before
    large = pa.RecordBatch.from_pydict({"value": [b"x", bytes(5 * 1024 * 1024)]})
    with task(), pytest.raises(RecordTooLarge, match="5242880 bytes is over the limit of 4194304"):
        writer.write(iter([large]))
    assert ledgers(cluster) == before


def test_a_stream_with_a_writer(cluster: ThreadedCluster, stream: str) -> None:
    name = stream_name(stream).stream
    with sync.connect(cluster.uri) as client:
        writer = client.namespace().writer(name, name="alice")
        writer.append(b"0")
        for plan in (planned, streaming):
            with pytest.raises(OpenSegment, match=r"'alice' .*option sealLive"):
                plan(cluster, stream)
        sink = planned(cluster, stream, sealLive="true")
        sink.commit(written(sink, [b"1"]))
        with pytest.raises(BuckramError):
            writer.append(b"never")
        writer.abandon()
    assert values(cluster, stream) == [b"0", b"1"]


def test_a_live_producer_and_a_sink_take_turns(cluster: ThreadedCluster, stream: str) -> None:
    """Nothing is lost or doubled: the producer opens again and repeats under its numbers what was not acknowledged."""
    sent: list[bytes] = []
    with sync.connect(cluster.uri) as client:
        ns, name = client.namespace(), stream_name(stream).stream
        writer = ns.writer(name)
        writer.append_many([b"p"] * 3, producer="p", sequence=0)
        sent += [b"p"] * 3
        for number in range(3):
            commit(cluster, stream, "q", number, [b"q%d" % number], sealLive="true")
            with pytest.raises(WriterLost):
                writer.append_many([b"p%d" % number] * 2, producer="p", sequence=3 + 2 * number)
            writer.abandon()
            writer = ns.writer(name)
            for _ in range(2):  # The second time is a retry after a lost reply.
                writer.append_many([b"p%d" % number] * 2, producer="p", sequence=3 + 2 * number)
            sent += [b"q%d" % number, *[b"p%d" % number] * 2]
        writer.close()
    assert values(cluster, stream) == sent


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("key binary", '"value" is missing'), ("value int", '"value" is int: needs binary or string'),
        ("value binary, key long", '"key" is bigint'), ("value binary, timestamp date", "needs timestamp"),
        ("value binary, timestamp timestamp_ntz", "needs timestamp"),
        ("value binary, headers map", "needs array<struct<key:string,value:binary>>"),
        ("value binary, stream string", "drop it; or set option \"byStream\""),
        ("value binary, offset long", "the stream gives it"), ("value binary, other int", "only value, key"),
        ("VALUE binary", 'the name is "value", in small letters'),
        ("value binary, key string, value string", "two columns have one name: value, key, value"),
    ],
)  # fmt: skip
def test_wrong_columns(cluster: ThreadedCluster, stream: str, ddl: str, said: str) -> None:
    given = {"metadata": cluster.uri, "stream": stream, "createStream": "true"}
    for make in (batch_writer, stream_writer):
        with pytest.raises(InvalidArgument, match=said):
            make(given, schema(ddl), False)


def test_wrong_options(cluster: ThreadedCluster, stream: str) -> None:
    given = {"metadata": cluster.uri, "stream": stream, "checkpointLocation": f"/{stream}"}
    value = schema(VALUE)
    with pytest.raises(InvalidArgument, match=r'mode\("append"\)'):
        batch_writer(given, value, True)
    with pytest.raises(InvalidArgument, match="only appended to"):
        stream_writer(given, value, True)
    for make in (batch_writer, stream_writer):
        with pytest.raises(NoSuchStream, match='"createStream"'):
            make(given, value, False)
        for wrong, said in (
            ({"nonsense": "1"}, "unknown option 'nonsense'"), ({"subscribe": "a"}, "batch reads"),
            ({"onCheckpointReset": "x"}, "fail or newEpoch"), ({"segmentBytes": "0"}, "segmentBytes"),
            ({"sealLive": "maybe"}, "sealLive"), ({"stream": "a/b/c"}, "stream"), ({"txnAppId": "once x"}, "txnAppId"),
        ):  # fmt: skip
            with pytest.raises(InvalidArgument, match=said):
                make({**given, **wrong}, value, False)
        with pytest.raises(InvalidArgument, match='"stream" is missing'):
            make({"metadata": cluster.uri, "checkpointLocation": "/x"}, value, False)
        with pytest.raises(InvalidArgument, match="2 streams to write"):
            make({"metadata": cluster.uri, "path": "a,b"}, value, False)
    for alone in ({"txnAppId": "a"}, {"txnVersion": "1"}):
        with pytest.raises(InvalidArgument, match="both txnAppId and txnVersion"):
            batch_writer({**given, **alone}, value, False)
    with pytest.raises(InvalidArgument, match="for batch jobs"):
        stream_writer({**given, "txnVersion": "1"}, value, False)
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream_name(stream).stream) as writer:
        writer.append(b"x")
        writer.end()
    with pytest.raises(StreamError, match="was ended at offset 1"):
        batch_writer(given, value, False)


def test_bookies_that_cannot_be_reached_are_named(stream: str) -> None:
    with ThreadedCluster(bookies=3) as own:
        create(own, stream)
        writer = planned(own, stream)
        messages = written(writer, [b"x"])

        def rows() -> Iterator[pa.RecordBatch]:
            yield batch(b"y")
            for number in (0, 1):
                own.kill(number)
            yield batch(b"z")

        with task(), pytest.raises(StreamError, match=r"from host .* every executor must reach the bookies") as refused:
            writer.write(rows())
        assert any(bookie in str(refused.value) for bookie in own.bookies[:2]), refused.value
        own.restart(0)
        own.restart(1)
        writer.commit(messages)
        assert values(own, stream) == [b"x"]
        close_connections()


def test_rows_of_an_older_pyspark() -> None:
    when = datetime(2026, 11, 21, 9, 46, 22, 5).astimezone()
    shape = schema("value string, key binary, timestamp timestamp, headers headers")
    rows = [
        types.Row("a", bytearray(b"k"), when.replace(tzinfo=None), [types.Row("n", bytearray(b"v"))]),
        *[types.Row(None, None, None, None)] * 5000,
    ]
    first, second = record_batches(iter(rows), shape)
    assert (first.num_rows, second.num_rows) == (4096, 905)
    (row,) = first.slice(0, 1).to_pylist()
    assert (row["value"], row["key"], row["headers"]) == ("a", b"k", [{"key": "n", "value": b"v"}])
    assert row["timestamp"] == when
    assert second.slice(0, 1).to_pylist() == [{"value": None, "key": None, "timestamp": None, "headers": None}]
    assert list(record_batches(iter([]), shape)) == []


def test_a_task_is_identified_by_its_task_context() -> None:
    assert Attempt.here() == Attempt()
    with task(3, query="q", number=7, attempt=2):
        assert Attempt.here() == Attempt("q", 7, "", 3, 2, 302)
        assert Attempt.here().marks()["buckram.spark.batch"] == b"7"
    with task(3):
        assert Attempt.here() == Attempt("", -1, "", 3, 0, 300)
