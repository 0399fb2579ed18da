"""Known good and bad histories of reads of several consistencies, and of a bank: each bad one is named."""

from __future__ import annotations

import pytest

from simulator.engine.checkers.bank import Statement, Transfer, broken_bank
from simulator.engine.checkers.promises import Added, Level, Look, broken_promise


def added(
    value: str, acked: float | None, position: int | None = None, *, replica: str = "A", began: float = -1.0
) -> Added:
    return Added(value, acked - 0.5 if acked is not None and began < 0 else began, acked, position, replica)


def look(began: float, values: str, level: Level = "stale", replica: str = "B", **more: float | None) -> Look:
    return Look(f"look {began:g}", replica, level, began, began + 0.5, frozenset(values), **more)  # type: ignore[arg-type]


A, B, C = added("a", 1.0, 10), added("b", 2.0, 11), added("c", 3.0, 12)
UNTOLD = added("u", None, began=0.1)

GOOD = {
    "everything at any level": [look(4, "abc", "linearizable", "A"), look(4, "abc", "leader", "A"), look(4, "abc")],
    "stale reads may lack the newest": [look(4, ""), look(5, "a"), look(6, "ab")],
    "an element that nobody was told of may be there": [look(4, "abcu", "linearizable")],
    "and later it need not be at another replica": [look(4, "u"), look(5, "", replica="C")],
    "within at_most_s": [look(4, "ab", at_most_s=1.5), look(4.4, "abc", at_most_s=1.0)],
    "a call that was acknowledged meanwhile": [look(2.9, "ab", "linearizable")],
    "what is below `after`": [look(4, "ab", after=11), look(5, "abc", after=12, replica="C")],
    "`after` on behalf of a reader": [look(4, "abu", position=12), look(5, "abcu", after=12, replica="C")],
    "a leader that was deposed": [look(4, "ab", "leader", "X", leads_from=2.5)],
    "opened, without what was acknowledged last": [look(4, "ab", opened=3.5)],
    "another replica may be older": [look(4, "ab"), look(5, "a", replica="C")],
    "the same replica, opened again": [look(4, "ab"), look(5, "a", replica="B again")],
}
BAD = {
    "stale read": [look(4, "ab", "linearizable", "A")],
    "stale read of a leader": [look(4, "ab", "leader", "A")],
    "stale read of a leader of what was before it led": [look(4, "a", "leader", "X", leads_from=2.5)],
    "stale read beyond at_most_s": [look(4, "a", at_most_s=1.5)],
    "stale read beyond at_most_s of nothing": [look(4, "ab", at_most_s=0.0)],
    "read below `after`": [look(4, "a", after=11)],
    "non-monotonic `after`": [look(4, "abu", position=11), look(5, "ab", after=11, replica="C")],
    "non-monotonic reads": [look(4, "ab"), look(5, "a")],
    "phantom element": [look(4, "abcx", "linearizable")],
    "phantom element of the future": [look(1.0, "ac")],
    "read before the replica had begun": [look(4, "a", opened=3.5)],
    "G1a": [look(4, "abcd", "linearizable")],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_reads(name: str) -> None:
    assert broken_promise([A, B, C, UNTOLD], GOOD[name]) == ""


@pytest.mark.parametrize("name", BAD)
def test_bad_reads_are_named(name: str) -> None:
    found = broken_promise([A, B, C, UNTOLD, Added("d", 0.1, aborted=True)], BAD[name])
    anomaly = found.partition(":")[0]
    assert anomaly
    assert name.startswith(anomaly), found


FIRST = {1: 100, 2: 100}
MADE = [Transfer("t", 1, 2, 30), Transfer("s", 2, 1, 5)]
GOOD_BANK = {
    "nothing": Statement("look", FIRST, ()),
    "one": Statement("look", {1: 70, 2: 130}, ("t",)),
    "both": Statement("look", {1: 75, 2: 125}, ("s", "t")),
}
BAD_BANK = {
    "the sum is off": Statement("look", {1: 70, 2: 100}, ("t",)),
    "the balances are not those of its transfers": Statement("look", {1: 75, 2: 125}, ("t",)),
    "phantom element": Statement("look", FIRST, ("x",)),
    "duplicate elements": Statement("look", {1: 70, 2: 130}, ("t", "t")),
}


@pytest.mark.parametrize("name", GOOD_BANK)
def test_good_banks(name: str) -> None:
    assert broken_bank(FIRST, MADE, [GOOD_BANK[name]]) == ""


@pytest.mark.parametrize("name", BAD_BANK)
def test_bad_banks_are_named(name: str) -> None:
    assert broken_bank(FIRST, MADE, [*GOOD_BANK.values(), BAD_BANK[name]]).startswith(name)
