"""Tasks with few rows send them to the driver in their messages, and the driver writes them to one ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.test_sink_parts import (
    batch,
    commit,
    create,
    ledgers,
    micro_batch,
    planned,
    schema,
    task,
    values,
    written,
)

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.errors import InvalidArgument, OpenSegment, StreamError
from buckram.launch.processes import BookieProcess, stop_all
from buckram.metadata.uri import init_cluster, open_store
from buckram.spark.shared.clients import close_connections
from buckram.spark.sink.small_parts import SmallPart
from buckram.spark.sink.stream_sink import batch_writer
from buckram.spark.sink.transactions import Part
from buckram.streams.write.bulk import Bulk
from buckram.testing import ThreadedCluster

SMALL = {"smallPartBytes": "1k"}


def counts(cluster: ThreadedCluster, stream: str) -> list[int]:
    """Return the number of records in each segment."""
    with sync.connect(cluster.uri) as client:
        found = client.namespace().segments(stream_name(stream).stream)
        return [segment.summary.records for segment in found if segment.summary is not None]


def test_rows_of_200_small_tasks_become_one_ledger(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    before = ledgers(cluster)
    writer = planned(cluster, stream, smallPartBytes="32k")
    messages = written(writer, *[[b"%d" % n] for n in range(200)])
    assert ledgers(cluster) == before
    writer.commit(messages)
    assert values(cluster, stream) == [b"%d" % n for n in range(200)]
    assert counts(cluster, stream) == [200]
    assert len(ledgers(cluster)) == len(before) + 1


def test_small_parts_and_ledgers_keep_the_order_of_partitions(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream, **SMALL)
    large = [b"large %d" % n + bytes(600) for n in range(2)]
    messages = written(writer, [b"a"], [], [b"b"], large, [b"c"], large, large, [b"d"], [b"e", b"f"])
    kinds = ["small" if part.small else len(part.ledgers) for part in messages if isinstance(part, Part)]
    assert kinds == ["small", 0, "small", 1, "small", 1, 1, "small", "small"]
    writer.commit(list(reversed(messages)))
    assert values(cluster, stream) == [b"a", b"b", *large, b"c", *large, *large, b"d", b"e", b"f"]
    assert counts(cluster, stream) == [2, 2, 1, 2, 2, 3]


def test_a_task_that_outgrows_its_message_writes_all_rows_in_order(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream, **SMALL)
    with task():
        message = writer.write(iter([batch(b"a"), batch(), batch(b"b"), batch(bytes(2000)), batch(b"c")]))
    writer.commit([message])
    assert values(cluster, stream) == [b"a", b"b", bytes(2000), b"c"]


def test_all_parts_of_a_record_and_slices(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    arrays = [
        pa.array([b"no", b"v", None], pa.binary()), pa.array(["no", None, "k"]),
        pa.array([1, 2, 3], pa.timestamp("us", "UTC")), pa.array([None, [("h", b"1")], []], pa.list_(header)),
    ]  # fmt: skip
    rows = pa.RecordBatch.from_arrays(arrays, names=["value", "key", "timestamp", "headers"])
    writer = planned(cluster, stream, **SMALL)
    with task():
        writer.commit([writer.write(iter([rows.slice(1, 1), rows.slice(2)]))])
    with sync.connect(cluster.uri) as client:
        found = list(client.namespace().read(stream_name(stream).stream))
    assert [(r.value, r.key, r.timestamp) for r in found] == [(b"v", None, 2), (None, b"k", 3)]
    assert [list(r.headers) for r in found] == [[("h", b"1")], []]


def test_a_batch_of_small_parts_counts_once(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    for number in (0, 0, 1, 1):
        commit(cluster, stream, "q", number, [b"%d" % number], [b"x"], **SMALL)
    runs = [micro_batch(cluster, stream, "q", 2, [b"2"], **SMALL) for _ in range(2)]
    before = ledgers(cluster)
    for writer, messages in runs:
        writer.commit(messages, 2)
        writer.commit(messages, 2)
    assert values(cluster, stream) == [b"0", b"x", b"1", b"x", b"2"]
    assert len(ledgers(cluster)) == len(before) + 1


def test_the_driver_s_ledger_is_deleted_if_it_cannot_be_published(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer opens the stream after the driver has read the head and before it publishes."""
    create(cluster, stream)
    writer = planned(cluster, stream, **SMALL)
    messages = written(writer, [b"x"])
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream_name(stream).stream) as live:
        live.append(b"begun")
        before = ledgers(cluster)
        monkeypatch.setattr(Bulk, "foreseen", lambda *_, **__: True)
        with pytest.raises(OpenSegment):
            writer.commit(messages)
        monkeypatch.undo()
        assert ledgers(cluster) == before
    writer.commit(messages)
    assert values(cluster, stream) == [b"begun", b"x"]


def test_a_wrong_column_fails_the_task(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream, **SMALL)
    wrong = pa.RecordBatch.from_pydict({"value": pa.array([1])})
    with task(), pytest.raises(InvalidArgument, match="column value"):
        writer.write(iter([wrong]))


def test_a_small_part_keeps_nothing_after_too_many_bytes() -> None:
    small = SmallPart("s", 100)
    assert small.keep(batch(b"a"))
    assert small.rows == 1
    assert not small.keep(batch(bytes(200)))
    assert [rows.num_rows for rows in small.release()] == [1]
    assert not small.keep(batch(b"b"))
    assert small.message() == b""
    assert small.rows == 0


def test_the_error_names_read_only_bookies(stream: str, tmp_path: Path) -> None:
    """Calling them unreachable would make operators search for a fault in the network."""
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    full = {"BUCKRAM_STORE_RESERVED_BYTES": str(1 << 60), "BUCKRAM_STORE_WRITABLE_AGAIN_BYTES": str(1 << 60)}
    bookies = [
        BookieProcess(uri, tmp_path / f"bookie-{n}", bookie_id=f"bookie-{n}", environment=full if n else None)
        for n in range(3)
    ]

    async def prepare() -> None:
        store = await open_store(uri)
        await init_cluster(store)
        await store.close()

    asyncio.run(prepare())
    try:
        for bookie in bookies:
            bookie.start()
        for bookie in bookies:
            bookie.wait_ready()
        given = {"metadata": uri, "stream": stream, "createStream": "true"}
        said = r"from host .*: bookies bookie-1, bookie-2 are read-only, mostly for want of space; the others are"
        for size in ("1", "32k"):
            writer = batch_writer({**given, "smallPartBytes": size}, schema("value binary"), False)
            with task(), pytest.raises(StreamError, match=said):
                writer.commit([writer.write(iter([batch(b"x")]))])
    finally:
        close_connections()
        stop_all(bookies)
