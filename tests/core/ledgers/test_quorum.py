"""Placement and coverage arithmetic by example; the brute-force comparison is in tests/property."""

from __future__ import annotations

import pytest

from buckram.core.ledgers.quorum import Quorum
from buckram.errors import InvalidArgument


def test_write_set_starts_at_the_entry_and_wraps() -> None:
    assert Quorum(5, 3, 2).write_set(0) == (0, 1, 2)
    assert Quorum(5, 3, 2).write_set(4) == (4, 0, 1)
    assert Quorum(3, 3, 2).write_set(4) == (1, 2, 0)


def test_ids_beyond_32_bits_keep_their_place() -> None:
    entry = 2**31 + 3
    assert Quorum(5, 2, 2).write_set(entry) == (entry % 5, (entry + 1) % 5)
    assert all(0 <= p < 7 for p in Quorum(7, 4, 2).write_set(2**63 - 1))


@pytest.mark.parametrize("numbers", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_illegal_numbers_are_refused_with_the_rule(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match=r"write quorum >= ack quorum >= 1"):
        Quorum(*numbers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3/3/2", (3, 3, 2)), ((5, 3, 2), (5, 3, 2)), (3, (3, 3, 2)), ("1", (1, 1, 1)), (2, (2, 2, 2)),
     ([4, 3, 2], (4, 3, 2))],
)  # fmt: skip
def test_parse(text: int | str | tuple[int, ...], expected: tuple[int, int, int]) -> None:
    assert Quorum.parse(text) == Quorum(*expected)


@pytest.mark.parametrize("text", ["", "3/3", "a/b/c", "3/3/2/1", (1, 2), "3,3,2"])
def test_parse_refuses_other_forms(text: str | tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="ensemble"):
        Quorum.parse(text)


# The smallest covering answer sets of the window rule (docs/reference/protocol.md 1.3).
@pytest.mark.parametrize(
    ("numbers", "smallest"),
    [((2, 2, 2), 1), ((3, 3, 2), 2), ((3, 3, 1), 3), ((4, 3, 2), 3), ((5, 3, 3), 2), ((6, 3, 2), 4), ((6, 2, 2), 3),
     ((9, 7, 5), 4)],
)  # fmt: skip
def test_smallest_covering_answer_sets(numbers: tuple[int, int, int], smallest: int) -> None:
    quorum = Quorum(*numbers)
    size = quorum.ensemble_size
    sets = [[p for p in range(size) if bits >> p & 1] for bits in range(2**size)]
    assert min(len(known) for known in sets if quorum.covered(known)) == smallest


def test_coverage_depends_on_which_positions_answered() -> None:
    quorum = Quorum(6, 2, 2)
    assert quorum.covered([0, 2, 4])
    assert not quorum.covered([0, 1, 2])
    assert quorum.coverage == 1


def test_writable_needs_qa_members_in_every_window() -> None:
    assert Quorum(3, 3, 2).writable([1])
    assert not Quorum(3, 3, 2).writable([1, 2])
    assert not Quorum(4, 2, 2).writable([0])
    assert Quorum(6, 2, 1).writable([0, 2, 4])
    assert not Quorum(6, 2, 1).writable([0, 1])
