"""What is known of transactions by their tokens."""

from __future__ import annotations

import json

import pytest

from buckram.core.db import outcomes as module
from buckram.core.db.group import Group, Receipt
from buckram.core.db.outcomes import KEPT_US, SPAN_US, TOKEN_OVERHEAD, Outcomes, OwnToken, check_token, parse_own
from buckram.errors import InvalidArgument


def _group(leadership: int, sequence: int, *tokens: str) -> Group:
    return Group(leadership, sequence, 1, 0, [Receipt(token, "[[1,2]]") for token in tokens], [])


def _again(found: Outcomes) -> Outcomes:
    """As a snapshot carries it."""
    return Outcomes.of(*json.loads(json.dumps([found.state(), found.receipts()])))


def test_groups_are_known_by_leadership_and_sequence() -> None:
    found = Outcomes()
    for leadership, sequence in ((5, 1), (5, 2), (9, 3), (9, 4)):
        found.committed(_group(leadership, sequence), 0)
    known = [(5, 1), (5, 2), (5, 3), (9, 3), (9, 4), (9, 5), (7, 1), (5, 0)]
    assert [found.has(*one) for one in known] == [True, True, False, True, True, False, False, False]
    again = _again(found)
    assert again.state() == found.state()
    assert [again.has(*one) for one in known] == [found.has(*one) for one in known]


def test_the_outcome_of_a_token_is_known_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ANYWAY", 0)
    found = Outcomes()
    found.committed(_group(1, 1, "early"), 5)
    found.committed(_group(1, 2, "late"), 5 + SPAN_US - 1)
    found.committed(_group(1, 3, "next"), 5 + SPAN_US)
    for time_us, known in (
        (KEPT_US + 5 + SPAN_US - 1, ["early", "late", "next"]),
        (KEPT_US + 5 + SPAN_US, ["next"]),
        (KEPT_US + 6 + SPAN_US, []),
    ):
        found.committed(_group(1, 4), time_us)
        assert [token for token in ("early", "late", "next") if found.counts(token) is not None] == known
        assert _again(found).state() == found.state()


def test_a_hundred_thousand_tokens_of_one_hour_are_all_known() -> None:
    found = Outcomes()
    for first in range(0, 150_000, 50):
        found.committed(_group(1, first, *(f"t{number}" for number in range(first, first + 50))), first)
    assert all(found.counts(f"t{number}") == "[[1,2]]" for number in range(150_000))
    assert found.counts("t150000") is None
    assert max(count for _, _, count in found.state()["spans"]) < module.SPAN_TOKENS + 50
    assert _again(found).state() == found.state()


def test_a_wrong_clock_takes_no_token_away_from_those_who_use_few() -> None:
    found = Outcomes()
    found.committed(_group(1, 1, "mine"), 0)
    found.committed(_group(2, 2, "other"), 1000 * KEPT_US)
    assert [found.counts("mine"), found.counts("other")] == ["[[1,2]]", "[[1,2]]"]


def test_it_is_full_while_no_token_may_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ANYWAY", 0)
    found, each = Outcomes(), TOKEN_OVERHEAD + len("t0") + len("[[1,2]]")
    found.committed(_group(1, 1, "t0", "t1"), 7)
    assert [found.full(7, 2 * each + 1), found.full(7, 2 * each)] == [0, 2]
    found.committed(_group(1, 2, "t1"), 7)  # The same token again takes no more room.
    assert found.full(7, 2 * each + 1) == 0
    assert _again(found).full(7, 2 * each) == 2
    assert [found.full(7 + KEPT_US, each), found.full(8 + KEPT_US, each)] == [2, 0]
    found.committed(_group(1, 3, "t2"), 8 + KEPT_US)
    assert [found.counts("t0"), found.counts("t2"), found.full(8 + KEPT_US, each)] == [None, "[[1,2]]", 1]


def test_a_snapshot_is_not_changed_by_later_commits_and_must_be_whole() -> None:
    found = Outcomes()
    found.committed(_group(1, 1, "a"), 0)
    state, receipts = found.state(), found.receipts()
    found.committed(_group(1, 2, "b"), 0)
    then = Outcomes.of(state, receipts)
    assert [then.counts("a"), then.counts("b"), then.has(1, 2)] == ["[[1,2]]", None, False]
    for bad in (receipts[:0], [*receipts, receipts[0]], found.receipts()):
        with pytest.raises(ValueError, match=r"token|shorter|longer"):
            Outcomes.of(state, bad)


def test_tokens_have_two_forms_that_cannot_be_mistaken() -> None:
    own = OwnToken("0123456789abcdef", 7, 12)
    assert parse_own(str(own)) == own
    assert parse_own("order-17") is None
    assert check_token("order-17") == "order-17"
    for bad in ("", "x" * 201, str(own), "a\nb", 7, "é" * 150):
        with pytest.raises(InvalidArgument):
            check_token(bad)  # type: ignore[arg-type]
