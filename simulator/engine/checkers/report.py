"""The findings of the checkers: evaluations of each invariant, situations that were reached, violations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

INVARIANTS = tuple(
    [f"S{n}" for n in range(1, 21)]
    + [f"F{n}" for n in (*range(1, 20), 21)]
    + ["I1", "I2", "I3", "I7", "I8", "I9", "I27", "I28", "I29"]
    + [f"M{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11)]
    + [f"L{n}" for n in range(1, 15)]
    + ["I14", "I16", "I18"]
    + ["A8"]
)
"""The invariants of ledgers (M9 is about streams). docs/reference/protocol.md has their wording, and that of A8
docs/explanation/security-design.md."""

SITUATIONS = (
    "an id was used again",
    "another ledger of the id gave way",
    "denials overruled by a copy",
    "recovery refused below a promise",
    "liar convicted",
    "recovery found an entry above the LAC",
    "recovery wrote entries back",
    "two recoverers in write-back",
    "cas conflict in ensemble change",
    "cas conflict in close",
    "cas conflict in recovery",
    "ensemble change with adds in flight and E > Qw",
    "two members changed at once",
    "completed add lost its quorum",
    "fence answered negatively, then the bookie crashed",
    "read with all three answer classes",
    "close with pending adds",
    "batch read cut by size",
    "crash during a sync",
    "lost reply of a metadata write",
    "writer degraded",
    "an ensemble changed under a rule of places",
    "an ack quorum in one place only",
    "copies kept apart on shared hosts",
    "recovery wrote back under a rule of places",
    "a ledger made with a member away",
    "late add refused by a fence",
    "recovery started by a second client",
    "session expired",
    "bookie came back in limbo",
    "read-only bookie refused an add",
    "entries read from the files of a bookie",
    "metadata read that lags behind",
    "compaction output written",
    "log file made longer",
    "ledger table loaded at a start",
    "footer mended",
    "log with a torn end",
    "last block damaged after a loss of power",
    "log behind its witness",
    "admission verdict FENCED",
    "a reborn bookie seen by a writer",
    "a doubt settled",
    "damaged superblock refused",
    "connection reached a stranger",
    "introduction refused",
    "a copy was collected before metadata named it",
    "a wrong key gave way",
    "a directory that went back was noticed",
    "a stranger was refused",
    "a stranger read what it may",
    "a quota ended a writer",
    "an old disk was refused",
    "a process that stood still found itself replaced",
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant. `at_s` is virtual time."""

    invariant: str
    text: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.6f} s: {self.text}"


class Report:
    """Collects the findings of one life. The first violation matters most; later ones often follow from it."""

    def __init__(self, now: Callable[[], float], on_violation: Callable[[Violation], None] | None = None) -> None:
        self._now, self._on_violation = now, on_violation
        self.evaluated = dict.fromkeys(INVARIANTS, 0)
        self.reached = dict.fromkeys(SITUATIONS, 0)
        self.violations: list[Violation] = []

    def check(self, invariant: str, holds: bool, template: str = "", *values: object) -> None:
        """Count one evaluation that could have failed, and report a violation if it did.

        The text is template.format(*values), which is computed only for a violation.
        """
        self.evaluated[invariant] += 1
        if not holds:
            self.violate(invariant, template.format(*values))

    def violate(self, invariant: str, text: str) -> None:
        """Report a violation at the present virtual time."""
        violation = Violation(invariant, text, self._now())
        self.violations.append(violation)
        if self._on_violation is not None:
            self._on_violation(violation)

    def situation(self, name: str) -> None:
        """Count a situation that was reached. SITUATIONS are those that long runs must reach; others count, too."""
        self.reached[name] = self.reached.get(name, 0) + 1
