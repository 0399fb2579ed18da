"""Bugs in recording deletions and in what bookies do about them."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_STORE = "tests/contracts/test_deletions.py::"
_BOOKIE = "tests/bookie/garbage/test_gc_limits.py::"
_BYTES = "tests/core/ledgers/test_deletions.py::"

MUTANTS = (
    TestMutant(
        "deletions-unrecorded",
        "a ledger's metadata are removed without a record of the deletion",
        edited(
            (
                "buckram.metadata.tree.removals:Removals._carry_out",
                "*(one.op for one in left), *mark]",
                "*(one.op for one in left)]",
            )
        ),
        (_STORE + "test_a_deletion_is_recorded_with_the_removal[memory]",),
    ),
    TestMutant(
        "deletions-made-again",
        "a creation does not look whether the id was deleted",
        edited(
            (
                "buckram.metadata.tree.removals:Removals.never_deleted",
                "if ledger_id in decode_deleted(key, found.value):",
                "if False:",
            )
        ),
        (_STORE + "test_nothing_is_made_under_a_recorded_id[memory]",),
    ),
    TestMutant(
        "deletions-despite-metadata",
        "a bookie deletes what is recorded without asking for the ledger's metadata",
        edited(("buckram.bookie.garbage.collector:Collector.recorded_round", "if is_there)", "if False)")),
        (_BOOKIE + "test_what_has_metadata_all_the_same_is_kept",),
    ),
    TestMutant(
        "deletions-unbelieved-store",
        "a bookie follows the records of a store that went back",
        edited(
            (
                "buckram.bookie.garbage.collector:Collector.recorded_round",
                "if self._brake is not None and not await self._brake.trusted():",
                "if False:",
            ),
            (
                "buckram.bookie.garbage.collector:Collector.recorded_round",
                "(self._brake is not None and not await self._brake.trusted())",
                "False",
            ),
        ),
        (_BOOKIE + "test_a_store_that_is_not_believed_deletes_nothing",),
    ),
    TestMutant(
        "deletions-edge",
        "the last id of an interval is left out",
        edited(("buckram.core.ledgers.deletions:_decoded", "(1 << (length + 1)) - 1", "(1 << length) - 1")),
        (_BYTES + "test_one_id_at_an_edge",),
    ),
    TestMutant(
        "deletions-count-as-vanished",
        "recorded deletions count for the brake",
        edited(
            (
                "buckram.bookie.garbage.collector:Collector._absent_long_enough",
                "one not in known and one not in recorded for",
                "one not in known for",
            )
        ),
        (_BOOKIE + "test_any_number_of_recorded_deletions_needs_no_word",),
    ),
    TestMutant(
        "deletions-not-followed",
        "a change of a record is not noticed",
        edited(
            (
                "buckram.bookie.garbage.gc_limits:RecordedDeletions._is_news",
                "known is None or known.changed",
                "known is None",
            )
        ),
        (_BOOKIE + "test_a_record_that_comes_later_is_seen_and_nothing_is_read_twice",),
    ),
)
