"""The report of the job `scrub`: totals of a run, and each bad copy of a ledger with the command that repairs it.

Not here: the job itself, and the rows that its tasks write (`spark/jobs/scrub.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from buckram.types import BookieId, LedgerId


@dataclass(frozen=True, slots=True)
class BadReplica:
    """A bad copy of a ledger on one bookie.

    `kind`: missing; damaged; differs, its digests are good but its contents are not those of other replicas; lied, the
    bookie is convicted; or unknown, the bookie could not be read. `entries` counts the bad ones, `examples` has some.
    """

    ledger: LedgerId
    bookie: BookieId
    kind: str
    entries: int
    examples: tuple[int, ...]
    detail: str
    repair: str
    """The command that repairs it; empty if there is none. A password appears as a shell variable only."""


@dataclass(slots=True)
class ScrubReport:
    """Report of one run of the job. `replicas` counts copies of ledgers on bookies; `growing` ledgers that are open.

    The part of an open ledger that can still grow was skipped.
    """

    run: str
    ledgers: int = 0
    replicas: int = 0
    entries: int = 0
    bytes: int = 0
    growing: int = 0
    seconds: float = 0.0
    bad: list[BadReplica] = field(default_factory=list)
    unknown: list[BadReplica] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether all replicas were read and are good."""
        return not self.bad and not self.unknown


def merge_replicas(rows: Sequence[Mapping[str, Any]], repair: str) -> tuple[list[BadReplica], list[BadReplica]]:
    """Merge the bad pieces of each copy of a ledger; returns bad and unknown replicas."""
    bad: list[BadReplica] = []
    unknown: list[BadReplica] = []
    copies: dict[tuple[int, str, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        copies.setdefault((row["ledger"], row["bookie"], row["state"] == "unknown"), []).append(row)
    for (ledger, bookie, is_unknown), parts in copies.items():
        if is_unknown:
            left = sum(part["entries"] - part["good"] for part in parts)
            unknown.append(BadReplica(ledger, bookie, "unknown", left, (), parts[0]["error"], repair))
            continue
        missing, damaged = (sum(part[what] for part in parts) for what in ("missing", "damaged"))
        examples = tuple(entry for part in parts for entry in part["bad"])[:10]
        lies = [part["error"] for part in parts if part["state"] == "lied"]
        detail = ", ".join(f"{count} {what}" for count, what in ((missing, "missing"), (damaged, "damaged")) if count)
        bad.append(
            BadReplica(
                ledger,
                bookie,
                "lied" if lies else "damaged" if damaged else "missing",
                missing + damaged,
                examples,
                "; ".join([f"{detail} of {sum(part['entries'] for part in parts)} entries", *lies[:1]]),
                repair,
            )
        )
    return bad, unknown
