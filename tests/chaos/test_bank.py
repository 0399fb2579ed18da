"""The verdict on the bank: a history without fault breaks no rule, each kind of fault breaks the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos.actors.bank import ACCOUNTS, BALANCE, SUM, looks, statements
from chaos.history import Event
from chaos.verdict.bank import DatabaseEnd, judge_bank
from chaos.verdict.report import Report

Change = Callable[[list[Event], DatabaseEnd], None]


def _look(count: int, total: int = SUM, **lists: list[str]) -> dict[str, Any]:
    return {"sum": total, "count": count, "lists": lists}


def _begun(at: float, name: str, how: str, *operations: list[Any], **facts: Any) -> Event:
    return {"event": "transaction", "at": at, "actor": "u1", "name": name, "how": how, "operations": [*operations]} | (
        facts
    )


def _ended(at: float, name: str, outcome: str = "ok", offset: int | None = None, looks: Any = ()) -> Event:
    told = {"event": "transaction-ended", "at": at, "actor": "u1", "name": name, "outcome": outcome}
    return {**told, "offset": offset, "looks": list(looks)}


def _history() -> tuple[list[Event], DatabaseEnd]:
    events = [
        _begun(1.0, "a", "batch", ["append", "k", "a.0"], ["done", "a", 0, 1, 5]),
        _ended(2.0, "a", offset=10),
        _begun(
            2.0, "b", "calls", ["look", "k"], ["append", "k", "b.0"], ["done", "b", None, None, None], ["look", "k"]
        ),
        _ended(4.0, "b", offset=12, looks=[_look(1, k=["a.0"]), _look(2, k=["a.0", "b.0"])]),
        _begun(5.0, "c", "batch", ["append", "k", "c.0"], ["done", "c", 2, 3, 900]),
        _ended(6.0, "c", "aborted"),
        _begun(6.1, "d", "calls", ["append", "k", "d.0"], ["done", "d", 4, 5, 1]),  # nobody told what became of it
        _begun(7.0, "e", "linearizable", ["look", "k"]),
        _ended(8.0, "e", looks=[_look(3, k=["a.0", "b.0", "d.0"])]),
        _begun(9.0, "f", "stale", ["look", "k"], at_most_s=6.0),
        _ended(9.5, "f", looks=[_look(1, k=["a.0"])]),
        _begun(9.6, "g", "stale", ["look", "k"], after=10),
        _ended(9.7, "g", looks=[_look(1, k=["a.0"])]),
        {"event": "outcome", "at": 3.5, "actor": "u1", "name": "b", "outcome": "committed"},
        {"event": "replica-ends", "at": 10.0, "actor": "d1", "offset": 20, "groups": 4, "digest": "77"},
    ]
    balances = dict.fromkeys(range(ACCOUNTS), BALANCE) | {0: 95, 1: 105, 4: 99, 5: 101}
    done = [("a", 0, 1, 5), ("b", None, None, None), ("d", 4, 5, 1)]
    return events, DatabaseEnd(done, {"k": ["a.0", "b.0", "d.0"]}, balances, "77")


def _judge(change: Change | None = None) -> set[str]:
    events, end = _history()
    if change is not None:
        change(events, end)
    report = Report()
    judge_bank(sorted(events, key=lambda event: event["at"]), end, report)
    assert {rule for rule, count in report.checks.items() if count} >= {"D3", "D5", "D6", "D7", "bank", "fresh"}
    return {rule for rule, _ in report.violations}


def test_a_history_without_fault_breaks_no_rule() -> None:
    assert _judge() == set()


def _set(number: int, **facts: Any) -> Change:
    return lambda events, end: events[number].update(facts)


def _seen(number: int, look: int, **facts: Any) -> Change:
    return lambda events, end: events[number]["looks"][look].update(facts)


def _end(**facts: Any) -> Change:
    def change(events: list[Event], end: DatabaseEnd) -> None:
        for name, value in facts.items():
            setattr(end, name, value)

    return change


def _acknowledged_before_the_append(events: list[Event], end: DatabaseEnd) -> None:
    """The leader answered, and was killed before the log had it."""
    del end.done[0]
    end.balances |= {0: BALANCE, 1: BALANCE}
    end.lists["k"].remove("a.0")


def _executed_twice(events: list[Event], end: DatabaseEnd) -> None:
    """A repetition under the token was not recognised."""
    end.done.append(end.done[0])
    end.balances |= {0: 90, 1: 110}


def _half_a_transfer(events: list[Event], end: DatabaseEnd) -> None:
    end.balances[1] = BALANCE


def _a_deposed_leader_answers(events: list[Event], end: DatabaseEnd) -> None:
    """It sees neither what was acknowledged elsewhere before it was asked, nor as many transactions."""
    events[8]["looks"] = [_look(1, k=["a.0"])]


def _a_write_is_lost_between_two(events: list[Event], end: DatabaseEnd) -> None:
    """Both of them saw the list before, and both extended it."""
    events += [
        _begun(6.2, "x", "calls", ["look", "k"], ["append", "k", "x.0"], ["done", "x", None, None, None]),
        _ended(6.9, "x", offset=30, looks=[_look(3, k=["a.0", "b.0"])]),
        _begun(6.2, "y", "calls", ["look", "k"], ["append", "k", "y.0"], ["done", "y", None, None, None]),
        _ended(6.9, "y", offset=31, looks=[_look(3, k=["a.0", "b.0"])]),
    ]
    end.done += [("x", None, None, None), ("y", None, None, None)]
    end.lists["k"] += ["x.0", "y.0"]
    events[8]["looks"] = [_look(5, k=["a.0", "b.0", "d.0", "x.0", "y.0"])]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_acknowledged_before_the_append, "D5"),
        (_executed_twice, "D6"),
        (_half_a_transfer, "bank"),
        (_a_deposed_leader_answers, "D7"),
        (_a_deposed_leader_answers, "fresh"),
        (_a_write_is_lost_between_two, "D7"),
        (lambda events, end: end.done.append(("c", 2, 3, 900)), "D5"),
        (lambda events, end: end.done.append(("z", None, None, None)), "D6"),
        (_set(13, name="never"), "D5"),
        (_seen(3, 0, sum=SUM - 5), "bank"),
        (_seen(3, 1, lists={"k": ["b.0", "a.0"]}), "D7"),
        (_seen(8, 0, lists={"k": ["a.0", "b.0", "c.0"]}), "D7"),
        (_seen(8, 0, lists={"k": ["a.0", "b.0", "b.0"]}), "D7"),
        (_seen(8, 0, count=9), "fresh"),
        (_set(9, at_most_s=1.0), "fresh"),
        (_set(11, after=12), "fresh"),
        (_seen(10, 0, lists={"k": ["b.0"]}), "D7"),
        (_end(lists={"k": ["a.0", "d.0"]}), "D7"),
        (_set(14, digest="78"), "D3"),
        (_set(14, event="replica-failed", what="ReplicaDiverged", text="it differs"), "D3"),
        (_end(faults=["the digest of all pages is wrong"]), "D3"),
    ],
)
def test_a_fault_in_a_history_breaks_its_rule(change: Change, rule: str) -> None:
    assert rule in _judge(change)


def test_a_database_that_was_never_made_has_lost_what_was_acknowledged() -> None:
    events, _ = _history()
    report = Report()
    judge_bank(events, None, report)
    assert {rule for rule, _ in report.violations} >= {"D5"}
    report = Report()
    judge_bank([], None, report)
    assert not report.violations


def test_looks_are_read_from_the_rows_of_a_transaction() -> None:
    operations: list[list[Any]] = [
        ["look", "k", "m"],
        ["append", "k", "v"],
        ["done", "n", 1, 2, 3],
        ["bulk", 9],
        ["look", "k"],
    ]
    assert [len(statements(operation)) for operation in operations] == [1, 1, 3, 2, 1]
    row = [SUM, 4, '[["k","u"],["m","w"]]']
    results: list[list[list[Any]]] = [[row], [], [], [], [], [], [], [[SUM, 5, '[["k","u"],["k","v"]]']]]
    seen = looks(operations, results)
    assert seen == [_look(4, k=["u"], m=["w"]), _look(5, k=["u", "v"])]
    assert looks(operations, [[] for _ in results]) == []
    with pytest.raises(ValueError, match="no operation"):
        statements(["dance"])
