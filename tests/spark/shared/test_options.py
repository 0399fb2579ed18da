"""Options of the data source and the pure functions of planning, without Spark and without a cluster."""

from __future__ import annotations

import pickle
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.spark.reading import schema

from buckram.errors import InvalidArgument
from buckram.spark.data_source import BuckramDataSource
from buckram.spark.shared import options as table
from buckram.spark.shared.columns import HEADERS, LEDGER_COLUMNS, STREAM_COLUMNS, Shape, ddl, ledger_batch
from buckram.spark.shared.options import LedgerRange, Position, some_ledgers, values
from buckram.spark.source import planning
from buckram.spark.source.planning import (
    Backlog,
    Extent,
    LedgerExtent,
    LedgerOptions,
    LedgerSlice,
    StreamOptions,
    cut_offsets,
    ledger_slices,
    pack_pieces,
    piece_bytes,
    reads_ledgers,
    resolve,
    share_limit,
    time_of,
)

MINIMAL = {"metadata": "sqlite:///x", "subscribe": "shop/orders"}


def parse(**more: str) -> StreamOptions:
    return StreamOptions.parse({**MINIMAL, **more}, "read")


# -- parsing values ---------------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    said = r"unknown option 'startingOfsets'; known here: metadata, .*subscribe.*startingOffsets"
    with pytest.raises(InvalidArgument, match=said):
        values({**MINIMAL, "startingOfsets": "latest"}, "read")


def test_option_names_ignore_case_and_spark_s_own_are_allowed() -> None:
    found = values({**MINIMAL, "STARTINGOFFSETS": "latest", "checkpointLocation": "/x", "queryName": "q"}, "stream")
    assert found["startingOffsets"] == Position("latest")


def test_an_option_of_another_role_names_its_role() -> None:
    with pytest.raises(InvalidArgument, match='"maxOffsetsPerTrigger" is for streaming reads only'):
        values({**MINIMAL, "maxOffsetsPerTrigger": "5"}, "read")
    with pytest.raises(InvalidArgument, match='"endingOffsets" is for batch reads only'):
        values({**MINIMAL, "endingOffsets": "latest"}, "stream")
    with pytest.raises(InvalidArgument, match='"subscribe" is for batch reads and streaming reads only'):
        values(MINIMAL, "write")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("startingOffsets", "middle", "earliest, latest, or JSON"),
        ("startingOffsets", '{"shop/orders": "5"}', "offsets from 0 on"),
        ("startingOffsets", '{"a/b/c": 5}', "a/b/c|b/c"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970, or JSON"),
        ("startingTimestamp", "-1", "milliseconds since 1970"),
        ("endingTimestamp", '{"a": "x"}', "milliseconds since 1970"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("maxPartitionBytes", "64 apples", "64m"),
        ("maxPartitionBytes", "0", "at least 1"),
        ("minPartitions", "0", "at least 1"),
        ("metadata", "  ", "not empty"),
    ],
)
def test_a_bad_value_names_the_option_and_what_is_needed(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f'(?s)"{name}".*({said})'):
        values({**MINIMAL, name: text}, "read")


def test_without_metadata_the_error_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUCKRAM_METADATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=f'(?s)"metadata" is missing.*{re.escape(str(tmp_path))}'):
        values({"subscribe": "s"}, "read")


def test_without_metadata_the_driver_finds_the_cluster_as_connect_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "buckram-data" / "metadata.db"
    database.parent.mkdir()
    database.touch()
    monkeypatch.delenv("BUCKRAM_METADATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert values({"subscribe": "s"}, "read")["metadata"] == f"sqlite://{database}"
    monkeypatch.setenv("BUCKRAM_METADATA", "zk://zk1:2181/ledgers")
    assert values({"subscribe": "s"}, "read")["metadata"] == "zk://zk1:2181/ledgers"
    assert values({"subscribe": "s", "metadata": "memory:x"}, "read")["metadata"] == "memory:x"


def test_sizes_are_parsed_as_spark_writes_them() -> None:
    sizes = ("1", "64m", "64MB", "64 MiB", "2g", "1kb")
    assert [table.a_size("x", text) for text in sizes] == [1, 2**26, 2**26, 2**26, 2**31, 1024]


def test_streams_and_positions() -> None:
    assert table.some_streams("subscribe", "a, shop/b,a") == ("default/a", "shop/b")
    position = table.a_position("latest")("startingOffsets", '{"a": 5, "shop/b": -2, "c": -1}')
    ends = {name: resolve(position, name, 10, 90) for name in ("default/a", "shop/b", "default/c", "default/d")}
    assert ends == {"default/a": 5, "shop/b": 10, "default/c": 90, "default/d": 90}


def test_ledgers() -> None:
    assert some_ledgers("ledgers", "all") is None
    assert some_ledgers("ledgers", "3, 5,8-12") == (LedgerRange(3, 3), LedgerRange(5, 5), LedgerRange(8, 12))
    for wrong in ("", "x", "5-3", "-1", "1,,2", str(2**63)):
        with pytest.raises(InvalidArgument, match="ledgers"):
            some_ledgers("ledgers", wrong)


def test_every_option_is_in_the_table_once_and_its_default_can_be_parsed() -> None:
    names = [option.name.lower() for option in table.OPTIONS]
    assert len(names) == len(set(names))
    for role in ("read", "stream", "write"):
        values({"metadata": "sqlite:///x"}, role)
    assert all(f"| `{option.name}` |" in table.table() for option in table.OPTIONS)


# -- options that belong together -------------------------------------------------------------------------


def test_defaults_are_those_of_kafkas_source() -> None:
    read, stream = parse(), StreamOptions.parse(MINIMAL, "stream")
    assert (read.starting, read.ending) == (Position("earliest"), Position("latest"))
    assert stream.starting == Position("latest")
    assert (read.fail_on_loss, read.headers) == (True, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a", "subscribePattern": "b.*"}, "give one of them"),
        ({"subscribe": "a", "path": "b"}, "load"),
        ({"subscribe": "a", "ledgers": "1"}, "give one of them"),
        ({}, "nothing says what to read"),
        ({"subscribe": "a", "firstEntry": "1"}, '"firstEntry" is for reading ledgers'),
        ({"ledgers": "1", "startingOffsets": "latest"}, '"startingOffsets" is for reading streams'),
    ],
)
def test_exactly_one_selector_is_allowed(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        reads_ledgers({"metadata": "x", **options})


def test_offsets_and_timestamps_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="exclude each other"):
        parse(startingOffsets="latest", startingTimestamp="5")
    with pytest.raises(InvalidArgument, match="shop/returns, which is not among"):
        parse(startingOffsets='{"shop/returns": 1}')
    assert time_of(parse(startingTimestamp="1500").starting_times, "default/a") == 1_500_000
    some = parse(startingOffsets="latest", startingTimestamp='{"shop/orders": 7}').starting_times
    assert [time_of(some, name) for name in ("shop/orders", "default/b")] == [7000, None]
    with pytest.raises(InvalidArgument, match='"endingTimestamp" names default/z, which is not among'):
        parse(endingTimestamp='{"z": 7}')


def test_all_selectors_read_the_same() -> None:
    for name in ("subscribe", "streams", "path"):
        assert StreamOptions.parse({"metadata": "x", name: "a"}, "read").streams == ("default/a",)
    assert StreamOptions.parse({"metadata": "x", "subscribePattern": "a.*"}, "read").pattern == "a.*"
    assert reads_ledgers({"metadata": "x", "ledger": "5"})
    assert LedgerOptions.parse({"metadata": "x", "ledger": "5"}).ledgers == (LedgerRange(5, 5),)


# -- columns ----------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_schema() -> None:
    source = BuckramDataSource({**MINIMAL})
    assert source.schema() == (
        "key binary, value binary, stream string, offset bigint, timestamp timestamp_ltz, append_time timestamp_ltz"
    )
    with_headers = BuckramDataSource({**MINIMAL, "includeHeaders": "true"}).schema()
    assert with_headers.endswith(", headers array<struct<key:string,value:binary>>")
    assert BuckramDataSource({"metadata": "x", "ledger": "1"}).schema() == "ledger bigint, entry bigint, value binary"
    assert ddl(LEDGER_COLUMNS) == "ledger bigint, entry bigint, value binary"


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidArgument, match='"entry" bigint: there are only key binary'):
        Shape.of(schema("value", "entry"), STREAM_COLUMNS)
    with pytest.raises(InvalidArgument, match="includeHeaders"):
        Shape.of(schema("headers"), STREAM_COLUMNS)
    with pytest.raises(InvalidArgument, match='"offset" binary'):
        Shape.of(StructType([StructField("offset", BinaryType())]), STREAM_COLUMNS)


def test_the_shape_is_exactly_the_arrow_schema_that_spark_compares_with() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    known = {**STREAM_COLUMNS, **HEADERS}
    for nullable in (True, False):
        wanted = schema(*known, nullable=nullable)
        shape = pickle.loads(pickle.dumps(Shape.of(wanted, known)))
        assert to_arrow_schema(wanted, timezone="UTC").equals(shape.arrow)


def test_entries_of_ledgers_as_arrow() -> None:
    shape = Shape.of(schema("value", "entry", "ledger", nullable=False), LEDGER_COLUMNS)
    batch = ledger_batch(shape, 5, 100, [b"a", b"", b"c"])
    assert batch.to_pydict() == {"value": [b"a", b"", b"c"], "entry": [100, 101, 102], "ledger": [5, 5, 5]}
    assert batch.schema.equals(shape.arrow)
    batch.validate(full=True)


# -- cutting ----------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 5_000), st.integers(0, 10**9), st.integers(1, 10**8))
def test_cuts_have_no_gap_or_overlap(first: int, count: int, size: int, piece: int) -> None:
    edges = cut_offsets(Extent("s", 1, first, first + count, size), piece)
    assert (edges[0], edges[-1]) == (first, first + count)
    assert all(a < b for a, b in pairwise(edges))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100)), max_size=30), st.integers(1, 200), st.integers(1, 9)
)
def test_neighbours_are_packed_in_order(sizes: list[tuple[str, int]], size: int, least: int) -> None:
    groups = pack_pieces(sizes, size, least)
    assert [at for group in groups for at in group] == list(range(len(sizes)))
    assert len(groups) >= min(least, len(sizes))
    for group in groups:
        assert len(group) == 1 or sum(sizes[at][1] for at in group) <= size


def test_partition_sizes() -> None:
    mib = 1024 * 1024
    assert piece_bytes(10_000 * mib, 64 * mib, 1, 2) == 64 * mib
    assert piece_bytes(40 * mib, 64 * mib, 1, 2) == 20 * mib  # a piece for each core
    assert piece_bytes(2 * mib, 64 * mib, 1, 2) == 4 * mib  # not worth a second task
    assert piece_bytes(2 * mib, 64 * mib, 4, 2) == mib // 2
    assert piece_bytes(10**15, 64 * mib, 1, 2) == -(-(10**15) // planning.MAX_PARTITIONS)


def test_a_limit_is_shared_in_proportion_to_waiting_records() -> None:
    assert share_limit(100, [Backlog("a", 0, 900), Backlog("b", 0, 100), Backlog("c", 5, 5)]) == {
        "a": 90,
        "b": 10,
        "c": 0,
    }
    assert share_limit(1, []) == {}


def test_a_limit_holds_over_many_streams_which_take_turns() -> None:
    """A limit that is smaller than the number of streams must hold, too."""
    many = [Backlog(f"s{n}", 0, 100) for n in range(60)]
    seen: list[str] = []
    for batch in range(6):
        found = share_limit(10, many, turn=10 * batch)
        assert sum(found.values()) == 10
        seen += [stream for stream, count in found.items() if count]
    assert sorted(seen) == sorted(b.stream for b in many)
    uneven = share_limit(10, [Backlog("a", 0, 900), *(Backlog(f"b{n}", 0, 1) for n in range(8))])
    assert sum(uneven.values()) == 10
    assert min(uneven.values()) == 1


@given(
    st.lists(st.tuples(st.integers(-1, 5_000), st.integers(0, 10_000_000)), max_size=5),
    st.integers(0, 100),
    st.none() | st.integers(0, 6_000),
    st.integers(1, 1_000_000),
)
def test_slices_of_ledgers_cover_each_wanted_entry_once(
    ledgers: list[tuple[int, int]], first: int, last: int | None, size: int
) -> None:
    extents = [LedgerExtent(n, end, length) for n, (end, length) in enumerate(ledgers)]
    cut = ledger_slices(extents, LedgerOptions("", None, first, last, size))
    found = [(s.ledger, entry) for s in cut for entry in range(s.first, s.last + 1)]
    wanted = [(e.ledger, n) for e in extents for n in range(first, e.last_entry + 1) if last is None or n <= last]
    assert found == wanted
    assert all(s.first <= s.last for s in cut)
    assert len(cut) <= planning.MAX_PARTITIONS


def test_a_big_ledger_becomes_pieces_of_the_asked_size() -> None:
    cut = ledger_slices([LedgerExtent(7, 999, 1_000_000)], LedgerOptions("", None, partition_bytes=100_000))
    assert len(cut) == 10
    assert cut[0] == LedgerSlice(7, 0, 99)


def test_spark_discovers_the_source_by_its_module_name() -> None:
    import pyspark_buckram

    assert pyspark_buckram.DefaultSource is BuckramDataSource
    assert BuckramDataSource.name() == "buckram"
