"""Parts of history give entries back byte for byte, whatever columns they have, and nothing that was changed."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.codecs import NONE, ZSTD
from buckram.core.streams.records.record_format import (
    IDLE,
    MARK,
    NO_TXID,
    SNAPSHOT,
    Columns,
    encode,
    encode_plain,
)
from buckram.errors import MalformedBatch
from buckram.streams.shared.arrow_batches import to_arrow
from buckram.streams.shared.history_parts import LoadedPart, build_part, describe_part, difference

BASE = 1000
SUMMARY = Summary(1, 0, 0, 50, 60, 0, 0, NO_TXID, -1)
SHORT = st.binary(max_size=12)
TIMES = st.integers(-(2**50), 2**50)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Records of an entry, with any of the columns."""
    count = draw(st.integers(1, 9))

    def one(item: st.SearchStrategy[object]) -> list[object] | None:
        return draw(st.none() | st.lists(item, min_size=count, max_size=count))

    values = draw(st.lists(st.none() | SHORT, min_size=count, max_size=count))
    producers = one(st.none() | st.sampled_from(["p", "q", "né"]))
    sequences = None
    if producers is not None:
        if not any(producers):
            producers = None
        else:
            sequences = [draw(st.integers(0, 2**40)) if name else 0 for name in producers]
    headers = one(st.lists(st.tuples(st.text(max_size=3).filter(lambda t: t.isprintable()), SHORT), max_size=3))
    return Columns(
        values,
        one(st.none() | SHORT),
        None if headers is None else [tuple(row) for row in headers],  # type: ignore[arg-type, call-overload]
        one(st.none() | TIMES),
        one(st.integers(0, 2**60) | st.just(NO_TXID)),
        producers,
        sequences,
    )  # type: ignore[arg-type]


def entries(parts: list[Columns], compression: int) -> list[bytes]:
    """Entries with these records, and between them such as have none."""
    found, first = [encode_plain(SNAPSHOT, b"the producers' table", first=0, append_time=50)], 0
    for place, records in enumerate(parts):
        entry, _ = encode(records, first=first, append_time=45 + place, last_txid=place, compression=compression)
        first += len(records)
        found += [entry, encode_plain(IDLE if place % 2 else MARK, b"", first=first, append_time=45 + place)]
    return found


@settings(max_examples=soak(80, 30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(columns(), min_size=1, max_size=4), st.integers(0, 5), st.sampled_from([NONE, ZSTD]))
def test_entries_come_back(parts: list[Columns], first_entry: int, compression: int) -> None:
    payloads = entries(parts, compression)
    data, records = build_part(payloads, first_entry, BASE, SUMMARY)
    loaded = LoadedPart(describe_part("f", data, payloads, first_entry, records), data)
    assert difference(payloads, loaded) == ""
    for entry, payload in enumerate(payloads, first_entry):
        again, was = decode(loaded.payload(entry), BASE), decode(payload, BASE)
        if isinstance(was, Batch):
            assert isinstance(again, Batch)
            assert again.records() == was.records()
            if compression == NONE:
                assert loaded.payload(entry) == payload
        else:
            assert loaded.payload(entry) == payload


@settings(max_examples=soak(40, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(columns(), min_size=1, max_size=4), st.integers(0, 5), st.integers(0, 4))
def test_batches_of_a_part_are_those_of_its_entries(parts: list[Columns], first_entry: int, cut: int) -> None:
    payloads = entries(parts, NONE)
    data, records = build_part(payloads, first_entry, BASE, SUMMARY)
    loaded = LoadedPart(describe_part("f", data, payloads, first_entry, records), data)
    for entry, payload in enumerate(payloads, first_entry):
        found, was = loaded.decoded(entry, BASE, 7), decode(payload, BASE, 7, entry)
        if not isinstance(was, Batch):
            assert found == was
            continue
        assert isinstance(found, Batch)
        assert found.records() == was.records()
        assert to_arrow(found).equals(to_arrow(was))
        assert (found.ledger_id, found.entry_id, found.payload_bytes) == (7, entry, len(payload))
        middle = was.first_offset + cut
        for part in ("between", "clamped"):
            assert (
                getattr(found, part)(middle, middle + 2).records() == getattr(was, part)(middle, middle + 2).records()
            )


def test_values_of_a_part_are_not_copied() -> None:
    payloads = [encode(Columns([b"a", b"bc"]), first=2 * at, append_time=50)[0] for at in range(2)]
    data, records = build_part(payloads, 0, BASE, SUMMARY)
    loaded = LoadedPart(describe_part("f", data, payloads, 0, records), data)
    first, second = (loaded.decoded(entry, BASE, 7) for entry in range(2))
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert first.value_column.data.obj is second.value_column.data.obj


def test_the_file_is_a_table_for_every_engine() -> None:
    records = Columns([b"a", None], [b"k", None], None, [7, None], [5, NO_TXID], ["p", None], [3, 0])
    payloads = [encode(records, first=0, append_time=45)[0]]
    data, _ = build_part(payloads, 0, BASE, SUMMARY)
    table = pq.read_table(pa.BufferReader(data))
    assert table.column("offset").to_pylist() == [BASE, BASE + 1]
    assert table.column("value").to_pylist() == [b"a", None]
    assert table.column("txid").to_pylist() == [5, None]
    assert table.column("sequence").to_pylist() == [3, None]
    # Append times are as readers see them: within the bounds of the segment's row.
    assert [int(time.timestamp() * 1e6) for time in table.column("append_time").to_pylist()] == [50, 50]
    assert [int(time.timestamp() * 1e6) for time in table.column("timestamp").to_pylist()] == [7, 45]


@pytest.mark.parametrize("place", [0, 30, -1])
def test_changed_bytes_are_refused(place: int) -> None:
    payloads = entries([Columns([b"value" * 20])], NONE)
    data, records = build_part(payloads, 0, BASE, SUMMARY)
    part = describe_part("f", data, payloads, 0, records)
    spoilt = bytearray(data)
    spoilt[place] ^= 1
    with pytest.raises(MalformedBatch, match="f "):
        LoadedPart(part, bytes(spoilt))


def test_a_difference_is_told() -> None:
    payloads = entries([Columns([b"one"])], NONE)
    data, records = build_part(payloads, 0, BASE, SUMMARY)
    loaded = LoadedPart(describe_part("f", data, payloads, 0, records), data)
    assert "entry 1 " in difference(entries([Columns([b"two"])], NONE), loaded)
    assert "3 entries" in difference(payloads[:2], loaded)


def test_a_file_without_the_entries_is_no_part() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [b"x"]}), sink)
    data = sink.getvalue().to_pybytes()
    payloads = entries([Columns([b"x"])], NONE)
    with pytest.raises(MalformedBatch, match="no part of history"):
        LoadedPart(describe_part("f", data, payloads, 0, 1), data)
