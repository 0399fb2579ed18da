"""Planted bugs of deletions and their records (M12 to M14)."""

from __future__ import annotations

from simulator.engine.edits import edited
from simulator.ledgers.mutants.base import Mutant

_REMOVALS, _GC, _PURE = (
    "buckram.metadata.tree.removals:Removals.",
    "buckram.bookie.garbage.collector:Collector.",
    "buckram.core.ledgers.",
)
_SEEDS = 6

MUTANTS = [
    Mutant(
        "recorded-in-a-second-step",
        "M12",
        "a deletion is recorded after the removal, and the connection may be lost between the two",
        edited(
            (
                _REMOVALS + "_carry_out",
                "await self._keys.multi([*(one.op for one in left), *mark])",
                "await self._keys.multi([one.op for one in left]); await self._keys.multi(mark)",
            )
        ),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "creation-does-not-look",
        "M12",
        "a ledger is made under an id whose deletion is recorded",
        edited((_REMOVALS + "never_deleted", "if ledger_id in decode_deleted(key, found.value):", "if False:")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "record-is-enough",
        "M13",
        "a bookie deletes what is recorded without asking for metadata once more",
        edited(
            (
                _GC + "recorded_round",
                "await asyncio.gather(*map(self._has_record, some))",
                "[False] * len(some)",
            )
        ),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "brake-counts-the-waiting",
        "M14",
        "the brake looks at how many ledgers wait, not at how many vanished between two listings",
        edited(
            ("buckram.bookie.garbage.gc_limits:DeletionLimits.released", "vanished[one] <= most", "len(known) <= most")
        ),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "no-brake",
        "M14",
        "what a store lost at once is collected",
        edited(("buckram.bookie.garbage.gc_limits:DeletionLimits.released", "vanished[one] <= most", "True")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "bucket-begins-early",
        "M12",
        "the last id of a bucket is recorded in the next one",
        edited((_PURE + "deletions:bucket_of", "ledger_id // BUCKET", "(ledger_id + 1) // BUCKET")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "bucket-ends-early",
        "M14",
        "a bucket whose last id was deleted cannot be read",
        edited((_PURE + "deletions:_decoded", "if place > BUCKET:", "if place >= BUCKET:")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "neighbour-deleted",
        "M14",
        "the id before is taken for the one that was deleted",
        edited((_PURE + "deletions:Deleted.__contains__", "ledger_id % BUCKET", "(ledger_id + 1) % BUCKET")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "restore-does-not-compare",
        "M12",
        "what was deleted since the backup comes back with it",
        edited(("buckram.metadata.maintain.acceptance:accept", "await compare(store)", "[]")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "followed-and-forgotten",
        "M12",
        "a bookie does not remember what it deleted",
        edited((_GC + "recorded_round", "await self._memory.remember(going)", "pass")),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
    Mutant(
        "told-before-the-restore",
        "M12",
        "bookies tell nothing while restored metadata wait",
        edited(
            (
                "buckram.bookie.trust.witness:Witness._tell_deletions",
                "await tell(self._metadata, await self._bookie.deletions.known())",
                "pass",
            )
        ),
        scenarios=("deletions",),
        scenario_seeds=_SEEDS,
    ),
]
