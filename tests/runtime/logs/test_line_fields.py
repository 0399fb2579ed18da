"""Fields of a line come from the words before its values."""

from __future__ import annotations

import re
from pathlib import Path

from buckram.runtime.logs.line_format import LONGEST_VALUE, NAMES, fields, places

SOURCES = Path(__file__).parents[3] / "src" / "buckram"
TEXT = re.compile(r'"([^"\n]*%[sd][^"\n]*)"')


def test_words_before_values_are_fields() -> None:
    assert fields("ledger %d: bookie %s failed: %s", (7, "b-1", OSError("gone"))) == {"ledger": 7, "bookie": "b-1"}
    assert fields("%s %% done, Ledger %d", ("half", 9)) == {"ledger": 9}
    assert fields("auditor %s: the maintenance of bookie %s is over", ("a", "b")) == {"auditor": "a", "bookie": "b"}


def test_other_values_are_none() -> None:
    assert fields("%d ledgers wait for %.1f s", (3, 0.5)) == {}
    assert fields("subledger %d", (3,)) == {}
    assert fields("nothing", ()) == {}
    assert fields("%(ledger)s", {"ledger": 3}) == {}
    assert fields("ledger %d", ()) == {}, "a call with too few values still has a line"


def test_the_first_of_two_counts_and_long_ones_are_cut() -> None:
    assert fields("bookie %s takes the place of bookie %s", ("new", "old")) == {"bookie": "new"}
    assert fields("bookie %s", ("x" * 1000,)) == {"bookie": "x" * LONGEST_VALUE}


def test_the_program_has_such_lines() -> None:
    """The fields that the pages promise exist: some text of the sources has each."""
    found = set[str]()
    for path in SOURCES.rglob("*.py"):
        for text in TEXT.findall(path.read_text()):
            found |= {name for name, _ in places(text)}
    assert {"ledger", "bookie", "job", "machine", "auditor", "replicator", "task"} <= found <= set(NAMES)
