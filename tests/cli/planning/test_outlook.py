"""When racks are full, as it goes and after a change."""

from __future__ import annotations

import pytest

from buckram.cli.planning.history import Sample, Space
from buckram.cli.planning.outlook import DAY_S, Outlook, PlannedChange, outlook, svg
from buckram.errors import InvalidArgument

TB, GB = 10**12, 10**9
RATES = {"/r1": 10 * GB, "/r2": 20 * GB}
"""Of each bookie; a rack has two."""


def samples(days: int = 10, rates: dict[str, int] = RATES) -> list[Sample]:
    return [
        Sample(
            day * DAY_S,
            {
                f"{rack}-{n}": Space(rack, TB, TB - 500 * GB - rate * (day - days))
                for rack, rate in rates.items()
                for n in (1, 2)
            },
        )
        for day in range(days + 1)
    ]


def days(found: Outlook) -> dict[str, float | None]:
    return {one.rack: one.days for one in found.racks}


def test_a_full_rack_leaves_its_part_to_the_others() -> None:
    found = outlook(samples(), 0)
    assert found.known
    # r2 takes 40 GB a day and has 1000 GB: 25 days. r1 has then 1000 - 500 = 500 GB, and takes 60 GB a day: 8.33 more.
    assert days(found) == {"/r2": pytest.approx(25), "/r1": pytest.approx(25 + 500 / 60)}
    assert found.first_days == pytest.approx(25)
    assert found.days == pytest.approx(25 + 500 / 60)


def test_the_reserve_is_not_used() -> None:
    found = outlook(samples(), 100 * GB)
    assert days(found)["/r2"] == pytest.approx(800 / 40)
    assert {one.usable_bytes for one in found.racks} == {1800 * GB}


def test_more_bookies_take_their_part() -> None:
    found = outlook(samples(), 0, PlannedChange({"/r2": 2, "/r3": 2}, TB))
    # 60 GB a day over eight bookies; r2 has now four, with 3000 GB free; r3 is empty.
    assert {one.rack: round(one.per_day / GB, 3) for one in found.racks} == {"/r1": 15, "/r2": 30, "/r3": 15}
    assert days(found)["/r1"] == pytest.approx(1000 / 15)
    moved = outlook(samples(), 0, PlannedChange({"/r2": 2, "/r3": 2}, TB, rebalance=True))
    assert {one.rack: one.used_bytes for one in moved.racks} == {"/r1": 500 * GB, "/r2": TB, "/r3": 500 * GB}
    assert "old copies are rebalanced" in moved.assumed


def test_fewer_copies_fill_it_later() -> None:
    found = outlook(samples(), 0, PlannedChange(copies=0.5))
    assert days(found)["/r2"] == pytest.approx(50)


def test_what_does_not_grow_is_never_full() -> None:
    found = outlook(samples(rates={"/r1": 0, "/r2": -5 * GB}), 0)
    assert days(found) == {"/r1": None, "/r2": None}
    assert found.days is None


def test_one_that_is_full_is_full_now() -> None:
    full = [Sample(day * DAY_S, {"b": Space("/r", TB, GB * (10 - day))}) for day in range(11)]
    assert days(outlook(full, GB)) == {"/r": 0.0}


def test_a_short_history_is_told() -> None:
    found = outlook(samples()[-1:], 0)
    assert not found.known
    assert days(found) == {"/r1": None, "/r2": None}
    with pytest.raises(InvalidArgument, match="plan record"):
        outlook([], 0)
    with pytest.raises(InvalidArgument):
        outlook(samples(), 0, PlannedChange({"/r1": 1}, 0))


def test_the_picture_has_each_rack() -> None:
    text = svg(outlook([*samples(), *samples()[:1]], 0, PlannedChange({"<new>": 1}, TB)))
    assert text.startswith("<svg")
    assert text.count("stroke-dasharray") == 3
    assert "&lt;new&gt;" in text
    assert "<new>" not in text
    import xml.etree.ElementTree as Xml

    Xml.fromstring(text)
    Xml.fromstring(svg(outlook(samples()[-1:], 0)))
