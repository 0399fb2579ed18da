"""Which beginnings of docstrings are taken for plain, and which are not."""

from __future__ import annotations

import ast

import pytest
from scripts.words import found_in, is_bare

BARE = (
    "Of one gateway.",
    "What is older is not known any more.",
    "Whether it is worth a question.",
    "It answered, or has not answered for so long.",
    "Nobody competes any more.",
    "How often by two it is slower than the quickest; 0 for one that is not known.",
    "From here on.",
)
PLAIN = (
    "Return the grade of a bookie; 0 if it is unknown.",
    "Weight of one sample in the moving average.",
    "Its wall clock, microseconds since 1970.",
    "In a cluster of one host, copies may share it.",
    "Nothing is written before the record is read.",
    "For tests only.",
    "The ledger was fenced by another client.",
)


@pytest.mark.parametrize("text", BARE)
def test_a_sentence_without_its_subject_is_found(text: str) -> None:
    assert is_bare(text)


@pytest.mark.parametrize("text", PLAIN)
def test_a_whole_sentence_and_the_name_of_a_thing_are_plain(text: str) -> None:
    assert not is_bare(text)


def test_docstrings_and_notes_are_found() -> None:
    source = '''
"""A module."""
LIMIT = 1
"""Most of them."""
class Thing:
    """A class."""
    size: int = 0
    """Its size."""
    def close(self):
        """Close it."""
        "".join([])
'''
    found = [(one.kind, one.text) for one in found_in(ast.parse(source))]
    assert sorted(found) == [
        ("class", "A class."),
        ("function", "Close it."),
        ("module", "A module."),
        ("note", "Its size."),
        ("note", "Most of them."),
    ]
