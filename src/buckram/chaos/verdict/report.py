"""What was checked how often, and what was violated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

RULES = {
    "S1": "an acknowledged entry is not beyond the end of its closed ledger",
    "S2": "everybody who closed or recovered a ledger reports the same last entry and length",
    "S3": "every acknowledged entry is read as it was written",
    "S5": "every entry of a closed ledger has at least Qa good copies in its write set, and no copy is damaged",
    "S6": "an entry is what its writer appended under that id",
    "S8": "entries of a writer are acknowledged in order, without gaps, and none after its failure",
    "S9": "a closed ledger has no entry that was not sent",
    "S10": "fragments begin at 0, increase, and name distinct bookies",
    "S12": "the LAC that a reader saw is not beyond the end of the closed ledger",
    "S13": "the length of a ledger is the sum of its payloads",
    "S14": "what a tailing reader got is a part of the ledger's beginning, as it was written",
    "M7": "no ledger names a bookie that was lost for good, after healing",
    "M10": "nothing is acknowledged to a ledger after its deletion",
    "exactly-once": "records of a producer are in their stream once and in order, all acknowledged ones among them",
    "offsets": "an acknowledged record is at the offset that its writer was told",
    "follow": "what a reader of a stream got at an offset is what stands there at the end",
    "healed": "every ledger has all its copies again soon after the last fault",
    "ends": "an actor that is told to end does so",
}


@dataclass
class Report:
    """`checks`: how often each rule was evaluated. `violations`: the rule, and what was found instead."""

    checks: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(RULES, 0)))
    violations: list[tuple[str, str]] = field(default_factory=list)
    incomplete: int = 0
    """Entries with at least Qa good copies, but fewer than Qw."""

    def check(self, rule: str, holds: bool, text: str) -> None:
        assert rule in RULES, rule
        self.checks[rule] += 1
        if not holds:
            self.violations.append((rule, text))
