"""Histories of the bank's customers and replicas against the database at the end: nothing lost, doubled or made up.

Pure. What transactions saw is judged as one history of append-only lists, in which every value is unique. Not here:
reading the database (`verdict/database.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.actors.bank import ACCOUNTS, BALANCE, SUM
from chaos.history import Event
from chaos.verdict.report import Report
from simulator.engine.checkers.serializability import Append, Outcome, Read, Transaction, not_serializable

OLD = ("leader", "stale")
"""Reads that may see an old state."""
_DIFFER = {"ReplicaStopped", "ReplicaDiverged", "DatabaseFailed", "StateLost", "InvariantViolation"}
"""Errors after which a replica differs from the log."""


@dataclass
class DatabaseEnd:
    """State of the database at the end."""

    done: list[tuple[str, int | None, int | None, int | None]] = field(default_factory=list)
    """Name, source, target and amount of each transaction that was committed."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    balances: dict[int, int] = field(default_factory=dict)
    digest: str = ""
    """Digest of a copy of all pages."""
    faults: list[str] = field(default_factory=list)
    """Faults found when all retained data were read and compared."""


@dataclass
class Told:
    """A transaction as its customer knows it."""

    begun: Event
    ended: Event | None = None

    @property
    def name(self) -> str:
        return str(self.begun["name"])

    @property
    def outcome(self) -> Outcome:
        outcome: Outcome = "unknown" if self.ended is None else self.ended["outcome"]
        return outcome

    @property
    def writes(self) -> bool:
        return any(operation[0] == "done" for operation in self.begun["operations"])

    @property
    def looks(self) -> list[dict[str, Any]]:
        return [] if self.ended is None else self.ended["looks"]


def judge_bank(events: Sequence[Event], found: DatabaseEnd | None, report: Report) -> None:
    """Judge the transactions on the database. If it was never made, none may have been acknowledged."""
    told = _told(events)
    end = found or DatabaseEnd()
    _judge_done(told, events, end, report)
    _judge_sums(told, end, report)
    _judge_freshness(told, report)
    _judge_order(told, end, report)
    _judge_replicas(events, end, report)


def _told(events: Sequence[Event]) -> list[Told]:
    found: dict[str, Told] = {}
    for event in events:
        if event["event"] == "transaction":
            found[event["name"]] = Told(event)
        elif event["event"] == "transaction-ended":
            found[event["name"]].ended = event
    return list(found.values())


def _judge_done(told: Sequence[Told], events: Sequence[Event], end: DatabaseEnd, report: Report) -> None:
    there = Counter(name for name, *_ in end.done)
    for one in told:
        if not one.writes:
            continue
        times = there.pop(one.name, 0)
        report.check("D6", times <= 1, f"{one.name} was committed {times} times")
        if one.outcome == "ok":
            report.check("D5", times >= 1, f"{one.name} was acknowledged and is not there")
        if one.outcome == "aborted":
            report.check("D5", times == 0, f"{one.name} was told to be aborted and is there")
    report.check("D6", not there, f"nobody began {sorted(there)[:5]}, which are there")
    names = {name for name, *_ in end.done}
    for event in events:
        if event["event"] == "outcome" and event["outcome"] == "committed":
            text = f"{event['name']} was said to be committed and is not there"
            report.check("D5", event["name"] in names, text)


def _judge_sums(told: Sequence[Told], end: DatabaseEnd, report: Report) -> None:
    for one in told:
        for look in one.looks:
            report.check("bank", look["sum"] == SUM, f"{one.name} saw the sum {look['sum']}, it is {SUM} always")
    if not end.balances:
        return
    balances = dict.fromkeys(range(ACCOUNTS), BALANCE)
    for _, source, target, amount in end.done:
        if source is not None and target is not None and amount is not None:
            balances[source] -= amount
            balances[target] += amount
    report.check("bank", balances == end.balances, f"the transfers make {balances}, there is {end.balances}")


def _judge_freshness(told: Sequence[Told], report: Report) -> None:
    """Check by the number of transactions in each look that it saw at least those it had to see."""
    acked = [one for one in told if one.writes and one.outcome == "ok" and one.ended is not None]
    times = sorted(one.ended["at"] for one in acked if one.ended is not None)
    offsets = sorted(one.ended["offset"] for one in acked if one.ended is not None and one.ended["offset"] is not None)
    begun = sorted(one.begun["at"] for one in told if one.writes)
    for one in told:
        if one.ended is None:
            continue
        how, after, at_most_s = one.begun["how"], one.begun.get("after"), one.begun.get("at_most_s")
        for look in one.looks:
            least = 0
            if how not in OLD:
                least = bisect_left(times, one.begun["at"])
            elif after is not None:
                least = bisect_left(offsets, after + 1)
            elif at_most_s is not None:
                least = bisect_left(times, one.begun["at"] - at_most_s)
            text = f"{one.name} ({how}, after {after}, at most {at_most_s} s) saw {look['count']} transactions, "
            report.check("fresh", look["count"] >= least, f"{text}and {least} were acknowledged")
            most = bisect_left(begun, one.ended["at"])
            report.check("fresh", look["count"] <= most, f"{text}and {most} were begun")


def _judge_order(told: Sequence[Told], end: DatabaseEnd, report: Report) -> None:
    history = [_transaction(one) for one in told]
    last = 1 + max((max(one.began, one.ended or 0.0) for one in history), default=0.0)
    final = tuple(Read(key, tuple(values)) for key, values in sorted(end.lists.items()))
    empty = {operation.key for one in history for operation in one.operations} - set(end.lists)
    final += tuple(Read(key, ()) for key in sorted(empty))
    why = not_serializable([*history, Transaction("the end", final, last, last)])
    report.check("D7", not why, why)
    report.checks["D7"] += len(history)


def _transaction(one: Told) -> Transaction:
    """Return a transaction in the form of the checker of histories. A read that may be old has no time."""
    operations = list[Append | Read]()
    looks = iter(one.looks)
    for operation in one.begun["operations"]:
        if operation[0] == "append":
            operations.append(Append(operation[1], operation[2]))
        elif operation[0] == "look" and (look := next(looks, None)) is not None:
            operations += [Read(key, tuple(values)) for key, values in look["lists"].items()]
    if one.begun["how"] in OLD:
        return Transaction(one.name, tuple(operations), -1.0, None, one.outcome)
    ended = one.ended["at"] if one.ended is not None else None
    return Transaction(one.name, tuple(operations), one.begun["at"], ended, one.outcome)


def _judge_replicas(events: Sequence[Event], end: DatabaseEnd, report: Report) -> None:
    for event in events:
        if event["event"] == "replica-ends":
            same = event["digest"] == end.digest
            report.check("D3", same, f"{event['actor']} ends with {event['digest']} at {event['offset']}, {end.digest}")
        elif event["event"] in ("replica-failed", "error"):
            report.check("D3", event["what"] not in _DIFFER, f"{event['actor']} stopped: {event['text']}")
    for fault in end.faults or [""]:
        report.check("D3", not fault, fault)
