"""Repeated batches: those with the same rows pass, in any order; those from older checkpoints are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.test_sink_parts import (
    commit,
    create,
    ledgers,
    micro_batch,
    schema,
    stream_writer,
    streaming,
    task,
    values,
)

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.errors import ReplayDiffers
from buckram.spark.sink.exactly_once import OnceStreamWriter
from buckram.spark.sink.replay_check import local_path, planned_at, tally
from buckram.spark.sink.transactions import in_order
from buckram.testing import ThreadedCluster


def planned_now(checkpoint: Path, batch: int, *, ago_s: float = 0.0) -> None:
    """Write the offsets file that Spark writes before it runs a batch."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    said = {"batchWatermarkMs": 0, "batchTimestampMs": int((time.time() - ago_s) * 1000), "conf": {}}
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(said)}\n" + '{"default/s":3}')


def test_other_rows_of_the_same_number_are_refused(cluster: ThreadedCluster, stream: str) -> None:
    """A checkpoint that is one batch older gives other rows of the same number, which must not be dropped."""
    create(cluster, stream)
    commit(cluster, stream, "q", 0, [b"a", b"b"], [b"c"])
    with pytest.raises(ReplayDiffers, match=r"has as many, but not the same ones.*onReplayDiffers=keep"):
        commit(cluster, stream, "q", 0, [b"a", b"b"], [b"d"])
    with pytest.raises(ReplayDiffers, match="not the same ones"):
        commit(cluster, stream, "q", 0, [b"a", b"a"], [b"c"])
    assert values(cluster, stream) == [b"a", b"b", b"c"]


def test_order_and_partitions_of_rows_do_not_matter(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    commit(cluster, stream, "q", 0, [b"a", b"b", b"b"], [b"c"], [])
    for again in ([[b"b", b"a"], [b"c", b"b"]], [[], [b"c", b"b", b"b", b"a"]], [[b"c"], [b"b"], [b"a"], [b"b"]]):
        commit(cluster, stream, "q", 0, *again)
    assert values(cluster, stream) == [b"a", b"b", b"b", b"c"]


def rich(keys: Sequence[str | None], headers: Sequence[list[tuple[str, bytes]] | None]) -> pa.RecordBatch:
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.RecordBatch.from_arrays(
        [pa.array(["v"] * len(keys)), pa.array(keys, pa.string()), pa.array(headers, pa.list_(header))],
        names=["value", "key", "headers"],
    )


def test_keys_and_headers_count_and_the_time_of_writing_does_not(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    given = {"metadata": cluster.uri, "path": stream, "checkpointlocation": f"/{stream}"}
    writer = stream_writer(given, schema("value string, key string, headers headers"), False)

    def once(batch: pa.RecordBatch) -> None:
        with task(0, query="q", number=0):
            message = writer.write(iter([batch]))
        writer.commit([message], 0)

    keys, headers = ["k", None, ""], [[("h", b"1"), ("i", b"")], None, []]
    once(rich(keys, headers))
    once(rich(keys, headers))
    for other in (rich(["k", "", ""], headers), rich(keys, [[("h", b"1")], None, []])):
        with pytest.raises(ReplayDiffers):
            once(other)


def test_a_batch_planned_before_the_publishing_is_accepted(
    cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """After a driver died behind the publishing, a query with non-deterministic columns must continue by itself."""
    create(cluster, stream)
    own = {"checkpointlocation": f"file://{tmp_path}"}
    planned_now(tmp_path, 0)
    commit(cluster, stream, "q", 0, [b"uuid 1", b"uuid 2"], **own)
    commit(cluster, stream, "q", 0, [b"uuid 3", b"uuid 4"], **own)
    commit(cluster, stream, "q", 0, [b"uuid 5"], **own)
    # This batch was planned after the publishing, from an older copy of the checkpoint.
    planned_now(tmp_path, 0, ago_s=-5)
    commit(cluster, stream, "q", 0, [b"uuid 2", b"uuid 1"], **own)
    for other in ([b"uuid 3", b"uuid 4"], [b"uuid 1"]):
        with pytest.raises(ReplayDiffers):
            commit(cluster, stream, "q", 0, other, **own)
    assert values(cluster, stream) == [b"uuid 1", b"uuid 2"]


def test_another_plan_is_another_batch_whatever_clocks_say(
    cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """The publishing has the time of other clocks, which may be ahead of the driver's when it plans anew."""
    create(cluster, stream)
    own = {"checkpointlocation": f"file://{tmp_path}"}
    planned_now(tmp_path, 0, ago_s=30)
    commit(cluster, stream, "q", 0, [b"a"], **own)
    planned_now(tmp_path, 0, ago_s=20)
    with pytest.raises(ReplayDiffers):
        commit(cluster, stream, "q", 0, [b"b"], **own)
    assert values(cluster, stream) == [b"a"]


@pytest.mark.parametrize("small", ["1", "1k"])
def test_a_batch_that_another_driver_publishes_first_is_compared(
    cluster: ThreadedCluster, stream: str, small: str
) -> None:
    """Between this driver's look at the stream and its publishing, which then changes nothing."""
    create(cluster, stream)
    given = {"smallPartBytes": small}
    writer, messages = micro_batch(cluster, stream, "q", 0, [b"a", b"b"], **given)
    assert isinstance(writer, OnceStreamWriter)
    step = writer.sink.once.identity.of_batch("q", 0)
    late = writer.sink.kept(step, in_order(stream, messages))
    assert late.foreseen()
    commit(cluster, stream, "q", 0, [b"a"], **given)
    before = ledgers(cluster)
    assert not late.publish(), "it is decided anew"
    assert ledgers(cluster) == before
    with pytest.raises(ReplayDiffers, match="now has 2"):
        writer.commit(messages, 0)
    assert values(cluster, stream) == [b"a"]


def test_few_rows_of_a_batch_that_was_published_meanwhile_are_compared(cluster: ThreadedCluster, stream: str) -> None:
    """The tasks of both drivers began before either published, and their rows are in their messages."""
    create(cluster, stream)
    runs = [micro_batch(cluster, stream, "q", 0, [one], smallPartBytes="1k") for one in (b"a", b"a", b"b")]
    for writer, messages in runs[:2]:
        writer.commit(messages, 0)
    with pytest.raises(ReplayDiffers, match="as many, but not the same ones"):
        runs[2][0].commit(runs[2][1], 0)
    assert values(cluster, stream) == [b"a"]


def test_keep_accepts_a_batch_with_other_rows(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    commit(cluster, stream, "q", 0, [b"a"])
    commit(cluster, stream, "q", 0, [b"b", b"c"], onReplayDiffers="keep")
    commit(cluster, stream, "q", 1, [b"d"], onReplayDiffers="keep")
    assert values(cluster, stream) == [b"a", b"d"]


def test_truncated_rows_are_compared_by_their_number(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    commit(cluster, stream, "q", 0, [b"a", b"b"])
    with sync.connect(cluster.uri) as client:
        client.namespace().truncate(stream_name(stream).stream, before=1)
    commit(cluster, stream, "q", 0, [b"c", b"d"])
    with pytest.raises(ReplayDiffers, match="now has 3"):
        commit(cluster, stream, "q", 0, [b"a", b"b", b"c"])


def test_two_drivers_with_one_checkpoint_publish_a_batch_once(
    cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """The tasks of both wrote, and the second driver finds the batch published."""
    create(cluster, stream)
    planned_now(tmp_path, 0)
    own = {"checkpointlocation": str(tmp_path)}
    runs = [micro_batch(cluster, stream, "q", 0, [b"%d" % n], [b"x"], **own) for n in range(2)]
    with task(1, query="q", number=0):
        runs[1][1][1] = streaming(cluster, stream, **own).write(iter([]))
    for writer, messages in runs:
        writer.commit(messages, 0)
    assert values(cluster, stream) == [b"0", b"x"]


def test_the_planning_time_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    before = time.time()
    planned_now(tmp_path, 7)
    found = planned_at(str(tmp_path), 7)
    assert before - 0.01 <= found / 1e6 <= time.time()
    assert planned_at(str(tmp_path), 8) == 0
    assert planned_at("", 7) == 0
    for text in ("", "v1", "v1\nno json", "v1\n[]", 'v1\n{"batchTimestampMs": "x"}', 'v1\n{"batchTimestampMs": 0}'):
        (tmp_path / "offsets" / "9").write_text(text)
        assert planned_at(str(tmp_path), 9) == 0, text
    for same in ("/a/b", "file:/a/b", "file:///a/b/", " /a/b "):
        assert local_path(same) == "/a/b"
    for elsewhere in ("", "hdfs:/a/b", "s3a://a/b"):
        assert local_path(elsewhere) == ""


def test_a_tally_separates_neighbouring_fields() -> None:
    rows = [("a", "b"), ("ab", ""), ("", "ab"), ("ab", None), ("b", "a")]
    arrays = [[pa.array([part], pa.string()) for part in row] for row in rows]
    sums = {tally(pa.RecordBatch.from_arrays(columns, names=["value", "key"])) for columns in arrays}
    assert len(sums) == len(rows)
