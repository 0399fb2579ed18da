"""Buckets keep their rate whatever comes, and shares of a rate make it up exactly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from buckram.core.tenants.pacing import BURST_S, MOST_DEBT_S, Bucket, share_of


@settings(max_examples=30)
@given(st.lists(st.integers(1, 300), min_size=20, max_size=60), st.floats(100, 10_000))
def test_a_bucket_lets_its_rate_pass_and_a_burst(pieces: list[int], rate: float) -> None:
    bucket, now, passed = Bucket(rate, 0.0), 0.0, 0
    for piece in pieces:
        while (wait := bucket.wait_s(now)) > 0:
            now += wait
        bucket.take(piece)
        passed += piece
    assert passed <= rate * (now + BURST_S) + max(pieces) + 1
    if now > 1:
        assert passed >= rate * now * 0.9 - max(pieces)


def test_a_debt_is_never_longer_than_a_client_waits() -> None:
    bucket = Bucket(100.0, 0.0)
    bucket.take(1e9)
    assert 0 < bucket.wait_s(0.0) <= MOST_DEBT_S


def test_a_new_rate_leaves_a_debt_the_time_that_it_had() -> None:
    bucket = Bucket(100.0, 0.0)
    bucket.take(150.0)
    before = bucket.wait_s(0.0)
    bucket.set_rate(10.0, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(before)


@settings(max_examples=30)
@given(st.floats(1, 1e6), st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
@example(100.0, [10.0, 20.0])  # less than there is
@example(100.0, [80.0, 60.0])
def test_shares_make_up_the_quota(quota: float, wanted: list[float]) -> None:
    shares = [share_of(quota, one, wanted[:at] + wanted[at + 1 :]) for at, one in enumerate(wanted)]
    assert sum(shares) == pytest.approx(quota)
    assert all(share > 0 for share in shares)


@settings(max_examples=30)
@given(st.floats(10, 1e4), st.lists(st.floats(1, 1e6), min_size=2, max_size=6))
def test_a_bookie_that_is_asked_for_more_gets_more(quota: float, wanted: list[float]) -> None:
    shares = [share_of(quota, one, wanted[:at] + wanted[at + 1 :]) for at, one in enumerate(wanted)]
    for more, less in itertools.pairwise(wanted):
        if more > less:
            assert shares[wanted.index(more)] >= shares[wanted.index(less)]
