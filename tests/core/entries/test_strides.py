"""Columns of equal records."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from buckram.core.entries.strides import all_equal, count_up


@given(
    st.integers(0, 5),
    st.integers(8, 40),
    st.integers(1, 700),
    st.integers(-(2**63), 2**63 - 701),
    st.integers(0, 699),
    st.integers(0, 7),
    st.integers(1, 255),
)
def test_a_column_counts_up_only_if_every_byte_does(
    at: int, stride: int, count: int, first: int, broken: int, byte: int, change: int
) -> None:
    records = [struct.pack(">q", first + n).ljust(stride, b"x") for n in range(count)]
    data = bytearray(b"y" * at + b"".join(records))
    assert count_up(bytes(data), at, stride, count, first)
    assert not count_up(bytes(data), at, stride, count + 1, first)
    data[at + (broken % count) * stride + byte] ^= change
    assert not count_up(bytes(data), at, stride, count, first)


@given(st.integers(0, 5), st.binary(min_size=1, max_size=9), st.integers(0, 9), st.integers(1, 50), st.integers(0, 449))
def test_a_column_is_equal_only_if_every_byte_is(at: int, value: bytes, gap: int, count: int, broken: int) -> None:
    stride = len(value) + gap
    data = bytearray(b"y" * at + (value + b"-" * gap) * count)
    assert all_equal(bytes(data), at, stride, count, value)
    assert not all_equal(bytes(data), at, stride, count + 1, value)
    data[at + broken % count * stride + broken % len(value)] ^= 1
    assert not all_equal(bytes(data), at, stride, count, value)
