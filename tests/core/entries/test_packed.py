"""Bodies inside a packet: the same sequence as a list of them, and nothing that does not fit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.entries.packed import FrameParts, PackedBodies, total_bytes

LISTS = st.lists(st.binary(max_size=20), max_size=8) | st.integers(0, 12).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=8)
)


def wire(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(LISTS, st.integers(0, 9), st.integers(0, 9))
def test_like_a_list(bodies: list[bytes], low: int, high: int) -> None:
    for packed in (
        PackedBodies.parse(b"head" + wire(bodies), 4),
        PackedBodies.parse(b"head" + wire(bodies) + b"tail", 4, 4 + len(wire(bodies))),
        PackedBodies.of(bodies),
    ):
        assert packed is not None
        assert packed == bodies
        assert [packed[i] for i in range(len(packed))] == bodies
        assert packed[low:high] == bodies[low:high]
        assert packed.total_bytes == total_bytes(packed) == total_bytes(bodies) == len(b"".join(bodies))
        assert PackedBodies.of(packed) is packed


@given(LISTS, st.integers(0, 4))
def test_frames_give_the_entries_in_them(bodies: list[bytes], cuts: int) -> None:
    frames = [struct.pack(">i", 24 + len(body)) + bytes(range(24)) + body for body in bodies]
    parts = [b"".join(frames[:cuts]), memoryview(b"".join(frames[cuts:]))]
    sent = FrameParts(parts, len(bodies))
    packet = b"head" + b"".join(parts)
    for packed in (PackedBodies.parse_frames(packet, 4), PackedBodies.parse_frames(bytearray(packet), 4), sent):
        assert packed == bodies
        assert packed is not None
        assert packed[1:] == bodies[1:]
    assert total_bytes(sent) == len(packet) - 4
    for short in range(1, min(28, len(packet) - 4)):
        assert PackedBodies.parse_frames(packet[:-short], 4) != bodies


@given(LISTS.filter(bool), st.data())
def test_cut_anywhere_it_is_refused_or_shorter(bodies: list[bytes], data: st.DataObject) -> None:
    packet = wire(bodies)
    cut = data.draw(st.integers(0, len(packet) - 1))
    packed = PackedBodies.parse(packet[:cut], 0)
    borders = [len(wire(bodies[:i])) for i in range(len(bodies) + 1)]
    assert (packed is not None) == (cut in borders)
    if packed is not None:
        assert packed == bodies[: len(packed)]


@pytest.mark.parametrize(
    "packet",
    [
        "ffffffff",
        "00000001",
        "000000",
        "80000000",
        "0000000000000002aa",
        "00000001aaffffffff",
    ],
)
def test_sizes_that_do_not_fit(packet: str) -> None:
    assert PackedBodies.parse(bytes.fromhex(packet), 0) is None


def test_many_empty_bodies() -> None:
    packed = PackedBodies.parse(bytes(40), 0)
    assert packed == [b""] * 10
