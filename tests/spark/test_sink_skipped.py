"""Commits with skipped tasks, which found nothing to write, and the ledgers of steps that are not published."""

from __future__ import annotations

import pytest
from tests.spark.test_sink_parts import batch, create, ledgers, micro_batch, planned, streaming, task, values, written

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.errors import OpenSegment, StreamError
from buckram.spark.sink.transactions import Attempt, Identity, Part
from buckram.testing import ThreadedCluster


def test_nothing_is_published_if_some_tasks_were_skipped(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    writer = planned(cluster, stream)
    (one,) = written(writer, [b"x"])
    with pytest.raises(StreamError, match="run the batch again"):
        writer.commit([one, Part(Attempt(partition=1), skipped=True)])
    with pytest.raises(StreamError, match="run the batch again"):
        writer.commit([Part(Attempt(), skipped=True)])
    assert values(cluster, stream) == []


def test_a_batch_waits_if_tasks_began_under_a_live_writer(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    # The writer opens after planning, so the tasks see it, and so does the first commit.
    writer = streaming(cluster, stream)
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream_name(stream).stream) as live:
        live.append(b"live")
        with task(0, query="q", number=0):
            skipped = writer.write(iter([batch(b"x")]))
        assert isinstance(skipped, Part)
        assert skipped.skipped
        with pytest.raises(OpenSegment):
            writer.commit([skipped], 0)
    with pytest.raises(StreamError, match="run the batch again"):
        writer.commit([skipped], 0)
    writer, again = micro_batch(cluster, stream, "q", 0, [b"x"])
    writer.commit(again, 0)
    assert values(cluster, stream) == [b"live", b"x"]


def test_ledgers_of_a_run_that_came_second_are_deleted(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    before = ledgers(cluster)
    writers = [planned(cluster, stream, txnAppId="job", txnVersion="1") for _ in range(2)]
    first, second = (written(writer, [b"x"]) for writer in writers)
    writers[0].commit(first)
    writers[1].commit(second)
    writers[0].commit(first)
    assert isinstance(first[0], Part)
    assert [one for one in ledgers(cluster) if one not in before] == [first[0].ledgers[0].ledger]
    assert values(cluster, stream) == [b"x"]


def test_a_named_query_is_identified_by_its_name() -> None:
    step = Identity("ns/s", "app").of_batch("query", 3)
    assert (step.application, step.version, step.query) == ("app", 3, "query")
    assert Identity("ns/s").of_batch("query", 3).application == "query"
