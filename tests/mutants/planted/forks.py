"""Bugs of forks: who deletes one that is complete, who holds what, and which producers it knows."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_FORK = "tests/streams/maintain/test_fork.py"

MUTANTS = (
    TestMutant(
        "fork-of-unknown-producers",
        "a fork of a fork that does not know its producers says that it knows them",
        edited(("buckram.core.streams.forks:forked", "plan.inherits and ", "")),
        (f"{_FORK}::test_a_fork_of_a_fork_that_does_not_know_its_producers_says_so",),
    ),
    TestMutant(
        "fork-complete-deleted",
        "whoever cleans up deletes a fork that was completed after the last look at it",
        edited(("buckram.core.streams.forks:given_up", "if head.incomplete", "if not head.deleting")),
        (f"{_FORK}::test_a_fork_that_is_completed_while_a_janitor_judges_it_stays",),
    ),
    TestMutant(
        "fork-last-one-returns",
        "a stream that finds its key taken away believes that others hold the ledger",
        edited(("buckram.streams.shared.ledgers:let_go", " and await holders(streams, ledger)", "")),
        (f"{_FORK}::test_whoever_finds_nobody_left_deletes_the_ledger",),
    ),
    TestMutant(
        "fork-frees-another-lease",
        "making a fork ends with the deletion of whatever lease there is",
        edited(("buckram.streams.maintain.fork:_free", "if found.value == holder.encode():", "if True:")),
        (f"{_FORK}::test_the_lease_of_a_writer_is_left_alone",),
    ),
    TestMutant(
        "fork-holds-without-a-name",
        "the keys that hold a ledger are empty, so an older program's move forgets them",
        edited(("buckram.streams.shared.shared_ledgers:sharing_ops", "str(party.name).encode()", 'b""')),
        (f"{_FORK}::test_a_ledger_is_held_under_the_names_of_its_streams",),
    ),
    TestMutant(
        "fork-forgets-dead-table",
        "a producers' table in a segment that is truncated does not come along",
        edited(
            (
                "buckram.core.streams.forks:_producers",
                "return row.number, None if row in whole else row, True",
                "return (row.number, None, True) if row in whole else (None, None, False)",
            )
        ),
        (f"{_FORK}::test_producers_of_a_segment_that_is_listed_for_them_only",),
    ),
    TestMutant(
        "fork-table-too-old",
        "a fork in a compacted segment has the producers' table of the segment before it",
        edited(("buckram.core.streams.forks:hides_producers", "bool(header.columns & PRODUCERS)", "False")),
        (f"{_FORK}::test_producers_of_a_compacted_segment_are_not_known",),
    ),
    TestMutant(
        "fork-table-twice",
        "a fork holds the ledger of a producers' table although its copy has a newer one",
        edited(
            ("buckram.core.streams.forks:with_copies", "if newer else plan", "if newer and not plan.table else plan")
        ),
        (f"{_FORK}::test_no_older_table_than_that_of_the_copy_is_held",),
    ),
    TestMutant(
        "fork-cut-names-nobody",
        "a cut entry has a column of producers although none of its records has one",
        edited(
            (
                "buckram.core.streams.batch_copies:columns_of",
                "if any(pair is not None for pair in pairs):",
                "if batch.header.columns & 64:",
            )
        ),
        (f"{_FORK}::test_an_entry_is_cut_before_its_first_record_of_a_producer",),
    ),
    TestMutant(
        "fork-forgets-lost-reply",
        "what a fork took hold of is not let go if the reply was lost and the source changed",
        edited(
            (
                "buckram.streams.maintain.fork:_Forking._drop_surplus",
                "if ledger not in needed_ledgers:",
                "if ledger in self._held and ledger not in needed_ledgers:",
            )
        ),
        (f"{_FORK}::test_what_a_lost_reply_took_hold_of_is_let_go",),
    ),
    TestMutant(
        "fork-table-in-history",
        "the copy of a segment with the producers' table is files, which no writer looks into",
        edited(
            (
                "buckram.streams.maintain.fork:_needs_ledger",
                "row is plan.cut or row.number == plan.producers",
                "row is plan.cut",
            )
        ),
        (f"{_FORK}::test_producers_of_history",),
    ),
    TestMutant(
        "fork-moved-unheld",
        "a move to another store forgets who shares a ledger",
        edited(
            (
                "buckram.metadata.maintain.migration:_values",
                "elif held is not None:",
                "elif held is not None and not value:",
            )
        ),
        ("tests/contracts/test_moving.py::test_everything_arrives_and_the_cluster_goes_on_there",),
    ),
)
