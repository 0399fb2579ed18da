"""Headroom: who gives way, how far, and until when."""

from __future__ import annotations

import math

from buckram.core.tenants.pacing import LEAST_BYTES, TICK_S, Headroom

LARGE, SMALL = 60_000_000, 1_000_000


class Bookie:
    """Adds of a small tenant take longer the more a large one may use, which it does."""

    def __init__(self, capacity: float = 20_000_000, quiet_s: float = 0.001) -> None:
        self.headroom = Headroom[str]()
        self.capacity, self.quiet_s, self.now = capacity, quiet_s, 100.0
        self.slowest = math.inf

    @property
    def used(self) -> float:
        return min(LARGE, self.headroom.pace)

    def run(self, seconds: float, *, small: float = SMALL, large: bool = True) -> list[float]:
        """What adds of the small one took at each look."""
        took = []
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            rates = {"small": small, "large": self.used if large else 0}
            took.append(self.quiet_s * (1 + (rates["large"] / self.capacity) ** 2))
            used = {name: round(rate * TICK_S) for name, rate in rates.items() if rate or name in self.headroom}
            self.headroom.look(self.now, TICK_S, used, took[-1] if small else None)
            self.slowest = min(self.slowest, self.headroom.pace)
        return took


def test_a_large_one_gives_way_until_adds_are_quick_and_has_the_rest() -> None:
    bookie = Bookie()
    took = bookie.run(10.0)
    assert took[0] > 0.008
    late = sorted(took[100:])
    assert late[len(late) * 99 // 100] < 0.0025
    assert bookie.used > 10_000_000
    assert bookie.headroom.is_small("small")
    assert not bookie.headroom.is_small("large")


def test_of_a_slow_disk_it_is_learnt_what_adds_take_at_the_slowest_pace() -> None:
    bookie = Bookie(quiet_s=0.02)
    bookie.run(2.0)
    assert bookie.slowest == LEAST_BYTES
    took = bookie.run(8.0)
    assert bookie.used > 9_000_000
    assert sorted(took)[len(took) * 95 // 100] < 0.034


def test_nobody_is_paced_below_the_least_nor_near_a_small_one() -> None:
    bookie = Bookie(capacity=1)
    bookie.run(5.0)
    assert bookie.slowest == LEAST_BYTES
    bookie = Bookie(capacity=1)
    bookie.run(5.0, small=8_000_000)
    assert bookie.slowest >= 4 * 7_900_000
    assert bookie.headroom.is_small("small")


def test_equals_and_those_who_are_alone_are_not_paced() -> None:
    bookie = Bookie(capacity=1)
    bookie.run(2.0, small=LARGE)
    assert bookie.headroom.pace == math.inf
    bookie = Bookie(capacity=1)
    bookie.run(2.0)
    assert bookie.headroom.pace < math.inf
    bookie.run(6.0, small=0)
    assert bookie.headroom.pace == math.inf
    assert "small" not in bookie.headroom


def test_it_forgets() -> None:
    bookie = Bookie(capacity=1)
    bookie.run(1.0)
    bookie.headroom.forget()
    assert (bookie.headroom.pace, len(bookie.headroom)) == (math.inf, 0)
