"""Mutants of ledgers: planted bugs, by the part that they break.

`base` says what a mutant is.
"""

from __future__ import annotations

from simulator.ledgers.mutants import (
    absence,
    bookie,
    deletions,
    foreign,
    identity,
    racks,
    reading,
    recovery,
    store,
    tenants,
    writer,
)
from simulator.ledgers.mutants.base import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        *writer.MUTANTS,
        *recovery.MUTANTS,
        *reading.MUTANTS,
        *bookie.MUTANTS,
        *deletions.MUTANTS,
        *identity.MUTANTS,
        *absence.MUTANTS,
        *foreign.MUTANTS,
        *store.MUTANTS,
        *racks.MUTANTS,
        *tenants.MUTANTS,
    )
}
RARE = (
    "ack-during-change",
    "change-back",
    "loser-keeps-its-own",
    "reads-beyond-the-lac",
    "first-negative-wins",
    "closed-end-ignored",
    "lac-falls",
    "fence-and-add-race",
    "empty-disk-serves",
    "claimed-lac",
    "files-not-checked",
    "digest-not-checked",
    "drain-before-reset",
    "change-under-deferred-sync",
    "torn-counts-as-lost",
    "cut-file-ignored",
    "recovery-in-one-rack",
    "rest-proves-nothing",
)
"""Mutants that needed more than five random lives."""

__all__ = ["MUTANTS", "RARE", "Mutant"]
