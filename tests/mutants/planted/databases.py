"""Bugs of SQL databases: commits, groups, savepoints, spilled pages, readers."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_FOLLOWING = "tests/db/test_following.py::"
_SUPERSEDED = "tests/db/test_superseded.py::"
_TOKENS = "tests/db/test_tokens.py::"
_WRITING = "tests/db/test_writing.py::"

MUTANTS = (
    TestMutant(
        "db-commit-early",
        "a commit is in the leader's files before the log has acknowledged it",
        edited(("buckram.db.execution:Execution._have_decided", "pending.decided.wait()", "pending.decided.wait(0)")),
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
                "self._headers[frame] = header = parse_frame_header(data)",
                "header = self._headers.setdefault(frame, parse_frame_header(data))",
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
    TestMutant(
        "db-no-back-pressure",
        "a follower takes from the log whatever waits for its thread",
        edited(("buckram.db.state:DatabaseState.room", "return self.engine.room()", "return None")),
        (_SUPERSEDED + "test_the_loop_goes_on_while_groups_wait_for_a_long_statement",),
    ),
    TestMutant(
        "db-goes-on-in-vain",
        "a statement goes on although another leader has written",
        edited(("buckram.db.engine:Engine.superseded", "self._queued > 0", "False")),
        (_SUPERSEDED + "test_a_statement_that_can_never_be_committed_is_stopped",),
    ),
    TestMutant(
        "db-image-too-late",
        "a snapshot that waits for a statement comes too late",
        edited(("buckram.db.engine:Engine.ask_for_commit", "self._take_images()", "pass")),
        (_SUPERSEDED + "test_an_image_is_taken_before_what_is_being_executed_is_committed",),
    ),
    TestMutant(
        "db-token-of-a-commit",
        "a transaction is committed although its token was used",
        edited(
            (
                "buckram.db.transactions:OpenTransaction.commit",
                "self._committing.counts(receipt.token) if receipt is not None else None",
                "None",
            )
        ),
        (_TOKENS + "test_a_transaction_under_a_used_token_is_rolled_back_and_told_the_first_counts",),
    ),
    TestMutant(
        "db-token-too-old",
        "a token is forgotten a day after the first one of its span, and not after the last",
        edited(("buckram.core.db.outcomes:Outcomes._expired", "span.ended_us", "span.began_us")),
        ("tests/core/db/test_outcomes.py::test_the_outcome_of_a_token_is_known_for_a_day",),
    ),
    TestMutant(
        "db-tokens-unbounded",
        "a transaction is committed under a token that there is no room for",
        edited(
            ("buckram.db.transactions:OpenTransaction.commit", "(full := self._committing.full())", "(full := None)")
        ),
        (_TOKENS + "test_where_no_more_tokens_can_be_kept_new_ones_are_refused",),
    ),
    TestMutant(
        "db-receipt-of-nothing",
        "what changed nothing leaves no receipt",
        edited(("buckram.db.execution:Execution._record_receipts", "not self._wrote", "False")),
        (_TOKENS + "test_what_changes_nothing_leaves_a_receipt_too",),
    ),
    TestMutant(
        "db-earlier-leadership",
        "a call that came under an earlier leadership is executed",
        edited(("buckram.db.writer:Writer._execute", "if waiting.leader is not leader:", "if False:")),
        (_TOKENS + "test_what_was_asked_of_an_earlier_leadership_is_not_executed",),
    ),
    TestMutant(
        "db-first-of-several",
        "the first statement of a text of several is executed",
        edited(("buckram.db.statements:Executor.execute", "len(sql) != len(statement.sql) and", "False and")),
        ("tests/db/test_bounds.py::test_nothing_of_a_text_of_several_statements_is_executed",),
    ),
    TestMutant(
        "db-snapshot-unproved",
        "a snapshot is restored whose pages are not those of its digest",
        edited(("buckram.db.state:DatabaseState.fault", '!= (head["digest"], head["pages"])', "is None")),
        ("tests/db/test_transfer.py::test_a_snapshot_with_other_pages_than_its_digest_is_passed_over_loudly",),
    ),
    TestMutant(
        "db-hot-journal",
        "a file is restored with the pages of a transaction that a crash left behind",
        edited(
            (
                "buckram.db.transfer:_File._held",
                'connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()',
                "pass",
            )
        ),
        ("tests/db/test_transfer.py::test_what_a_crash_left_beside_a_file_is_brought_to_its_end",),
    ),
)
