"""Report of a run: number of checks by rule, and violations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

RULES = {
    "S1": "an acknowledged entry is not beyond the end of its closed ledger",
    "S2": "everybody who closed or recovered a ledger reports the same last entry and length",
    "S3": "every acknowledged entry is read as it was written",
    "S5": "after healing every entry of every closed fragment has Qw good copies, on the bookies that metadata name",
    "S6": "an entry is what its writer appended under that id",
    "S7": "all copies of an entry have the payload that its writer appended",
    "S8": "entries of a writer are acknowledged in order, without gaps, and none after its failure",
    "S9": "a closed ledger has no entry that was not sent",
    "S10": "fragments begin at 0, increase, and name distinct bookies",
    "S12": "the LAC that a reader saw never sank, and is not beyond the end of the closed ledger",
    "S13": "the length of a ledger is the sum of its payloads",
    "S14": "what a tailing reader got is a part of the ledger's beginning, as it was written",
    "S16": "a tailing reader gets no entry beyond the LAC",
    "S18": "nobody is told that an entry does not exist while he reads what is confirmed",
    "S19": "a closed ledger is read from its first entry to its last",
    "S20": "each batch is acknowledged once, under the ids that it was appended with",
    "M1": "entries with explicit ids are acknowledged in order, and an id that is taken is refused",
    "M2": "what a force made durable is there after power losses that take what was not synced",
    "M3": "a ledger with deferred sync keeps its first ensemble until it is closed",
    "M4": "what was acknowledged is there after power losses that take what was not synced",
    "M5": "with an enforced placement nothing is acknowledged while the bookies of one rack alone can answer",
    "M6": "an enforced placement is met by every write quorum of every ensemble",
    "M7": "no ledger names a bookie that was lost for good, after healing",
    "M8": "a bookie that comes back without its data is not let in",
    "M9": "the segments of a stream follow each other without a gap, and all are sealed but the last",
    "M10": "nothing is acknowledged to a ledger after its deletion",
    "exactly-once": "records of a producer are in their stream once and in order, all acknowledged ones among them",
    "offsets": "an acknowledged record is at the offset that its writer was told",
    "follow": "what a reader of a stream got at an offset is what stands there at the end",
    "D3": "all replicas of the database end with the same pages, those of the log, and none stops because it differs",
    "D5": "an acknowledged transaction of the database is there, and one that was told to be aborted is not",
    "D6": "no transaction of the database is there twice, and none that nobody began",
    "D7": "one order explains what all transactions of the database saw, and it respects time",
    "bank": "transfers move money and make none: the sum is the same in every look, the balances follow from them",
    "fresh": "a look at the database lacks nothing that was acknowledged before the moment or the offset that it names",
    "healed": "every ledger has all its copies again soon after the last fault",
    "ends": "an actor that is told to end does so",
}

LOSSES = frozenset({"S1", "S3", "M2", "M4", "exactly-once", "D5"})
"""Rules that are broken when something acknowledged is lost."""


@dataclass
class Report:
    """Result of a run. `checks`: number of evaluations of each rule. `violations`: the rule, and what was found
    instead."""

    checks: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(RULES, 0)))
    violations: list[tuple[str, str]] = field(default_factory=list)

    def check(self, rule: str, holds: bool, text: str) -> None:
        assert rule in RULES, rule
        self.checks[rule] += 1
        if not holds:
            self.violations.append((rule, text))
