"""One sink into many streams: each row goes where its column says, and all streams of a batch change together."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from tests.spark.test_sink_parts import create, ledgers, task, values

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.errors import InvalidArgument, NoSuchStream, OpenSegment, ReplayDiffers, UnknownQuery
from buckram.spark.sink import transactions
from buckram.spark.sink.stream_sink import batch_writer, stream_writer
from buckram.spark.sink.transactions import Part
from buckram.testing import ThreadedCluster

Rows = Sequence[tuple[str | None, bytes]]
SCHEMA = types.StructType([
    types.StructField("value", types.BinaryType()), types.StructField("stream", types.StringType()),
])  # fmt: skip


def batch(rows: Rows) -> pa.RecordBatch:
    names, found = [name for name, _ in rows], [value for _, value in rows]
    return pa.RecordBatch.from_pydict({"value": pa.array(found, pa.binary()), "stream": pa.array(names, pa.string())})


def given(cluster: ThreadedCluster, stream: str, options: Mapping[str, str]) -> dict[str, str]:
    defaults = {"byStream": "true", "createStream": "true", "smallPartBytes": "1", "checkpointLocation": f"/{stream}"}
    return {"metadata": cluster.uri, "stream": stream, **defaults, **options}


def planned(cluster: ThreadedCluster, stream: str, **options: str) -> DataSourceWriter:
    made: DataSourceWriter = pickle.loads(pickle.dumps(batch_writer(given(cluster, stream, options), SCHEMA, False)))
    return made


def streaming(cluster: ThreadedCluster, stream: str, **options: str) -> DataSourceStreamWriter:
    return stream_writer(given(cluster, stream, options), SCHEMA, False)


def micro_batch(
    cluster: ThreadedCluster, stream: str, number: int, *parts: Rows, query: str = "q", **options: str
) -> list[WriterCommitMessage | None]:
    found: list[WriterCommitMessage | None] = []
    for place, part in enumerate(parts):
        with task(place, query=query, number=number):
            writer = streaming(cluster, stream, **options)
            found.append(pickle.loads(pickle.dumps(writer.write(iter([batch(part)])))))
    return found


def commit(cluster: ThreadedCluster, stream: str, number: int, *parts: Rows, query: str = "q", **options: str) -> None:
    messages = micro_batch(cluster, stream, number, *parts, query=query, **options)
    streaming(cluster, stream, **options).commit(messages, number)


@pytest.mark.parametrize("small", ["1", "32k"], ids=["ledgers", "messages"])
def test_each_row_goes_to_the_stream_that_it_names(any_cluster: ThreadedCluster, stream: str, small: str) -> None:
    a, b = f"{stream}-a", f"{stream}-b"
    commit(
        any_cluster, stream, 0,
        [(a, b"a0"), (None, b"0"), (b, b"b0"), (a, b"a1")], [], [(b.partition("/")[2], b"b1"), (a, b"a2")],
        smallPartBytes=small,
    )  # fmt: skip
    commit(any_cluster, stream, 1, [(a, b"a3")], smallPartBytes=small)
    assert values(any_cluster, a) == [b"a0", b"a1", b"a2", b"a3"]
    assert values(any_cluster, b) == [b"b0", b"b1"]
    assert values(any_cluster, stream) == [b"0"]
    with sync.connect(any_cluster.uri) as client:
        infos = [client.namespace().info(stream_name(name).stream) for name in (stream, a, b)]
    # The sink's own stream records every batch, the others those of which they have rows.
    assert [info.transactions["q"].version for info in infos] == [1, 1, 0]


def test_a_repeated_batch_writes_nothing(cluster: ThreadedCluster, stream: str) -> None:
    rows = [(f"{stream}-a", b"a"), (None, b"own"), (f"{stream}-b", b"b")]
    commit(cluster, stream, 0, rows)
    early = micro_batch(cluster, stream, 1, rows, [*rows, *rows])
    late = micro_batch(cluster, stream, 1, rows, [*rows, *rows])
    before = ledgers(cluster)
    streaming(cluster, stream).commit(early, 1)
    streaming(cluster, stream).commit(early, 1)
    streaming(cluster, stream).commit(late, 1)  # Its ledgers are deleted, of all streams.
    assert len(ledgers(cluster)) == len(before) - 6
    commit(cluster, stream, 1, [*rows, *rows], rows)
    for name in (stream, f"{stream}-a", f"{stream}-b"):
        assert len(values(cluster, name)) == 4


def test_a_repeated_batch_with_rows_for_another_stream_is_refused(cluster: ThreadedCluster, stream: str) -> None:
    """If it counted as published, those rows would be lost."""
    commit(cluster, stream, 0, [(f"{stream}-a", b"a")])
    commit(cluster, stream, 0, [(f"{stream}-a", b"a")])
    with pytest.raises(ReplayDiffers, match=f"{stream}-b: .* published with 0 rows and now has 1"):
        commit(cluster, stream, 0, [(f"{stream}-a", b"a"), (f"{stream}-b", b"b")])
    with pytest.raises(ReplayDiffers, match="not the same ones"):
        commit(cluster, stream, 0, [(f"{stream}-a", b"other")])
    with sync.connect(cluster.uri) as client:
        assert not client.namespace().exists(stream_name(f"{stream}-b").stream)


def test_nothing_is_published_if_one_stream_cannot_be(cluster: ThreadedCluster, stream: str) -> None:
    held, free = f"{stream}-held", f"{stream}-free"
    for name in (stream, held, free):
        create(cluster, name)
    writer = planned(cluster, stream)
    with task():
        message = writer.write(iter([batch([(held, b"x"), (free, b"y"), (None, b"z")])]))
    with sync.connect(cluster.uri) as client:
        live = client.namespace().writer(stream_name(held).stream, name="alice")
        live.append(b"live")
        before = ledgers(cluster)
        with task():
            refused = writer.write(iter([batch([(free, b"y"), (held, b"x")])]))
        assert ledgers(cluster) == before
        for messages in ([message], [refused]):
            with pytest.raises(OpenSegment, match="'alice'"):
                writer.commit(messages)
        assert [values(cluster, name) for name in (stream, free)] == [[], []]
        live.close()
    writer.commit([message])
    assert [values(cluster, name) for name in (stream, held, free)] == [[b"z"], [b"live", b"x"], [b"y"]]


def test_a_stream_that_is_not_there_is_named(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream, createStream="false")
    with task():
        message = writer.write(iter([batch([(None, b"0"), (f"{stream}-a", b"a")])]))
    assert isinstance(message, Part)
    with pytest.raises(NoSuchStream, match=f'{stream}-a: does not exist; set option "createStream"'):
        writer.commit([message])
    with task(), pytest.raises(InvalidArgument, match="column \"stream\" has 'a/b/c'"):
        writer.write(iter([batch([("a/b/c", b"a")])]))
    assert values(cluster, stream) == []


def test_only_so_many_streams_in_a_batch(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MOST_STREAMS", 3)
    said = 'column "stream": one batch has rows for 4 streams, the limit is 3'
    with task(), pytest.raises(InvalidArgument, match=said):
        planned(cluster, stream).write(iter([batch([(f"{stream}-{n}", b"x") for n in range(3)])]))
    messages = micro_batch(cluster, stream, 0, *[[(f"{stream}-{n}", b"x")] for n in range(3)])
    with pytest.raises(InvalidArgument, match=said):
        streaming(cluster, stream).commit(messages, 0)


def test_a_later_batch_needs_the_record_in_the_stream_of_the_sink(cluster: ThreadedCluster, stream: str) -> None:
    commit(cluster, stream, 0, [(f"{stream}-a", b"0")])
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream_name(stream).stream)
    with pytest.raises(UnknownQuery):
        commit(cluster, stream, 1, [(f"{stream}-a", b"1")])
    assert values(cluster, f"{stream}-a") == [b"0"]


def test_columns_of_such_a_sink(cluster: ThreadedCluster, stream: str) -> None:
    options = given(cluster, stream, {})
    only_value = types.StructType([SCHEMA.fields[0]])
    numbers = types.StructType([SCHEMA.fields[0], types.StructField("stream", types.IntegerType())])
    for make in (batch_writer, stream_writer):
        with pytest.raises(InvalidArgument, match='"byStream" needs a column "stream"'):
            make(options, only_value, False)
        with pytest.raises(InvalidArgument, match='"stream" is int: needs string'):
            make(options, numbers, False)
        with pytest.raises(InvalidArgument, match='column "stream": drop it; or set option "byStream"'):
            make({**options, "byStream": "false"}, SCHEMA, False)
        without = {name: text for name, text in options.items() if name != "stream"}
        with pytest.raises(InvalidArgument, match=r'"stream" is missing.*with option "byStream" that of rows'):
            make(without, SCHEMA, False)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_target_that_was_deleted_under_its_query_is_an_error(
    cluster: ThreadedCluster, stream: str, made_anew: bool
) -> None:
    """Its earlier rows are gone, and the rows that come now alone would look like all of them."""
    target, later = f"{stream}-a", f"{stream}-b"
    commit(cluster, stream, 0, [(target, b"0"), (None, b"own")])
    with sync.connect(cluster.uri) as client:
        client.namespace().delete(stream_name(target).stream)
        if made_anew:
            client.namespace().create(stream_name(target).stream)
    commit(cluster, stream, 1, [(later, b"1")])  # A stream that is new to the query is made.
    with pytest.raises(UnknownQuery, match=f"stream {target}: .* deleted and made anew"):
        commit(cluster, stream, 2, [(target, b"2"), (later, b"2")])
    assert values(cluster, later) == [b"1"]
    with sync.connect(cluster.uri) as client:
        assert client.namespace().exists(stream_name(target).stream) is made_anew
    commit(cluster, stream, 2, [(target, b"2"), (later, b"2")], onCheckpointReset="newEpoch")
    commit(cluster, stream, 3, [(target, b"3")])
    assert (values(cluster, target), values(cluster, later)) == ([b"2", b"3"], [b"1", b"2"])
