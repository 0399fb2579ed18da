"""Bugs of repair: its order."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_FIRST = "tests/healing/repair/test_replicator.py::test_ledgers_with_the_fewest_copies_are_repaired_first"
_NOTED = "tests/healing/auditing/test_noted.py::test_"

MUTANTS = (
    TestMutant(
        "repair-safest-first",
        "a replicator takes the ledgers with the most copies first",
        edited(
            ("buckram.core.healing.needs:urgency", "needs.survivors, needs.ledger", "-needs.survivors, needs.ledger")
        ),
        (_FIRST, "tests/core/healing/test_needs.py::test_ledgers_with_fewer_copies_come_first_then_those_of_lower_ids"),
    ),
    TestMutant(
        "repair-by-id",
        "a replicator takes ledgers in the order of their ids",
        edited(
            (
                "buckram.healing.repair.replicator:Replicator._queue_up",
                "(urgency(needs), candidate)",
                "((0, needs.ledger), candidate)",
            )
        ),
        (_FIRST,),
    ),
    TestMutant(
        "notes-of-the-absent-all-at-once",
        "each look reads the records of all ledgers with members that are away",
        edited(("buckram.healing.auditing.absence_checks:NoteQueue.due", "[:AWAY_AT_ONCE]", "")),
        (f"{_NOTED}of_bookies_that_are_away_a_part_is_looked_at_and_all_in_turn",),
    ),
    TestMutant(
        "notes-of-the-absent-without-turns",
        "each look reads the same records of ledgers with members that are away",
        edited(("buckram.healing.auditing.absence_checks:NoteQueue.due", "self._turn = turns[-1]", "pass")),
        (f"{_NOTED}of_bookies_that_are_away_a_part_is_looked_at_and_all_in_turn",),
    ),
    TestMutant(
        "back-is-not-news",
        "a note that could not be settled waits for its pause although its bookie is back",
        edited(("buckram.healing.auditing.absence_checks:NoteQueue._is_due", "state[0] != session or ", "")),
        (f"{_NOTED}a_bookie_that_is_back_has_all_of_its_turns_at_once_and_then_with_pauses",),
    ),
    TestMutant(
        "notes-of-the-deleted-stay",
        "where no autorecovery runs, notes of deleted ledgers pile up",
        edited(("buckram.bookie.garbage.collector:Collector.collect", "await forget_deleted(self._metadata)", "pass")),
        (
            "tests/metadata/records/test_incomplete_copies.py::test_a_bookie_that_collects_takes_them_back_without_autorecovery",
        ),
    ),
    TestMutant(
        "recorded-is-gone",
        "a note goes although its ledger has a record, because its deletion is recorded, too",
        edited(
            (
                "buckram.metadata.records.incomplete_copies:forget_deleted",
                "if ledger in deleted and await is_gone(store, ledger):",
                "if ledger in deleted:",
            )
        ),
        (
            "tests/metadata/records/test_incomplete_copies.py::test_a_ledger_that_is_there_although_its_deletion_is_recorded_keeps_its_note",
        ),
    ),
)
