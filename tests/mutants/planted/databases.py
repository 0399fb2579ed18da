"""Bugs of SQL databases: commits, groups, savepoints, spilled pages, readers."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_FOLLOWING = "tests/db/test_following.py::"
_WRITING = "tests/db/test_writing.py::"

MUTANTS = (
    TestMutant(
        "db-commit-early",
        "a commit is in the leader's files before the log has acknowledged it",
        edited(("buckram.db.execution:Execution.on_commit", "pending.decided.wait()", "pending.decided.wait(0)")),
        (_FOLLOWING + "test_a_leader_that_is_fenced_commits_nothing_more",),
    ),
    TestMutant(
        "db-stale-group",
        "a group that was computed on another state is applied",
        edited(
            ("buckram.db.state:DatabaseState.apply_entry", "if group.sequence != self.sequence + 1:", "if False:"),
        ),
        ("tests/db/test_state.py::test_a_group_that_was_made_for_another_state_is_void",),
    ),
    TestMutant(
        "db-digest-ignored",
        "a follower whose pages differ goes on",
        edited(("buckram.db.engine:Engine._apply", "digest != group.digest", "False")),
        (_FOLLOWING + "test_a_replica_whose_pages_were_changed_stops_and_says_where",),
    ),
    TestMutant(
        "db-deferred-keys",
        "a deferred foreign key that is violated fails the whole group",
        edited(
            (
                "buckram.db.execution:Execution._unit",
                "if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:",
                "if False:",
            )
        ),
        (_WRITING + "test_a_deferred_foreign_key_fails_alone",),
    ),
    TestMutant(
        "db-receipt-lost",
        "a token is not recorded with what was committed under it",
        edited(("buckram.db.execution:Execution._unit", "if unit.token is not None:", "if False:")),
        (_WRITING + "test_under_a_token_it_is_executed_once",),
    ),
    TestMutant(
        "db-spilled-frames",
        "what a rolled-back savepoint had spilled stays in the group",
        edited(
            (
                "buckram.db.capture:CaptureVfs.writes",
                "self._headers[frame] = parse_frame_header(data)",
                "self._headers.setdefault(frame, parse_frame_header(data))",
            )
        ),
        (_WRITING + "test_spilled_pages_of_a_rolled_back_savepoint_are_in_no_group",),
    ),
    TestMutant(
        "db-image-unheld",
        "a snapshot's pages are read without a reader that holds them",
        edited(("buckram.db.wal_files:WalFiles.image", 'holder.execute("BEGIN").fetchall()', "pass")),
        (_FOLLOWING + "test_a_reader_that_holds_an_old_state_keeps_it",),
    ),
    TestMutant(
        "db-remnants-found",
        "entries of a rolled-back transaction stay in the index of the write-ahead log",
        edited(
            (
                "buckram.core.db.wal_format:_add_to_region",
                "_forget_after(numbers, slots, first - 1)",
                "pass",
            )
        ),
        ("tests/core/db/test_wal_format.py::test_what_a_rolled_back_transaction_left_is_not_found",),
    ),
)
