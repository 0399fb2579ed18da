"""What is known of transactions by their tokens."""

from __future__ import annotations

import json

import pytest

from buckram.core.db import outcomes as module
from buckram.core.db.group import Group, Receipt
from buckram.core.db.outcomes import Outcomes, OwnToken, check_token, parse_own
from buckram.errors import InvalidArgument


def _group(leadership: int, sequence: int, *tokens: str) -> Group:
    return Group(leadership, sequence, 1, 0, [Receipt(token, "[[1,2]]") for token in tokens], [])


def test_groups_are_known_by_leadership_and_sequence() -> None:
    found = Outcomes()
    for leadership, sequence in ((5, 1), (5, 2), (9, 3), (9, 4)):
        found.committed(_group(leadership, sequence))
    assert [found.has(5, 2), found.has(5, 3), found.has(9, 3), found.has(9, 5), found.has(7, 1)] == [
        *(True, False, True, False, False),
    ]
    again = Outcomes.of(json.loads(json.dumps(found.state())))
    assert again.state() == found.state()


def test_the_newest_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 3)
    found = Outcomes()
    found.committed(_group(1, 1, "a", "b"))
    found.committed(_group(1, 2, "c", "d"))
    assert [found.counts(token) for token in "abcd"] == [None, "[[1,2]]", "[[1,2]]", "[[1,2]]"]
    assert Outcomes.of(found.state()).counts("d") == "[[1,2]]"


def test_tokens_have_two_forms_that_cannot_be_mistaken() -> None:
    own = OwnToken("0123456789abcdef", 7, 12)
    assert parse_own(str(own)) == own
    assert parse_own("order-17") is None
    assert check_token("order-17") == "order-17"
    for bad in ("", "x" * 201, str(own), "a\nb", 7, "é" * 150):
        with pytest.raises(InvalidArgument):
            check_token(bad)  # type: ignore[arg-type]
