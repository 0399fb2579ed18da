"""Refusals are events or in a number, whoever is refused and however often, and take bounded room."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.tenants.audit_trail import OTHERS, Refusals

KINDS = ("create", "delete", "login", "read")
STEPS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(KINDS), st.booleans(), st.integers(0, 40)), max_size=300
)


@settings(max_examples=200)
@given(STEPS)
def test_every_refusal_is_an_event_or_in_a_number(steps: list[tuple[str, str, bool, int]]) -> None:
    refusals, now, told = Refusals(first=3, interval_us=100, most=4), 0, Counter[str]()
    for principal, kind, room, passes in steps:
        now += passes
        if refusals.over(now):
            for counted in refusals.take(now):
                told.update(counted.kinds)
        told[kind] += refusals.noted(now, principal, kind, room=room)
    rest = refusals.take(now)
    assert len(rest) <= 5
    for counted in rest:
        told.update(counted.kinds)
    assert told == Counter(kind for _, kind, _, _ in steps)


def test_the_first_few_of_each_principal_are_events() -> None:
    refusals = Refusals(first=2, interval_us=100, most=10)
    assert [refusals.noted(0, "token:a", "read", room=True) for _ in range(4)] == [True, True, False, False]
    assert refusals.noted(50, "token:b", "read", room=True)
    assert not refusals.over(99)
    assert refusals.over(100)
    assert [(one.principal, dict(one.kinds), one.within_us) for one in refusals.take(100)] == [
        ("token:a", {"read": 2}, 100)
    ]
    assert not refusals.over(1000)
    assert refusals.noted(1000, "token:a", "read", room=True)


def test_principals_beyond_the_limit_share_a_name() -> None:
    refusals = Refusals(first=1, interval_us=100, most=2)
    assert [refusals.noted(0, f"token:{n}", "login", room=True) for n in range(100)] == [True] * 3 + [False] * 97
    assert [(one.principal, dict(one.kinds)) for one in refusals.take(1)] == [(OTHERS, {"login": 97})]


def test_a_clock_that_was_set_back_ends_the_interval() -> None:
    refusals = Refusals(first=0, interval_us=100)
    refusals.noted(1_000_000, "token:a", "read", room=True)
    assert refusals.over(5)
    assert [one.within_us for one in refusals.take(5)] == [0]
