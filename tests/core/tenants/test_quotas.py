"""Quotas, usage and events of the trail: what is accepted, and what is read back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.tenants.audit_trail import AuditEvent
from buckram.core.tenants.quotas import (
    NAMES,
    Counts,
    Quotas,
    Usage,
    encode_counts,
    encode_usage,
    parse_counts,
    parse_usage,
    summed,
)
from buckram.errors import InvalidArgument, QuotaExceeded


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1024, 2**40)))
def test_quotas_are_read_as_they_were_set(limits: dict[str, int]) -> None:
    quotas = Quotas().changed(limits)
    assert Quotas.parse(quotas.encode()) == quotas
    assert quotas.limits() == limits
    assert not quotas.changed(dict.fromkeys(limits))


@pytest.mark.parametrize(
    ("name", "value"),
    [("bytes", 1), ("stored_bytes", -1), ("stored_bytes", 2**63), ("in_bytes_per_s", 10), ("in_entries_per_s", 0)],
)
def test_a_bad_quota_is_named_with_its_limits(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Quotas().changed({name: value})


@settings(max_examples=30)
@given(st.binary(max_size=60) | st.text().map(str.encode) | st.just(b"[]") | st.just(b'{"version": 1}'))
def test_other_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for parse in (Quotas.parse, parse_usage, parse_counts):
        try:
            parse(data)
        except ValueError:
            continue
        assert data.startswith(b"{")
    with pytest.raises(InvalidArgument):
        AuditEvent.parse(data)


def test_usage_of_bookies_adds_up_and_comes_back() -> None:
    one, other = {"shop": Usage(10, 1.0, 2.0, 3.0, 1)}, {"shop": Usage(5, 1.5), "log": Usage(1)}
    assert parse_usage(encode_usage(one, 7)) == (one, 7)
    assert summed([one, other]) == {"shop": Usage(15, 2.5, 2.0, 3.0, 1), "log": Usage(1)}
    counts = {"shop": Counts(3, 2, 1, {"pulsar": 9})}
    assert parse_counts(encode_counts(counts, 4)) == (counts, 4)


def test_usage_of_a_release_that_says_less_is_read() -> None:
    assert parse_usage(b'{"version": 1, "round": 2, "namespaces": {"a": [1, 2, 3, 4, 5]}}')[0]["a"].connections == 5


def test_the_error_says_how_much_of_what_and_who_can_raise_it() -> None:
    text = str(QuotaExceeded("shop", "stored_bytes", 12, 10))
    assert all(word in text for word in ("shop", "12 of 10", "stored_bytes", "administrator", "buckram namespace set"))


def test_an_event_comes_back_and_is_found_by_what_it_is_about() -> None:
    event = AuditEvent(5, "token:alice", "delete", "stream shop/orders", "shop", detail="x" * 10)
    assert AuditEvent.parse(event.encode()) == event
    assert event.matches(principal="token:alice", action="delete", namespace="shop", what="orders")
    for other in ({"principal": "token:bob"}, {"action": "create"}, {"namespace": "log"}, {"what": "items"}):
        assert not event.matches(**other)


def test_a_long_text_does_not_make_a_long_event() -> None:
    assert len(AuditEvent(1, "p", "login", "bookie", detail="x" * 10_000_000).encode()) < 2000
