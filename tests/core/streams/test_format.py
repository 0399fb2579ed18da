"""The entry format: vectors of our own, round trips, and bytes from an enemy."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.streams.records.batch import Batch, Record, decode
from buckram.core.streams.records.codecs import CODECS
from buckram.core.streams.records.record_format import (
    HEADER_SIZE,
    MARK,
    NO_MAX,
    NO_MIN,
    NO_TXID,
    Columns,
    encode,
    encode_plain,
    parse_header,
)
from buckram.errors import MalformedBatch, UnknownBatchVersion

PLAIN = (
    "5342010000000000" "02000000" "18000000" "0700000000000000" "40420f0000000000" "0000000000000080"
    "40420f0000000000" "40420f0000000000" "ffffffffffffffff"
    "00000000" "01000000" "03000000" "00000000" "6162630000000000"
)  # fmt: skip
FULL = (
    "5342010000007f00" "02000000" "c0000000" "0000000000000000" "0a00000000000000" "0500000000000000"
    "0300000000000000" "0a00000000000000" "0400000000000000"
    "0100000000000000" "000000000100000001000000" "00000000" "7600000000000000"
    "0200000000000000" "000000000000000001000000" "00000000" "6b00000000000000"
    "000000000100000001000000" "00000000"
    "0000000001000000" "6800000000000000" "0000000001000000" "3100000000000000"
    "03000000000000000a00000000000000" "05000000000000000000000000000080"
    "0100000000000000" "0000000001000000" "7000000000000000" "00000000ffffffff" "09000000000000000000000000000000"
)  # fmt: skip


def batch(payload: bytes, base: int = 0) -> Batch:
    found = decode(payload, base)
    assert isinstance(found, Batch)
    return found


def full_columns() -> Columns:
    return Columns(
        [b"v", None], [None, b"k"], [(("h", b"1"),), ()], [3, None], [5, NO_TXID], ["p", None], [9, 0], size=3
    )


def test_vector_of_plain_values() -> None:
    payload, header = encode(Columns([b"a", b"bc"], size=3), first=7, append_time=1_000_000)
    # value column: offsets 0, 1, 3 padded to 16 bytes, then "abc" padded to 8
    assert payload.hex() == PLAIN
    assert header == parse_header(payload)
    assert batch(payload, 100).records() == [
        Record(107, b"a", None, (), 1_000_000, 1_000_000, None),
        Record(108, b"bc", None, (), 1_000_000, 1_000_000, None),
    ]


def test_vector_of_all_columns() -> None:
    payload, header = encode(full_columns(), first=0, append_time=10, last_txid=5, snapshot=4)
    assert payload.hex() == FULL
    assert len(payload) == HEADER_SIZE + header.body_size
    assert batch(payload).records() == [
        Record(0, b"v", None, (("h", b"1"),), 3, 10, 5, "p", 9),
        Record(1, None, b"k", (), 10, 10, None),
    ]


def test_mark_and_snapshot_have_no_records() -> None:
    payload = encode_plain(MARK, b"", first=12, append_time=5)
    header = decode(payload, 0)
    assert not isinstance(header, Batch)
    assert (header.kind, header.first, header.records) == (MARK, 12, 0)
    assert (header.min_timestamp, header.max_timestamp) == (NO_MIN, NO_MAX)


def test_timestamps_in_headers_add_up_over_the_segment() -> None:
    _, one = encode(Columns([b""], timestamps=[50]), first=0, append_time=100)
    _, two = encode(Columns([b""]), first=1, append_time=101, lowest=one.min_timestamp, highest=one.max_timestamp)
    assert (two.min_timestamp, two.max_timestamp) == (50, 101)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_compression_keeps_every_column(codec: str) -> None:
    columns = full_columns()
    columns.extend(Columns([b"x" * 10_000], size=10_000))
    plain, _ = encode(columns, first=0, append_time=1)
    packed, _ = encode(columns, first=0, append_time=1, compression=CODECS[codec])
    assert batch(packed).records() == batch(plain).records()
    assert codec == "none" or len(packed) < len(plain) / 10


def test_incompressible_is_stored_as_it_is() -> None:
    payload, _ = encode(Columns([bytes(range(32))], size=32), first=0, append_time=1, compression=CODECS["zstd"])
    assert parse_header(payload).compression == 0


def test_null_and_empty_are_different() -> None:
    payload, _ = encode(Columns([None, b"", None, b"x"], [b"", None, b"k", None]), first=0, append_time=1)
    assert batch(payload).values() == [None, b"", None, b"x"]
    assert batch(payload).keys() == [b"", None, b"k", None]


def test_parts_of_a_batch() -> None:
    payload, _ = encode(Columns([b"%d" % i for i in range(20)], [None if i % 3 else b"k" for i in range(20)]),
                        first=5, append_time=1)  # fmt: skip
    whole = batch(payload, 1000)
    part = whole.between(1008, 1011)
    assert [(r.offset, r.value) for r in part] == [(1008, b"3"), (1009, b"4"), (1010, b"5")]
    assert part.keys() == [b"k", None, None]
    assert len(whole.between(0)) == 20
    assert len(whole.between(2000)) == 0
    assert len(whole.between(1010, 1010)) == 0
    assert part.between(1009).first_offset == 1009
    before = whole.append_time
    assert whole.clamped(7, 9).append_time == 7
    assert whole.append_time == before, "a batch that others hold, too, stays as it is"


blobs = st.binary(max_size=20)
rows = st.lists(
    st.tuples(
        st.none() | blobs, st.none() | blobs, st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple),
        st.none() | st.integers(-(2**62), 2**62), st.integers(0, 2**62), st.none() | st.sampled_from(["a", "b", "ä"]),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@given(rows, st.sampled_from(sorted(CODECS.values())), st.sets(st.integers(1, 5)), st.integers(0, 2**40))
def test_round_trip(rows: list, codec: int, used: set[int], first: int) -> None:
    columns = Columns([row[0] for row in rows])
    columns.keys = [row[1] for row in rows] if 1 in used else None
    columns.headers = [row[2] for row in rows] if 2 in used else None
    columns.timestamps = [row[3] for row in rows] if 3 in used else None
    columns.txids = [row[4] for row in rows] if 4 in used else None
    columns.producers = [row[5] for row in rows] if 5 in used and any(row[5] for row in rows) else None
    columns.sequences = list(range(len(rows))) if columns.producers else None
    payload, _ = encode(columns, first=first, append_time=77, compression=codec)
    for i, record in enumerate(batch(payload, 3)):
        value, key, headers, time, txid, producer = rows[i]
        assert record.offset == 3 + first + i
        assert record.value == value
        assert record.key == (key if 1 in used else None)
        assert record.headers == (headers if 2 in used else ())
        assert record.timestamp == (time if 3 in used and time is not None else 77)
        assert record.txid == (txid if 4 in used else None)
        assert record.producer == (producer if columns.producers else None)


@given(st.data())
@settings(max_examples=300)
def test_damaged_bytes_never_leave_their_bounds(data: st.DataObject) -> None:
    """A flipped or cut entry is refused, or decodes to as many records as it says; nothing else happens."""
    codec = data.draw(st.sampled_from([0, 1, 2]))
    columns = full_columns()
    columns.extend(Columns([b"abc" * 20], size=60))
    good = bytearray(encode(columns, first=0, append_time=1, compression=codec)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    for payload in (bytes(good), cut):
        try:
            found = decode(payload, 0)
        except MalformedBatch:
            continue
        if isinstance(found, Batch):
            try:
                assert len(found.records()) == found.header.records
            except MalformedBatch:
                continue  # a name that is not UTF-8 shows when it is asked for


def test_what_is_refused_and_why() -> None:
    good = encode(Columns([b"abc"], size=3), first=0, append_time=1)[0]
    with pytest.raises(MalformedBatch, match="no stream entry"):
        parse_header(good[:10])
    with pytest.raises(MalformedBatch, match="not written as a stream"):
        parse_header(b"x" + good[1:])
    with pytest.raises(UnknownBatchVersion, match="newer"):
        parse_header(good[:2] + b"\x09" + good[3:])
    with pytest.raises(UnknownBatchVersion, match="columns"):
        parse_header(good[:6] + b"\x80" + good[7:])
    huge = good[:8] + struct.pack("<II", 2**31, 2**31) + good[16:]
    with pytest.raises(MalformedBatch, match="out of bounds"):
        parse_header(huge)
    with pytest.raises(MalformedBatch, match="bytes are left"):
        decode(good[:12] + struct.pack("<I", 32) + good[16:] + bytes(16), 0)
