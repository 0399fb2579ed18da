"""Samples, and what racks had in use."""

from __future__ import annotations

import pytest

from buckram.cli.planning.history import Sample, Space, by_rack, decode_sample
from buckram.errors import MalformedRecord


def test_a_sample_comes_back_as_it_was_written() -> None:
    one = Sample(1000.5, {"b1": Space("/r1", 100, 40), "b2": Space("/r2", 100, 10)})
    assert decode_sample("x", one.encode()) == one
    assert one.bookies["b1"].used_bytes == 60


@pytest.mark.parametrize(
    "record", [b"", b"x", b"[]", b"{}", b'{"t":1,"bookies":{"b":[1]}}', b'{"t":1,"bookies":{"b":["/r",-1,0]}}', b"\xff"]
)
def test_what_is_none_is_named(record: bytes) -> None:
    with pytest.raises(MalformedRecord, match="system/usage offset 7"):
        decode_sample("system/usage offset 7", record)


def test_racks_are_those_of_the_newest_sample() -> None:
    old = Sample(0.0, {"b1": Space("/r1", 100, 90), "b2": Space("/r1", 100, 80), "gone": Space("/r9", 100, 0)})
    silent = Sample(1.0, {"b2": Space("/r1", 100, 70)})
    new = Sample(2.0, {"b1": Space("/r1", 100, 50), "b2": Space("/r2", 100, 60), "b3": Space("/r2", 100, 99)})
    found = by_rack([new, old, silent])
    assert {rack: [one.used_bytes for one in points] for rack, points in found.items()} == {
        "/r1": [10, 10, 50],  # b1 was silent once: it had what it had
        "/r2": [20, 30, 41],  # where b2 is now
    }
    assert by_rack([]) == {}
