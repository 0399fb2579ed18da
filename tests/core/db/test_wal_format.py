"""The index of a write-ahead log, as we write it, against what SQLite reads and writes."""

from __future__ import annotations

import random

import pytest

from buckram.core.db.wal_format import (
    FRAME_BYTES,
    REGION_BYTES,
    BadIndex,
    IndexHeader,
    add_frames,
    backfilled,
    encode_index_header,
    frame_at,
    frame_header,
    frame_of,
    log_header,
    parse_frame_header,
    read_index_header,
    regions_for,
)

_FIRST, _OTHERS = 4062, 4096


def _look(regions: list[memoryview], page: int, last: int) -> int:
    """The newest frame of a page up to `last`, found as SQLite finds it; 0 if there is none."""
    found = 0
    for number, region in enumerate(regions):
        before = 0 if number == 0 else _FIRST + (number - 1) * _OTHERS
        numbers = region[136 if number == 0 else 0 : REGION_BYTES // 2].cast("I")
        slots = region[REGION_BYTES // 2 :].cast("H")
        slot = page * 383 % 8192
        while slots[slot]:
            frame = slots[slot] + before
            if frame <= last and numbers[slots[slot] - 1] == page:
                found = max(found, frame)
            slot = (slot + 1) % 8192
    return found


def test_places_of_frames() -> None:
    assert frame_at(1) == 32
    assert frame_at(3) == 32 + 2 * FRAME_BYTES
    assert [frame_of(at) for at in (0, 32, 33, 32 + FRAME_BYTES)] == [None, 1, None, 2]
    assert parse_frame_header(frame_header(7, 9, b"saltsalt")) == (7, 9)
    assert len(log_header(b"saltsalt")) == 32
    assert [regions_for(frame) for frame in (1, _FIRST, _FIRST + 1, _FIRST + _OTHERS, _FIRST + _OTHERS + 1)] == [
        *(1, 1, 2, 2, 3),
    ]


def test_a_header_is_read_as_it_was_written_and_a_torn_one_is_not() -> None:
    region = memoryview(bytearray(REGION_BYTES))
    with pytest.raises(BadIndex):
        read_index_header(region)
    header = IndexHeader(3, 17, 9, b"checksum", b"saltsalt")
    raw = encode_index_header(header, 0)
    region[48:96] = raw
    with pytest.raises(BadIndex):
        read_index_header(region)
    region[:48] = raw
    assert read_index_header(region) == header
    assert backfilled(region) == 0
    region[20] ^= 1
    region[68] ^= 1
    with pytest.raises(BadIndex):
        read_index_header(region)


def test_every_page_is_found_in_its_newest_frame_across_regions() -> None:
    regions = [memoryview(bytearray(REGION_BYTES)) for _ in range(4)]
    rng = random.Random(7)
    newest: dict[int, int] = {}
    at_half: dict[int, int] = {}
    frame, half = 1, 6000
    while frame < 12_000:
        pages = [rng.randrange(1, 3000) for _ in range(rng.randrange(1, 400))]
        add_frames(regions, frame, pages)
        for number, page in enumerate(pages, frame):
            newest[page] = number
            if number <= half:
                at_half[page] = number
        frame += len(pages)
    assert {page: _look(regions, page, frame) for page in newest} == newest
    assert {page: _look(regions, page, half) for page in at_half} == at_half


def test_what_a_rolled_back_transaction_left_is_not_found() -> None:
    regions = [memoryview(bytearray(REGION_BYTES))]
    add_frames(regions, 1, [5, 6])
    add_frames(regions, 3, [7, 5, 8])  # rolled back: the header never says so
    add_frames(regions, 3, [9])
    assert [_look(regions, page, 3) for page in (5, 6, 7, 8, 9)] == [1, 2, 0, 0, 3]
    for number in range(5):  # If its entries stayed, the table would be full some day.
        add_frames(regions, 4, range(100 + number, 200 + number))
    slots = regions[0][REGION_BYTES // 2 :].cast("H")
    assert sum(slot > 0 for slot in slots) == 103
    add_frames(regions, 1, [4])  # The log began anew.
    assert [_look(regions, page, 5) for page in (4, 5, 6, 9)] == [1, 0, 0, 0]
