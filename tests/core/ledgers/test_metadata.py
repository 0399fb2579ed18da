"""Legal records and the only legal transitions between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.legal_transitions import check_transition

from buckram.core.ledgers.metadata import (
    check_metadata,
    closed,
    created,
    ensemble_changed,
    fragment_end,
    fragment_index,
    fragment_of,
    in_recovery,
    member_replaced,
    metadata_problem,
    recovered,
)
from buckram.errors import InvalidArgument, InvariantViolation
from buckram.types import Fragment, LedgerMetadata, LedgerState

OPEN = created(3, 3, 2, ["a", "b", "c"], creator_token=77, password=b"pw", custom_metadata={"k": b"v"})
TWO = ensemble_changed(OPEN, 10, ["a", "d", "c"])
RECOVERING = in_recovery(TWO)
CLOSED = closed(TWO, 20, 2000)


def test_created() -> None:
    assert OPEN.state is LedgerState.OPEN
    assert OPEN.fragments == (Fragment(0, ("a", "b", "c")),)
    assert (OPEN.last_entry, OPEN.length, OPEN.creator_token, OPEN.format_version) == (None, None, 77, 3)
    assert created(1, 1, 1, ["a"], creator_token=5, format_version=2).creator_token == 0


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((3, 4, 2, ["a", "b", "c"]), {}, "write quorum 4"),
        ((3, 2, 3, ["a", "b", "c"]), {}, "ack quorum 3"),
        ((3, 2, 0, ["a", "b", "c"]), {}, "ack quorum 0"),
        ((0, 0, 0, []), {}, "ensemble size 0"),
        ((1, 1, 1, ["a"]), {"creator_token": -1}, "-1"),
        ((1, 1, 1, ["a"]), {"creator_token": 2**63}, "token"),
        ((1, 1, 1, ["a"]), {"format_version": 1}, "version 2 or 3"),
        ((1, 1, 1, ["a"]), {"custom_metadata": {"k": "text"}}, "bytes"),
        ((1, 1, 1, ["a"]), {"custom_metadata": {1: b""}}, "str"),
        ((1, 1, 1, ["a"]), {"custom_metadata": {"\ud800": b""}}, "Unicode"),
    ],
)
def test_creating_with_bad_arguments(arguments: Any, options: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        created(*arguments, **options)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fragments": ()}, "at least one"),
        ({"fragments": (Fragment(1, ("a", "b", "c")),)}, "not 0"),
        ({"fragments": (Fragment(0, ("a", "b", "c")), Fragment(0, ("a", "b", "d")))}, "must rise"),
        (
            {"fragments": (Fragment(0, ("a", "b", "c")), Fragment(9, ("a", "b", "d")), Fragment(5, ("a", "b", "d")))},
            "must rise",
        ),
        ({"fragments": (Fragment(0, ("a", "b")),)}, "has 2 members"),
        ({"fragments": (Fragment(0, ("a", "b", "c", "d")),)}, "has 4 members"),
        ({"fragments": (Fragment(0, ("a", "b", "a")),)}, "twice"),
        ({"fragments": (Fragment(0, ("a", "b", "c d")),)}, "not a bookie id"),
        ({"fragments": (Fragment(0, ("a", "b", "readonly")),)}, "not a bookie id"),
        ({"format_version": 4}, "version 4"),
        ({"last_entry": 3}, "no last entry"),
        ({"length": 3}, "no length"),
        ({"state": LedgerState.IN_RECOVERY, "last_entry": 3, "length": 3}, "IN_RECOVERY"),
        ({"state": LedgerState.CLOSED}, "needs a last entry"),
        ({"state": LedgerState.CLOSED, "last_entry": 3}, "needs a last entry"),
        ({"state": LedgerState.CLOSED, "last_entry": -2, "length": 0}, "-2"),
        ({"state": LedgerState.CLOSED, "last_entry": 2**63, "length": 0}, "last entry"),
        ({"state": LedgerState.CLOSED, "last_entry": 0, "length": -1}, "length -1"),
        ({"write_quorum": 4}, "write quorum 4"),
        ({"ack_quorum": 0}, "ack quorum 0"),
    ],
)
def test_illegal_records(changes: dict[str, Any], named: str) -> None:
    record = replace(OPEN, **changes)
    assert named in (metadata_problem(record) or "")
    with pytest.raises(InvariantViolation, match="S10"):
        check_metadata(record)


def test_a_ledger_may_end_before_its_last_fragment() -> None:
    """An ensemble change that no entry followed."""
    ended = closed(TWO, 9, 900)
    assert ended.last_fragment.first_entry == 10
    assert fragment_end(ended, 0) == 9
    assert fragment_end(ended, 1) == 9


def test_fragments_of_entries() -> None:
    assert [fragment_index(TWO, entry) for entry in (0, 9, 10, 11, 2**62)] == [0, 0, 1, 1, 1]
    assert fragment_of(TWO, 9).ensemble == ("a", "b", "c")
    assert fragment_of(TWO, 10).ensemble == ("a", "d", "c")
    assert [fragment_end(TWO, index) for index in (0, 1)] == [9, None]
    assert [fragment_end(CLOSED, index) for index in (0, 1)] == [9, 20]
    with pytest.raises(InvalidArgument, match="-1"):
        fragment_of(TWO, -1)


def test_an_ensemble_change_appends_or_replaces() -> None:
    assert TWO.fragments == (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "d", "c")))
    assert TWO.creator_token == 0, "every update drops it"
    again = ensemble_changed(TWO, 10, ["a", "e", "c"])
    assert again.fragments == (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "e", "c")))
    assert ensemble_changed(OPEN, 0, ["x", "y", "z"]).fragments == (Fragment(0, ("x", "y", "z")),)


def test_illegal_ensemble_changes() -> None:
    with pytest.raises(InvariantViolation, match="S10"):
        ensemble_changed(TWO, 9, ["a", "b", "c"])
    for ensemble in (["a", "b"], ["a", "a", "b"], ["a", "b", "/"]):
        with pytest.raises(InvariantViolation, match="S10"):
            ensemble_changed(TWO, 11, ensemble)
    for record in (RECOVERING, CLOSED):
        with pytest.raises(InvariantViolation, match="S4"):
            ensemble_changed(record, 30, ["a", "b", "c"])


def test_recovery_begins_on_an_open_ledger_only() -> None:
    assert replace(TWO, state=LedgerState.IN_RECOVERY) == RECOVERING
    for record in (RECOVERING, CLOSED):
        with pytest.raises(InvariantViolation, match="S2"):
            in_recovery(record)


def test_closing() -> None:
    assert (CLOSED.state, CLOSED.last_entry, CLOSED.length) == (LedgerState.CLOSED, 20, 2000)
    assert closed(RECOVERING, 20, 2000) == CLOSED, "the writer may close over somebody's recovery"
    assert closed(OPEN, -1, 0).last_entry == -1
    with pytest.raises(InvariantViolation, match="S2"):
        closed(CLOSED, 20, 2000)
    with pytest.raises(InvariantViolation, match="S1:"):
        closed(TWO, 8, 800)
    with pytest.raises(InvariantViolation, match="S13"):
        closed(OPEN, -1, 5)
    with pytest.raises(InvariantViolation, match="S1:"):
        closed(OPEN, -2, 0)


def test_recovery_closes_with_its_private_ensembles() -> None:
    private = [Fragment(10, ("a", "x", "c")), Fragment(12, ("y", "x", "c"))]
    done = recovered(RECOVERING, private, 12, 1300)
    assert done.fragments == (Fragment(0, ("a", "b", "c")), *private)
    assert (done.state, done.last_entry, done.length) == (LedgerState.CLOSED, 12, 1300)
    assert recovered(RECOVERING, [], 9, 900).fragments == TWO.fragments
    assert recovered(RECOVERING, [Fragment(13, ("a", "x", "c"))], 12, 1300).last_fragment.first_entry == 13


def test_illegal_ends_of_a_recovery() -> None:
    for record in (OPEN, CLOSED):
        with pytest.raises(InvariantViolation, match="S2"):
            recovered(record, [], 20, 2000)
    with pytest.raises(InvariantViolation, match="S1:"):
        recovered(RECOVERING, [], 8, 800)
    with pytest.raises(InvariantViolation, match="S10"):
        recovered(RECOVERING, [Fragment(9, ("a", "x", "c"))], 12, 1300)
    with pytest.raises(InvariantViolation, match="S10"):
        recovered(RECOVERING, [Fragment(14, ("a", "x", "c"))], 12, 1300)
    with pytest.raises(InvariantViolation, match="S10"):
        recovered(RECOVERING, [Fragment(12, ("y", "x", "c")), Fragment(11, ("a", "x", "c"))], 12, 1300)


def test_a_member_is_replaced_at_its_position() -> None:
    swapped = member_replaced(CLOSED, 10, "d", "e")
    assert swapped == replace(CLOSED, fragments=(CLOSED.fragments[0], Fragment(10, ("a", "e", "c"))))
    assert member_replaced(TWO, 0, "b", "e").fragments[0] == Fragment(0, ("a", "e", "c"))
    assert member_replaced(RECOVERING, 0, "b", "e").state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("record", [OPEN, TWO, RECOVERING])
def test_the_last_fragment_of_a_ledger_that_can_grow_is_left_alone(record: LedgerMetadata) -> None:
    last = record.last_fragment
    with pytest.raises(InvariantViolation, match="M7"):
        member_replaced(record, last.first_entry, last.ensemble[0], "new")


def test_illegal_replacements() -> None:
    for first_entry, old in ((5, "a"), (10, "b"), (30, "a")):
        with pytest.raises(InvariantViolation, match="M7"):
            member_replaced(CLOSED, first_entry, old, "new")
    with pytest.raises(InvariantViolation, match="S10"):
        member_replaced(CLOSED, 10, "d", "a")


def test_custom_metadata_is_copied() -> None:
    given = {"x": b"1"}
    record = created(1, 1, 1, ["a"], custom_metadata=given)
    given["x"] = b"2"
    assert record.custom_metadata["x"] == b"1"


LEGAL = [
    (OPEN, TWO), (OPEN, ensemble_changed(OPEN, 0, ["x", "b", "c"])), (TWO, RECOVERING), (TWO, CLOSED),
    (RECOVERING, CLOSED),
    (RECOVERING, recovered(RECOVERING, [Fragment(10, ("x", "d", "c")), Fragment(12, ("x", "y", "c"))], 15, 99)),
    (CLOSED, member_replaced(CLOSED, 10, "d", "e")), (TWO, member_replaced(TWO, 0, "b", "e")),
    (RECOVERING, member_replaced(RECOVERING, 0, "b", "e")),
    (OPEN, closed(OPEN, -1, 0)),
]  # fmt: skip
ILLEGAL = [
    (CLOSED, TWO), (CLOSED, RECOVERING), (RECOVERING, TWO), (OPEN, OPEN), (TWO, replace(OPEN, creator_token=0)),
    (CLOSED, replace(CLOSED, last_entry=21)), (CLOSED, replace(CLOSED, length=1)), (TWO, closed(OPEN, 5, 5)),
    (TWO, replace(TWO, state=LedgerState.CLOSED, last_entry=5, length=5)),
    (OPEN, replace(TWO, fragments=(*TWO.fragments, Fragment(11, ("a", "b", "c"))))),
    (OPEN, replace(TWO, fragments=(Fragment(0, ("x", "b", "c")), TWO.fragments[1]))),
    (RECOVERING, replace(RECOVERING, fragments=(*RECOVERING.fragments, Fragment(30, ("a", "b", "c"))))),
    (RECOVERING, replace(RECOVERING, fragments=(RECOVERING.fragments[0], Fragment(10, ("a", "x", "c"))))),
    (CLOSED, replace(CLOSED, fragments=(*CLOSED.fragments, Fragment(30, ("a", "b", "c"))))),
    (TWO, replace(RECOVERING, fragments=(*RECOVERING.fragments, Fragment(30, ("a", "b", "c"))))),
    (RECOVERING, replace(CLOSED, fragments=(Fragment(0, ("x", "b", "c")), CLOSED.fragments[1]))),
    (TWO, replace(TWO, password=b"other")), (TWO, replace(TWO, format_version=2)), (TWO, replace(TWO, ack_quorum=1)),
    (TWO, replace(TWO, fragments=(TWO.fragments[0], Fragment(11, ("a", "d", "c"))))),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_the_checker_passes_legal_transitions(before: LedgerMetadata, after: LedgerMetadata) -> None:
    check_transition(before, after)


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_the_checker_finds_illegal_transitions(before: LedgerMetadata, after: LedgerMetadata) -> None:
    with pytest.raises(InvariantViolation):
        check_transition(before, after)


steps = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.permutations("abcdef")), max_size=8)


@given(steps)
def test_whatever_the_transitions_allow_the_checker_allows(steps: list[tuple[int, int, list[str]]]) -> None:
    """Random calls: each is refused or leads to a legal record by a legal transition."""
    record = replace(OPEN, creator_token=0)
    for kind, number, names in steps:
        before = record
        try:
            if kind == 0:
                record = ensemble_changed(record, number, names[:3])
            elif kind == 1:
                record = in_recovery(record)
            elif kind == 2:
                record = closed(record, number - 1, number)
            elif kind == 3:
                record = recovered(record, [Fragment(number, tuple(names[:3]))], number + 1, 5)
            else:
                record = member_replaced(
                    record, record.fragments[number % len(record.fragments)].first_entry, *names[:2]
                )
        except InvariantViolation:
            assert record is before
            continue
        check_metadata(record)
        check_transition(before, record)
