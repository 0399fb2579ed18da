"""Spark's source reads offloaded segments without a bookie, however they are cut, and segments that move meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.spark.reading import batch_reader, numbered, offsets, rows, write

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.shared.metadata import StreamStore
from buckram.testing import ThreadedCluster


def offload(uri: str, stream: str, location: Path, *, delete: bool = True) -> None:
    with sync.connect(uri) as client:
        plain = client._client
        streams = StreamStore(plain.services.store)
        report = client._thread.run(lambda: offload_stream(plain, streams, stream_name(stream), to=str(location)))
        assert report.segments
        if delete:
            settings = JanitorSettings(grace_s=0, retired_s=0, orphans=False)
            client._thread.run(lambda: Janitor(plain, settings).clean())


def test_history_is_read_however_it_is_cut(cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    write(cluster.uri, stream, numbered(100), numbered(100, 100), keys=[b"k%d" % n for n in range(100)])
    before = rows(batch_reader(cluster.uri, subscribe=stream))
    offload(cluster.uri, stream, tmp_path)
    write(cluster.uri, stream, numbered(50, 200))
    for least in (1, 3, 40):
        reader = batch_reader(cluster.uri, subscribe=stream, minPartitions=least)
        parts = reader.partitions()
        assert len(parts) >= least
        found = rows(reader, parts)
        assert found[:200] == before
        assert [row["value"] for row in found] == numbered(250)
    some = '{"%s": %d}'
    both = {"startingOffsets": some % (stream, 77), "endingOffsets": some % (stream, 123)}
    assert offsets(cluster.uri, subscribe=stream, **both) == list(range(77, 123))


def test_a_segment_that_is_offloaded_after_planning(cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    write(cluster.uri, stream, numbered(60))
    reader = batch_reader(cluster.uri, subscribe=stream, minPartitions=2)
    parts = reader.partitions()
    offload(cluster.uri, stream, tmp_path)
    assert [row["value"] for row in rows(reader, parts)] == numbered(60)
