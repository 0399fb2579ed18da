"""When a disk is slow: against its own past and against others, with hysteresis, and without flapping."""

from __future__ import annotations

import random

from buckram.core.healing.slow_disk import (
    BAD_WINDOWS,
    GOOD_WINDOWS,
    KNOWN_WINDOWS,
    MOST_GOOD_WINDOWS,
    SlowDisk,
)

FAST, SLOW, FLOOR = 0.002, 0.4, 0.05


def known(mean_s: float = FAST) -> SlowDisk:
    disk = SlowDisk(FLOOR)
    for _ in range(KNOWN_WINDOWS):
        assert not disk.window(mean_s, [])
    return disk


def windows(disk: SlowDisk, mean_s: float, others_s: list[float], wanted: bool, most: int = 2000) -> int:
    """How many windows it takes until the disk is `wanted` slow."""
    for number in range(1, most + 1):
        if disk.window(mean_s, others_s):
            assert disk.slow is wanted
            return number
    return 0


def test_a_disk_that_gets_slow_is_named_after_some_windows_with_the_reason() -> None:
    disk = known()
    assert windows(disk, SLOW, [FAST, FAST], True) == BAD_WINDOWS
    assert disk.why == "a sync of its disk takes 400 ms, against 2.0 ms before, 2.0 ms on other bookies"
    assert windows(disk, FAST, [FAST, FAST], False) == GOOD_WINDOWS
    assert disk.why == ""


def test_one_long_stall_makes_no_disk_slow() -> None:
    disk = known()
    for _ in range(100):
        assert not disk.window(SLOW, [FAST])
        assert not disk.window(SLOW, [FAST])
        assert not disk.window(FAST, [FAST])


def test_what_all_bookies_share_makes_none_of_them_slow() -> None:
    assert windows(known(), SLOW, [SLOW, SLOW * 0.8, FAST], True) == 0


def test_a_disk_that_always_was_slower_is_not_slow() -> None:
    assert windows(known(0.1), 0.15, [FAST, FAST], True) == 0


def test_a_disk_that_is_slow_from_its_start_is_found_by_the_others() -> None:
    assert windows(SlowDisk(FLOOR), SLOW, [FAST], True) == BAD_WINDOWS


def test_with_nothing_to_compare_with_no_disk_is_slow() -> None:
    disk = SlowDisk(FLOOR)
    for _ in range(100):
        assert not disk.window(SLOW, [])


def test_below_the_floor_and_with_a_floor_of_nothing_no_disk_is_slow() -> None:
    assert windows(known(FAST / 100), FLOOR * 0.9, [FAST / 100], True) == 0
    disk = SlowDisk(0.0)
    assert windows(disk, SLOW, [FAST], True) == 0


def test_what_is_slow_is_no_part_of_its_own_past() -> None:
    disk = known()
    for _ in range(5000):
        disk.window(SLOW, [FAST])
    assert disk.slow
    assert disk.past_s == FAST


def test_each_relapse_takes_twice_as_long_to_be_forgiven() -> None:
    disk, needed = known(), []
    for _ in range(9):
        windows(disk, SLOW, [FAST], True)
        needed.append(windows(disk, FAST, [FAST], False))
    assert needed == [min(GOOD_WINDOWS * 2**n, MOST_GOOD_WINDOWS) for n in range(9)]
    for _ in range(MOST_GOOD_WINDOWS + 1):  # a long calm, and it counts as the first time again
        disk.window(FAST, [FAST])
    windows(disk, SLOW, [FAST], True)
    assert windows(disk, FAST, [FAST], False) == GOOD_WINDOWS


def test_a_disk_at_the_border_does_not_flap() -> None:
    rng, disk = random.Random(3), known()
    changes = sum(disk.window(rng.choice((FAST, FLOOR, FAST * 4, SLOW)), [FAST]) for _ in range(20_000))
    assert changes < 20
