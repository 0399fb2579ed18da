"""The bytes of segments: what is written is read back, and nothing else passes."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.storage.ledger_state import STATE_SIZE, StoredLedgerState, unpack_state
from buckram.core.storage.segment_format import (
    BLOCK_HEADER,
    DIR_RECORD,
    MAX_RUN_BYTES,
    PAGE,
    PAGE_DATA,
    RUN_RECORD,
    CorruptBytes,
    Trailer,
    crc,
    open_block,
    open_page,
    open_trailer,
    pack_block_header,
    pack_page,
    parse_frames,
    run_extent,
    walk_run,
)

KEY = bytes(range(20))


def add_frame(ledger: int, entry: int, lac: int = -1, payload: bytes = b"", header: int = 0x02010000) -> bytes:
    body = struct.pack(">I", header) + KEY + struct.pack(">qqqq", ledger, entry, lac, 0) + payload
    return struct.pack(">I", len(body)) + body


def block(payload: bytes, segment: int = 3, salt: int = 9, offset: int = 512, unit: int = 512) -> bytes:
    header, span = pack_block_header(segment, salt, offset, [payload], unit)
    return (header + payload).ljust(span, b"\0")


def test_checksum_is_crc32c() -> None:
    assert crc(b"123456789") == 0xE3069283


def test_a_block_has_a_fixed_form() -> None:
    data = block(b"hello")
    assert len(data) == 512
    assert data[:4] == b"BkLg"
    assert struct.unpack_from(">BxHQIIII", data, 4) == (1, 0, 3, 512, 5, 512, 9)
    assert BLOCK_HEADER == 36


@given(st.binary(max_size=2000), st.sampled_from([512, 4096]))
def test_a_block_comes_back(payload: bytes, unit: int) -> None:
    data = block(payload, unit=unit)
    found = open_block(data, 0, 3, 9, 512)
    assert found is not None
    assert (found.payload, found.span, found.offset) == (payload, len(data), 512)
    assert len(data) % unit == 0


def test_a_block_of_another_use_of_the_file_does_not_pass() -> None:
    data = block(b"x" * 100)
    assert open_block(data, 0, 3, 9, 512) is not None
    for segment, salt, offset in ((4, 9, 512), (3, 8, 512), (3, 9, 1024)):
        assert open_block(data, 0, segment, salt, offset) is None


def test_any_flipped_bit_of_header_or_payload_is_noticed() -> None:
    data = block(b"payload" * 20)
    for bit in range((BLOCK_HEADER + 140) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert open_block(bytes(damaged), 0, 3, 9, 512) is None
    assert open_block(data[:100], 0, 3, 9, 512) is None


def test_frames_become_runs_and_states() -> None:
    state = StoredLedgerState(7, KEY, fenced=True, lac=5, explicit_lac=b"p" * 36)
    frames = [add_frame(7, 0, -1, b"a"), add_frame(7, 1, 0, b"bb"), state.frame(), add_frame(7, 2, 1), add_frame(8, 3)]
    payload = b"".join(frames)
    starts = [1000 + sum(map(len, frames[:n])) for n in range(6)]
    assert parse_frames(payload, 1000) == [
        (7, 0, 2, starts[0], starts[2] - starts[0], False, 0, KEY),
        state,
        (7, 2, 1, starts[3], starts[4] - starts[3], True, 1, KEY),
        (8, 3, 1, starts[4], starts[5] - starts[4], True, -1, KEY),
    ]


def test_old_and_flagged_adds_are_adds() -> None:
    for header in (0x00000001, 0x01010000, 0x02010002, 0x02010004):
        assert len(parse_frames(add_frame(1, 0, header=header), 0)) == 1


def test_runs_are_capped() -> None:
    payload = b"".join(add_frame(1, entry, payload=bytes(1000)) for entry in range(200))
    runs = parse_frames(payload, 0)
    assert sum(run[2] for run in runs if isinstance(run, tuple)) == 200
    assert all(run[4] <= MAX_RUN_BYTES for run in runs if isinstance(run, tuple))


@pytest.mark.parametrize(
    "payload",
    [
        b"\0" * 20,
        struct.pack(">I", 1 << 30) + bytes(60),
        struct.pack(">I", 10) + bytes(60),
        struct.pack(">II", 60, 0x07000000) + bytes(56),
        struct.pack(">II", 50, 0xB0010000) + bytes(46),
    ],
)
def test_broken_frames_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptBytes):
        parse_frames(payload, 0)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_corrupt(data: bytes) -> None:
    for look in (
        lambda: parse_frames(data, 0),
        lambda: walk_run(data, 0, len(data), 1, 2, 3, 4),
        lambda: run_extent(data, 0, len(data), 1, 2, 3, 4),
        lambda: open_page(data, 1, 1),
    ):
        try:
            look()
        except CorruptBytes:
            continue
    assert open_trailer(data, 1, 1) is None


@given(
    st.builds(
        StoredLedgerState,
        st.integers(0, 2**63 - 1),
        st.binary(min_size=20, max_size=20),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.none() | st.binary(max_size=40),
        st.binary(min_size=16, max_size=16),
        st.booleans(),
    )
)
def test_states_come_back(state: StoredLedgerState) -> None:
    """What is admitted is proven, also where an earlier release wrote it, which knew no such flag."""
    assert unpack_state(state.pack()) == replace(state, proven=state.proven or state.admitted)
    assert len(state.pack()) == STATE_SIZE


def test_walking_a_run() -> None:
    frames = [add_frame(4, entry, payload=bytes([entry]) * entry) for entry in range(5)]
    data = b"".join(frames)
    assert walk_run(data, 0, len(data), 2, 4, 2, 2) == [frames[2][28:], frames[3][28:]]
    assert run_extent(data, 0, len(data), 1, 4, 1, 3) == (len(frames[0]), len(data) - len(frames[4]))
    for ledger, entry, count in ((5, 2, 1), (4, 3, 1), (4, 2, 4)):
        with pytest.raises(CorruptBytes):
            walk_run(data, 0, len(data), 2, ledger, entry, count)
        with pytest.raises(CorruptBytes):
            run_extent(data, 0, len(data), 2, ledger, entry, count)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150)), min_size=1, max_size=4),
    st.data(),
)
def test_runs_of_equal_and_mixed_sizes_are_walked_alike(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = [size for size, count in rows for _ in range(count)]
    frames = [add_frame(4, 7 + i, payload=bytes([i % 251]) * size) for i, size in enumerate(sizes)]
    skip = data.draw(st.integers(0, len(frames) - 1))
    count = data.draw(st.integers(1, len(frames) - skip))
    run = b"".join(frames)
    wanted = [one[28:] for one in frames[skip : skip + count]]
    assert walk_run(b"head" + run + b"tail", 4, 4 + len(run), skip, 4, 7 + skip, count) == wanted
    cut = sum(map(len, frames[: skip + count])) - 1
    with pytest.raises(CorruptBytes):
        walk_run(b"head" + run, 4, 4 + cut, skip, 4, 7 + skip, count)
    with pytest.raises(CorruptBytes):
        walk_run(run[:cut], 0, cut, skip, 4, 7 + skip, count)


@pytest.mark.parametrize("bad", [0, 1, 63, 64, 100, 127, 128])
def test_a_frame_with_other_ids_among_equal_ones(bad: int) -> None:
    frames = [add_frame(4, i, payload=bytes(50)) for i in range(129)]
    for wrong in (add_frame(5, bad, payload=bytes(50)), add_frame(4, bad + 1, payload=bytes(50))):
        run = b"".join([*frames[:bad], wrong, *frames[bad + 1 :]])
        with pytest.raises(CorruptBytes, match=f"entry {bad}:"):
            walk_run(run, 0, len(run), 0, 4, 0, 129)
        assert len(walk_run(run, 0, len(run), 0, 4, 0, bad)) == bad
        assert len(walk_run(run, 0, len(run), bad + 1, 4, bad + 1, 128 - bad)) == 128 - bad


def test_bytes_that_look_like_the_wanted_frame_inside_a_payload_are_not_taken_for_it() -> None:
    # All frames but the second have 100 bytes more than a header; the second holds a forged frame where entry 2 would
    # begin if all were equal.
    first = add_frame(4, 0, payload=bytes(100))
    forged = add_frame(4, 2, payload=b"forged".ljust(100))
    second = add_frame(4, 1, payload=bytes(100) + forged)
    true = add_frame(4, 2, payload=b"true".ljust(100))
    run = first + second + true
    assert run[2 * len(first) :].startswith(forged)
    assert walk_run(run, 0, len(run), 2, 4, 2, 1) == [true[28:]]


def test_pages_know_their_place() -> None:
    page = pack_page(7, 3, b"abc")
    assert len(page) == PAGE
    assert open_page(page, 7, 3) == b"abc"
    for owner, number in ((8, 3), (7, 4)):
        with pytest.raises(CorruptBytes):
            open_page(page, owner, number)
    rng = random.Random(1)
    full = pack_page(7, 3, rng.randbytes(PAGE_DATA))
    for _ in range(200):
        damaged = bytearray(full)
        damaged[rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptBytes):
            open_page(bytes(damaged), 7, 3)


def test_trailer_comes_back_and_only_for_its_segment() -> None:
    trailer = Trailer(5, 100_000, 102_400, 200, 1000, 201, 77, 1, 99, 5_000)
    data = trailer.pack()
    assert len(data) == PAGE
    assert open_trailer(data, 5, 77) == trailer
    assert open_trailer(data, 6, 77) is None
    assert open_trailer(data, 5, 78) is None
    assert open_trailer(data[:-1] + bytes([data[-1] ^ 1]), 5, 77) is None
    directories = -(-200 // (PAGE_DATA // DIR_RECORD.size))
    runs = -(-1000 // (PAGE_DATA // RUN_RECORD.size))
    states = -(-201 // (PAGE_DATA // STATE_SIZE))
    assert (trailer.first_run_page, trailer.first_state_page) == (directories, directories + runs)
    assert trailer.pages == directories + runs + states + 1
