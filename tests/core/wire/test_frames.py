"""Cutting a stream into packets: any chunking, the limit, linear time."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge, frame

LIMIT = 5 * 1024 * 1024


def feed(chunks: ChunkBuffer, chunk: bytes) -> list[bytes]:
    """The packets, without their prefix, that this chunk completes."""
    packets, offset = [], 0
    buffer = chunks.push(chunk)
    while end := chunks.next_frame(buffer, offset):
        packets.append(buffer[offset + PREFIX_BYTES : end])
        offset = end
    chunks.keep(buffer, offset)
    return packets


@given(st.lists(st.binary(max_size=50), max_size=12), st.data())
def test_any_chunking_gives_the_same_packets(packets: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(packet) for packet in packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    chunks = ChunkBuffer(LIMIT)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += feed(chunks, stream[start:end])
    assert found == packets


def test_the_limit_counts_the_prefix() -> None:
    chunks = ChunkBuffer(LIMIT)
    assert feed(chunks, struct.pack(">I", LIMIT - 4)) == []
    assert len(feed(chunks, bytes(LIMIT - 4))[0]) == 5_242_876
    for size in (LIMIT - 3, 2**32 - 1):
        with pytest.raises(FrameTooLarge) as caught:
            feed(ChunkBuffer(LIMIT), struct.pack(">I", size))
        assert caught.value.limit == LIMIT


def test_the_limit_is_seen_when_the_prefix_comes_in_pieces() -> None:
    chunks = ChunkBuffer(100)
    assert feed(chunks, b"\0") == []
    assert feed(chunks, b"\0\0") == []
    with pytest.raises(FrameTooLarge):
        feed(chunks, b"\x61")


@pytest.mark.parametrize("seed", range(40))
def test_a_large_frame_is_received_in_its_place_or_pushed_or_both(seed: int) -> None:
    """Whoever gives bytes, in chunks of any size, through `room` where there is one or not, gets the same frames."""
    rng = random.Random(seed)
    sizes = [rng.choice((rng.randint(0, 3), rng.randint(120_000, 400_000))) for _ in range(6)]
    frames = [frame(bytes([number]) * size) for number, size in enumerate(sizes)]
    stream = b"".join(frames)
    buffer, found, at = ChunkBuffer(LIMIT), [], 0
    while at < len(stream):
        room = buffer.room() if rng.random() < 0.7 else None
        count = rng.choice((rng.randint(1, 3), rng.randint(1, 300_000), 10**6))
        if room is not None:
            assert len(room) > 0
            count = min(count, len(room), len(stream) - at)
            room[:count] = stream[at : at + count]
            whole = buffer.filled(count)
            found += [] if whole is None else [bytes(whole)]
            at += count
            continue
        chunk = stream[at : at + count]
        at += len(chunk)
        given_back, offset = buffer.push(chunk), 0
        while end := buffer.next_frame(given_back, offset):
            found.append(given_back[offset:end])
            offset = end
        buffer.keep(given_back, offset)
    assert found == frames
    assert buffer.room() is None
    assert buffer.pending_bytes == 0


def test_an_empty_packet_is_delivered() -> None:
    assert feed(ChunkBuffer(LIMIT), bytes(4)) == [b""]


def test_a_large_frame_in_small_chunks_is_joined_once() -> None:
    """Counted, not timed: until the frame is complete a push returns nothing and keeps the chunk itself."""
    buffer = ChunkBuffer(LIMIT)
    stream = frame(bytes(LIMIT - 4))
    first = buffer.push(stream[:1000])
    buffer.keep(first, 0)
    offset = 1000
    joined = []
    while offset < len(stream):
        chunk = stream[offset : offset + 1000]
        joined.append(buffer.push(chunk))
        offset += 1000
    assert [len(part) for part in joined if part] == [len(stream)]
    assert joined[-1] == stream
    assert buffer.pending_bytes == 0


def test_a_frame_in_tiny_chunks_costs_about_its_size() -> None:
    tracemalloc.start()
    try:
        chunks = ChunkBuffer(1 << 20)
        chunks.keep(chunks.push((1 << 18).to_bytes(4, "big")), 0)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range((1 << 18) // 2 - 1):
            assert chunks.push(bytes(2)) == b""
        assert tracemalloc.get_traced_memory()[0] - before < 2 * (1 << 18)
        assert len(chunks.push(bytes(2))) == (1 << 18) + 4
    finally:
        tracemalloc.stop()
