"""Arrow record batches become entries and read back equal."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.record_format import NO_MAX, NO_MIN
from buckram.errors import InvalidArgument, RecordTooLarge
from buckram.namespace import Namespace

pa = pytest.importorskip("pyarrow")

from buckram.streams.write.arrow_write import ENTRY_BYTES, Rows  # noqa: E402

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
UTC = pa.timestamp("us", "UTC")
Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


def entries(batch: pa.RecordBatch, *, now: int = 5, limit: int = 1 << 22) -> list[bytes]:
    done, bounds = 0, (NO_MIN, NO_MAX)

    def encode(rows: Rows, start: int, stop: int) -> bytes:
        nonlocal done, bounds
        payload, header = rows.encode(start, stop, first=done, lowest=bounds[0], highest=bounds[1], compression=0)
        done, bounds = done + header.records, (header.min_timestamp, header.max_timestamp)
        return payload

    groups = list(Rows("s", batch, now).entries(encode, limit, 1 << 22))
    return [entry for group in groups for entry in group]


def rows_of(found: list[bytes]) -> list[Row]:
    rows: list[Row] = []
    for entry in found:
        batch = decode(entry, 0)
        assert isinstance(batch, Batch)
        assert batch.first_offset == len(rows)
        rows += [(r.value, r.key, r.headers, r.timestamp) for r in batch.records()]
        times = [row[3] for row in rows]
        assert (batch.header.min_timestamp, batch.header.max_timestamp) == (min(times), max(times))
    return rows


pairs = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=5)), max_size=3)
record = st.tuples(
    st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=9), st.none() | pairs,
    st.none() | st.integers(-(2**40), 2**50),
)  # fmt: skip


@settings(max_examples=soak(150, 50), deadline=None)
@given(st.lists(record, min_size=1, max_size=60), st.integers(0, 20), st.integers(0, 20))
def test_record_batches_read_back_equal_for_any_slice(records: list[Any], skip: int, drop: int) -> None:
    skip = min(skip, len(records) - 1)
    drop = min(drop, len(records) - skip - 1)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([r[0] for r in records], pa.binary()), pa.array([r[1] for r in records], pa.binary()),
            pa.array([r[2] and [{"key": k, "value": v} for k, v in r[2]] for r in records], pa.list_(HEADER)),
            pa.array([r[3] for r in records], UTC),
        ],
        names=["value", "key", "headers", "timestamp"],
    )  # fmt: skip
    wanted = records[skip : len(records) - drop]
    found = rows_of(entries(batch.slice(skip, len(wanted))))
    assert found == [(v, k, tuple(h or ()), 5 if t is None else t) for v, k, h, t in wanted]


def test_a_record_batch_is_cut_into_entries_of_bounded_size() -> None:
    rng = random.Random(7)
    values = [rng.randbytes(rng.choice((0, 10, 1000, 30_000))) for _ in range(5_000)]
    values[77] = bytes(3 * ENTRY_BYTES)
    keys = [b"k%d" % n for n in range(len(values))]
    made = entries(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"]))
    assert [(row[0], row[1]) for row in rows_of(made)] == list(zip(values, keys, strict=True))
    sizes = sorted(map(len, made))
    assert sizes[-1] > 3 * ENTRY_BYTES > ENTRY_BYTES + 1000 > sizes[-2]
    assert len(made) < 1.3 * sum(map(len, values)) / ENTRY_BYTES


def test_strings_and_large_columns() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary()):
        given = pa.array(["", "ä", None, "z"], pa.string())
        column = given.cast(pa.large_string() if kind == pa.large_string() else pa.string())
        column = column.cast(kind) if kind != pa.large_binary() else given.cast(pa.binary()).cast(kind)
        found = rows_of(entries(pa.RecordBatch.from_arrays([column], names=["value"])))
        assert [row[0] for row in found] == [b"", "ä".encode(), None, b"z"]


def test_bad_rows_are_named() -> None:
    values = pa.array([b"x", bytes(2000)])
    with pytest.raises(RecordTooLarge, match="2000 bytes is over the limit of 1000"):
        entries(pa.RecordBatch.from_arrays([values], names=["value"]), limit=1000)
    for pair, what in (({"key": None, "value": b"x"}, "key"), ({"key": "x", "value": None}, "value")):
        headers = pa.array([None, [pair]], pa.list_(HEADER))
        with pytest.raises(InvalidArgument, match=f"without a {what}"):
            entries(pa.RecordBatch.from_arrays([values, headers], names=["value", "headers"]))
    late = pa.array([0, 2**62 + 1], UTC)
    with pytest.raises(InvalidArgument, match="timestamp"):
        entries(pa.RecordBatch.from_arrays([values, late], names=["value", "timestamp"]))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["k"]}, "value is missing: there are key"), ({"value": [1]}, "value is int64: needs binary or string"),
        ({"value": ["v"], "key": [1.5]}, "key is double"), ({"value": ["v"], "timestamp": [7]}, "timestamp is int64"),
        ({"value": ["v"], "headers": ["x"]}, "headers is string: needs a list"),
        ({"value": ["v"], "headers": [["x"]]}, "headers is list"),
        ({"value": ["v"], "headers": pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))}, "headers is map"),
        ({"value": ["v"], "timestamp": pa.array([2**62], pa.timestamp("s"))}, "timestamp: .*out of bounds"),
    ],
)  # fmt: skip
def test_a_column_of_a_wrong_type_is_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"stream s: column {said}"):
        entries(pa.RecordBatch.from_pydict(columns))


def test_a_column_that_comes_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(InvalidArgument, match="two columns value"):
        entries(twice)


def test_times_finer_than_a_microsecond_are_cut_down() -> None:
    fine = pa.array([1_500_001, None, -1], pa.timestamp("ns", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b", b"c"]), fine], names=["value", "timestamp"])
    assert [row[3] for row in rows_of(entries(batch))] in ([1500, 5, -1], [1500, 5, 0])


async def test_a_bulk_step_from_arrow(ns: Namespace) -> None:
    await ns.create("s", compression="none")
    step = await ns.bulk("s", application="arrow", version=0)
    ledger = await step.create_ledger({"note": b"from a test"})
    assert await ledger.append_arrow(pa.RecordBatch.from_pydict({"value": [b"%d" % n for n in range(9_000)]})) == 9_000
    assert await ledger.append_arrow(pa.RecordBatch.from_pydict({"value": ["x"], "key": ["k"]})) == 9_001
    assert await ledger.append_arrow(pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})) == 9_001
    await step.publish([await ledger.close()])
    records = [record async for record in ns.read("s")]
    assert [record.offset for record in records] == list(range(9_001))
    assert records[8_999].value == b"8999"
    assert (records[9_000].value, records[9_000].key) == (b"x", b"k")
