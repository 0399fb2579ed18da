"""How many bookies a load needs."""

from __future__ import annotations

import pytest

from buckram.cli.planning.sizing import Load, sizing
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import InvalidArgument

MB, TB = 10**6, 10**12
DAY = 86_400.0


def load(**more: object) -> Load:
    given: dict[str, object] = {
        "bytes_per_s": 50 * MB,
        "retention_s": 7 * DAY,
        "quorum": Quorum(3, 3, 2),
        "bookie_bytes": 4 * TB,
        "bookie_bytes_per_s": 100 * MB,
    }
    return Load(**{**given, **more})  # type: ignore[arg-type]


def needs(**more: object) -> dict[str, int]:
    return {one.what: one.bookies for one in sizing(load(**more)).needs}


def test_each_reason_asks_for_its_bookies() -> None:
    # 50 MB/s for 7 days three times are 90.7 TB: 29 disks of 3.2 TB; 150 MB/s need two bookies; E three; and one more.
    assert needs() == {"space": 30, "rate": 3, "ensemble": 4}
    found = sizing(load())
    assert found.bookies == 30
    assert found.full == pytest.approx(90.72 / 120)
    assert found.full_after_loss == pytest.approx(90.72 / 116)
    assert found.repair_s == pytest.approx(90.72e12 / 30 / (29 * 32 * 1024 * 1024))
    assert found.problems == ()


def test_a_rate_may_need_more_than_the_space() -> None:
    assert needs(retention_s=60.0, bytes_per_s=1000 * MB, lost=0) == {"space": 1, "rate": 30, "ensemble": 3}


def test_racks_are_lost_as_a_whole() -> None:
    # 29 have to stay when one of three racks goes: 43 are 15 + 14 + 14, and 44 are 15 + 15 + 14.
    assert needs(racks=3)["space"] == 44
    assert needs(racks=3, lost=2)["space"] == 87
    assert "rack:2:2" in " ".join(sizing(load(racks=3)).assumed)


def test_what_no_number_helps_against() -> None:
    assert "Qa must be at least 3" in sizing(load(lost=2)).problems[0]
    assert sizing(load(lost=1)).problems == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_s": 0},
        {"retention_s": -1.0},
        {"bookie_bytes": 0},
        {"bookie_bytes_per_s": float("inf")},
        {"fill": 0.0},
        {"fill": 1.5},
        {"racks": 2, "lost": 2},
        {"lost": -1},
    ],
)
def test_what_is_no_load_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        load(**wrong)


def test_numbers_have_an_end() -> None:
    with pytest.raises(InvalidArgument, match="larger ones"):
        sizing(load(bytes_per_s=10**15))
