"""Known good and bad histories of transactions on append-only lists: the anomalies that Elle names."""

from __future__ import annotations

import pytest

from simulator.engine.checkers.serializability import Append, Outcome, Read, Transaction, not_serializable

_OPEN = 1e9


def t(name: str, began: float, ended: float, *operations: Append | Read, outcome: Outcome = "ok") -> Transaction:
    return Transaction(name, operations, began, None if ended == _OPEN else ended, outcome)


def a(value: int, key: str = "x") -> Append:
    return Append(key, value)


def r(*values: int, key: str = "x") -> Read:
    return Read(key, values)


GOOD = {
    "one after another": [t("A", 0, 1, a(1)), t("B", 2, 3, r(1), a(2), r(1, 2)), t("C", 4, 5, r(1, 2))],
    "concurrent": [t("A", 0, 9, a(1)), t("B", 1, 8, a(2)), t("C", 2, 7, r(2)), t("D", 3, 6, r(2, 1))],
    "unknown and there": [t("A", 0, _OPEN, a(1), outcome="unknown"), t("B", 5, 6, r(1))],
    "unknown and not there": [t("A", 0, _OPEN, a(1), outcome="unknown"), t("B", 5, 6, r())],
    "aborted": [t("A", 0, 1, a(1), outcome="aborted"), t("B", 2, 3, r())],
    "two lists": [
        t("A", 0, 1, a(1), a(2, "y")),
        t("B", 2, 3, r(1), r(2, key="y"), a(3, "y")),
        t("C", 4, 5, r(1), r(2, 3, key="y")),
    ],
}
BAD = {
    "aborted read": [t("A", 0, 1, a(1), outcome="aborted"), t("B", 2, 3, r(1))],
    "intermediate read": [t("A", 0, 9, a(1), a(2)), t("B", 1, 8, r(1))],
    "garbage read": [t("A", 0, 1, r(7))],
    "read twice": [t("A", 0, 1, a(1)), t("B", 2, 3, r(1, 1))],
    "own append missed": [t("A", 0, 1, a(1), r())],
    "orders differ": [t("A", 0, 9, a(1)), t("B", 0, 9, a(2)), t("C", 1, 8, r(1, 2)), t("D", 1, 8, r(2, 1))],
    "lost append": [t("A", 0, 1, a(1)), t("B", 2, 3, r())],
    "stale read": [t("A", 0, 1, a(1)), t("B", 2, 3, a(2)), t("C", 4, 5, r(1, 2)), t("D", 6, 7, r(1))],
    "lost update": [
        t("A", 0, 1, a(1)),
        t("B", 2, 9, r(1), a(2)),
        t("C", 2, 9, r(1), a(3)),
        t("D", 10, 11, r(1, 2, 3)),
    ],
    "write skew": [t("A", 0, 9, r(), a(1, "y")), t("B", 0, 9, r(key="y"), a(2)), t("C", 10, 11, r(2), r(1, key="y"))],
    "a read that tears a transaction": [t("A", 0, 9, a(1), a(2, "y")), t("B", 1, 8, r(1), r(key="y"))],
    "they see each other": [t("A", 0, 9, a(1), r(2, key="y")), t("B", 0, 9, a(2, "y"), r(1))],
    "order of time": [t("A", 0, 1, a(1)), t("B", 2, 3, a(2)), t("C", 4, 5, r(2, 1))],
    "unknown comes and goes": [
        t("A", 0, _OPEN, a(1), outcome="unknown"),
        t("B", 2, 3, r(1)),
        t("C", 4, 5, r()),
    ],
    "half of an unknown transaction": [
        t("A", 0, _OPEN, a(1), a(2, "y"), outcome="unknown"),
        t("B", 2, 3, r(1), r(key="y")),
    ],
    "committed twice": [t("A", 0, 1, a(1)), t("B", 2, 3, a(2)), t("C", 4, 5, r(1, 2, 1))],
    "what was told to be aborted is in the order": [
        t("A", 0, 1, a(1)),
        t("B", 2, 3, a(2), outcome="aborted"),
        t("C", 4, 5, r(1, 2)),
    ],
    "a cycle of three": [
        t("A", 0, 9, r(key="y"), a(1)),
        t("B", 0, 9, r(key="z"), a(2, "y")),
        t("C", 0, 9, r(), a(3, "z")),
        t("D", 10, 11, r(1), r(2, key="y"), r(3, key="z")),
    ],
    "a deposed leader reads": [
        t("A", 0, 1, a(1)),
        t("B", 2, 3, a(2, "y")),
        t("C", 4, 5, r(1), r(2, key="y")),
        t("D", 6, 7, r(1), r(key="y")),
    ],
    "a transaction that both sees and does not see another": [
        t("A", 0, 9, a(1), a(2, "y")),
        t("B", 0, 9, r(1), a(3), r(key="y")),
    ],
}
ONLY_STRICT = {"lost append", "stale read", "order of time", "unknown comes and goes", "a deposed leader reads"}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories(name: str) -> None:
    assert not_serializable(GOOD[name]) == ""


@pytest.mark.parametrize("name", BAD)
def test_bad_histories(name: str) -> None:
    assert not_serializable(BAD[name])
    assert (not_serializable(BAD[name], strict=False) == "") is (name in ONLY_STRICT)


NAMES = {
    "aborted read": "G1a",
    "intermediate read": "G1b",
    "garbage read": "garbage read",
    "read twice": "duplicate elements",
    "own append missed": "internal",
    "orders differ": "incompatible order",
    "writes in a circle": "G0",
    "they see each other": "G1c",
    "lost append": "G-single-realtime",
    "stale read": "G-single-realtime",
    "lost update": "lost update, G-single",
    "a read that tears a transaction": "G-single",
    "write skew": "G2",
    "a cycle of three": "G2",
    "order of time": "G0-realtime",
    "what was told to be aborted is in the order": "G1a",
}
"""What Elle calls the bad histories."""
CIRCLE = {
    "writes in a circle": [
        t("A", 0, 9, a(1), a(4, "y")),
        t("B", 0, 9, a(2), a(3, "y")),
        t("C", 10, 11, r(1, 2), r(3, 4, key="y")),
    ]
}


@pytest.mark.parametrize("name", NAMES)
def test_anomalies_have_their_names(name: str) -> None:
    assert not_serializable((BAD | CIRCLE)[name]).partition(":")[0] == NAMES[name]


def test_a_cycle_is_told() -> None:
    found = not_serializable(BAD["write skew"])
    assert found == "G2: no order explains it: A -[rw x]-> B -[rw y]-> A"


def test_a_long_history_is_decided() -> None:
    history = [t(f"T{n}", n, n + 3.5, a(n)) for n in range(1500)]
    history += [t(f"R{n}", n + 4, n + 5, r(*range(n + 1))) for n in range(0, 1500, 50)]
    assert not_serializable(history) == ""
    history.append(t("late", 2000, 2001, r(*range(1400))))
    assert "late" in not_serializable(history)
