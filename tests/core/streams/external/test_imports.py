"""Imports from Kafka, the pure part: ranges, what is refused, and the record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.streams.external.imports import (
    Bounds,
    KafkaImport,
    TopicIdentity,
    application,
    check_same,
    decode_kafka_import,
    encode_kafka_import,
    kafka_source,
    left,
    planned,
)
from buckram.errors import BuckramError, InvalidArgument, MalformedRecord

HERE = TopicIdentity("cluster", "orders", "id-1")
FRESH = KafkaImport(HERE)


def test_urls() -> None:
    source = kafka_source("kafka://k1:9092,k2:9092/or.ders_1-a")
    assert (source.servers, source.topic) == ("k1:9092,k2:9092", "or.ders_1-a")
    assert kafka_source(source.url) == source
    for wrong in ("kafka://k1:9092", "http://k1:9092/a", "kafka://k1/a", "kafka://k1:0/a", "kafka://k1:9092/a b", "x"):
        with pytest.raises(BuckramError, match=r"needs|Kafka's names"):
            kafka_source(wrong)


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 50), st.integers(0, 200)), max_size=6),
    st.integers(1, 300),
)
def test_ranges_take_every_offset_once_in_order(topic: dict[int, tuple[int, int]], most: int) -> None:
    bounds = {part: Bounds(first, first + count) for part, (first, count) in topic.items()}
    record, taken = FRESH, dict[int, list[int]]()
    while (record := planned(record, bounds, most)).planned:
        parts = record.parts()
        assert 0 < sum(stop - at for at, stop in parts.values()) <= most
        for part, (at, stop) in parts.items():
            taken.setdefault(part, []).extend(range(at, stop))
        record = decode_kafka_import("key", encode_kafka_import(record), record.version).done()
    assert taken == {part: list(range(*at)) for part, at in bounds.items() if at.latest > at.earliest}
    assert left(record, bounds) == 0


def test_a_range_is_shared_as_evenly_as_the_partitions_allow() -> None:
    found = planned(FRESH, {0: Bounds(0, 5), 1: Bounds(100, 1100), 2: Bounds(0, 1000)}, 105)
    assert found.parts() == {0: (0, 5), 1: (100, 150), 2: (0, 50)}
    assert left(found, {0: Bounds(0, 5), 1: Bounds(100, 1100), 2: Bounds(0, 1000), 3: Bounds(7, 9)}) == 1902


def test_a_partition_that_came_later_begins_at_its_first_offset() -> None:
    known = planned(FRESH, {0: Bounds(0, 5)}).done()
    found = planned(known, {0: Bounds(0, 5), 1: Bounds(3, 4)})
    assert (found.number, found.parts()) == (1, {1: (3, 4)})


def test_what_kafka_deleted_before_it_was_imported_is_told() -> None:
    known = planned(FRESH, {0: Bounds(0, 5)}).done()
    with pytest.raises(InvalidArgument, match=r"deleted the offsets 5 to 7 of partition 0 .*--skip-deleted"):
        planned(known, {0: Bounds(8, 10)})
    assert planned(known, {0: Bounds(8, 10)}, skip_deleted=True).parts() == {0: (8, 10)}
    assert planned(known, {0: Bounds(5, 10)}).parts() == {0: (5, 10)}
    with pytest.raises(InvalidArgument, match="partition 0 ends at offset 3, and was imported up to 5"):
        planned(known, {0: Bounds(0, 3)})
    with pytest.raises(InvalidArgument, match="has 10001 partitions, the limit of one import is 10000"):
        planned(FRESH, dict.fromkeys(range(10_001), Bounds(0, 1)))


def test_another_topic_of_that_name_is_refused() -> None:
    check_same(FRESH, HERE)
    with pytest.raises(InvalidArgument, match=r"deleted and made anew .*id-1.*id-2.*--run NAME"):
        check_same(FRESH, replace_id(HERE))


def replace_id(identity: TopicIdentity) -> TopicIdentity:
    return identity._replace(topic_id="id-2")


def test_applications_differ_by_topic_partition_and_run() -> None:
    names = {
        application(HERE, None, ""),
        application(HERE, 0, ""),
        application(HERE, 1, ""),
        application(HERE, None, "again"),
        application(HERE._replace(cluster="other"), None, ""),
    }
    assert len(names) == 5
    assert application(replace_id(HERE), None, "") in names


def test_a_record_is_read_back_or_refused() -> None:
    record = replace(planned(FRESH, {0: Bounds(0, 5), 3: Bounds(1, 1)}), version=7)
    data = encode_kafka_import(record)
    assert decode_kafka_import("key", data, 7) == record
    for wrong in (
        b"",
        b"[]",
        data.replace(b'"format":1', b'"format":2'),
        data.replace(b"[0,0,5]", b"[0,6,5]"),
        data.replace(b"[0,0,5]", b"[0,0,true]"),
        data.replace(b'"number":0', b'"number":"0"'),
    ):
        with pytest.raises(MalformedRecord, match=r"^key: "):
            decode_kafka_import("key", wrong, 7)
