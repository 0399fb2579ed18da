"""Delays double up to the longest, begin again after a success, and spread where several fail together."""

from __future__ import annotations

import random

from buckram.core import backoff
from buckram.core.backoff import Backoff, Delays


def test_delays_double_and_begin_again() -> None:
    delays = Delays(Backoff(0.5, 3.0))
    assert [delays.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    delays.reset()
    assert (delays.next_s, delays.take(), delays.next_s) == (0.5, 0.5, 1.0)


def test_a_random_part_spreads_without_changing_the_course() -> None:
    spread = [Delays(Backoff(1.0, 1.0), random.Random(seed)).take() for seed in range(200)]
    assert min(spread) >= 0.5
    assert max(spread) < 1.5
    assert max(spread) - min(spread) > 0.8


def test_each_policy_begins_before_its_longest_delay() -> None:
    policies = {name: value for name, value in vars(backoff).items() if isinstance(value, Backoff)}
    assert len(policies) >= 10
    for name, policy in policies.items():
        assert 0 < policy.first_s < policy.most_s, name
