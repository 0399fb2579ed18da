"""Planted bugs of a bookie's files: the page that witnesses the log's end, lost data, counted starts, compaction."""

from __future__ import annotations

from simulator.engine.edits import edited
from simulator.engine.plan import Plan
from simulator.ledgers.mutants.base import Mutant


def _tail(plan: Plan) -> bool:
    return "tail" in plan.faults


def _tail_after_power(plan: Plan) -> bool:
    return "tail after power loss" in plan.faults


def _kills(plan: Plan) -> bool:
    return "crash in sync" in plan.faults


def _small(plan: Plan) -> bool:
    return "small files" in plan.faults


MUTANTS = [
    Mutant(
        "tail-page-ignored",
        "I13, F6",
        "a log without its acknowledged end is taken for a shorter one",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._judge_ends",
                "known = [] if mark is None else [*mark.earlier, mark.end]",
                "known = []",
            )
        ),
        scenarios=(),
        lives=_tail,
        seeds=120,
    ),
    Mutant(
        "cut-file-ignored",
        "I13, F6",
        "a log file that was cut off is taken for a shorter log",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._load",
                "elif size < entry.made and not entry.log_end:",
                "elif False:",
            )
        ),
        scenarios=(),
        lives=_tail_after_power,
        seeds=120,
    ),
    Mutant(
        "rest-proves-nothing",
        "I13, F6",
        "a bad block before an empty one is taken for an interrupted write",
        edited(
            (
                "buckram.bookie.storage.log_scan:scan_segment",
                "            result.damaged = True\n        offset =",
                "            result.damaged = result.damaged or bool(block.payload)\n        offset =",
            )
        ),
        scenarios=(),
        lives=_tail_after_power,
        seeds=300,
    ),
    Mutant(
        "tail-page-before-sync",
        "I16",
        "the end of a block is witnessed before its sync",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._write",
                "self._disk.write([write], done)",
                "self.page and self.page.write(group.segment.seq, group.end, group.checksum)\n"
                "    self._disk.write([write], done)",
            )
        ),
        scenarios=(),
        lives=_kills,
        seeds=200,
    ),
    Mutant(
        "starts-not-counted",
        "I18",
        "a start is not counted",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._settle",
                "starts=state.superblock.starts + 1",
                "starts=state.superblock.starts",
            )
        ),
        scenarios=(),
        lives=_kills,
        seeds=40,
    ),
    Mutant(
        "copied-with-a-bad-byte",
        "S7",
        "compaction changes the last byte of each piece it copies",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Output._place",
                "self._parts.append(frames)",
                "self._parts.append(frames[:-1] + bytes([frames[-1] ^ 1]))",
            )
        ),
        scenarios=(),
        lives=_small,
        seeds=120,
    ),
    Mutant(
        "torn-counts-as-lost",
        "I16",
        "an interrupted write counts as a loss",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._load",
                "if scanned.damaged or scanned.log_end < entry.log_end:",
                "if scanned.damaged or scanned.torn or scanned.log_end < entry.log_end:",
            )
        ),
        scenarios=(),
        lives=_kills,
        seeds=300,
    ),
]
