"""Bugs of the metadata store on SQLite: watches, sessions, commits."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

WORKER, TREE = "buckram.metadata.sqlite.keys:_Worker", "buckram.metadata.sqlite.tree:SqliteTree"
CHANGES = "buckram.metadata.sqlite.changes:Changes"
INTERLEAVED = (
    "tests/metadata/test_sqlite_interleavings.py::test_stores_on_one_file_agree_with_the_model_and_miss_no_change",
)
COMMITS, NEAR = "tests/metadata/sqlite/test_changes.py", "tests/metadata/sqlite/test_durable_reads.py"
STOPPED = ("tests/metadata/test_sqlite_processes.py::test_process_stopped_inside_a_write_blocks_no_reads_and_is_named",)

_MARK, _MARKED = "buckram.metadata.sqlite.durable_mark:DurableMark", "tests/metadata/sqlite/test_durable_mark.py::"

MUTANTS = (
    TestMutant(
        "sqlite-marked-before-the-sync",
        "the mark of what is durable counts what was committed while the log was synced",
        edited(
            (
                "buckram.metadata.sqlite.database_file:Log.sync",
                "self._mark.synced(end)",
                "self._mark.synced(self._mark.end())",
            )
        ),
        (f"{_MARKED}test_a_commit_during_the_sync_is_not_marked",),
    ),
    TestMutant(
        "sqlite-mark-of-another-file",
        "the mark of what is durable is believed beside a copy of the files",
        edited((f"{_MARK}._salts_and_frames", "and (device, inode) == self._log", "")),
        (f"{_MARKED}test_a_copy_of_all_files_is_not_durable",),
    ),
    TestMutant(
        "sqlite-mark-of-another-log",
        "the mark of what is durable is believed after the log was begun anew",
        edited((f"{_MARK}.covers", "durable.salts == end.salts and", "")),
        (f"{_MARKED}test_a_log_that_was_begun_anew_is_not_durable",),
    ),
    TestMutant(
        "sqlite-mark-after-a-failed-sync",
        "a sync of one process makes others believe in pages that a failed sync of another one has lost",
        edited((f"{_MARK}.covers", "trusted and", "")),
        (f"{_MARKED}test_after_a_failed_sync_everybody_syncs_until_the_log_is_begun_anew",),
    ),
    TestMutant(
        "sqlite-second-watch",
        "an older watch takes over the state of a later read",
        edited((f"{WORKER}._arm", "if armed != token:", "if False:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-token-after-names",
        "the state of a listing is taken after its names",
        edited((f"{TREE}.children", "limit)], token", 'limit)], self.token(("children", parent))')),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-list-not-touched",
        "a change of the same store fires no watch on its list",
        edited((f"{CHANGES}._touch", "in watch_keys(parent, name):", "in watch_keys(parent, name)[:1]:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-own-change-unseen",
        "watches of the same store's changes wait for a poll",
        edited((f"{WORKER}._fire_touched", "for place in places:", "for place in ():")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-row-is-life",
        "a session without its file lives as long as its row",
        edited((f"{TREE}._notice_lost_session", "not (known and self._lock.intact())", "not known")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-never-lost",
        "a session that others have ended goes on",
        edited(
            (
                f"{TREE}._notice_lost_session",
                "if self._lock is not None and not (known and self._lock.intact()):",
                "if False:",
            )
        ),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-writes-when-lost",
        "a write does not check whether its session has ended",
        edited((f"{TREE}._attempt", "self._notice_lost_session(self._is_own_known())", "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-dead-keys-block",
        "keys of a dead session block writes",
        edited((f"{CHANGES}._is_live", "self.end(session)", "self._live[session] = True")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-dead-listed",
        "keys of dead sessions are listed until the next write",
        edited((f"{TREE}._rows", "self.is_live(session)", "True")),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-older-version",
        "a change accepts any version that is not newer",
        edited((f"{CHANGES}._apply", "if row.version != op.version:", "if row.version < op.version:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-first-hears",
        "after a failed commit only the first writer gets the error",
        edited((f"{WORKER}._do_writes", "[error] * len(writes)", "[error] + [[0]] * (len(writes) - 1)")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-reads-behind-writes",
        "reads wait for a change that waits for another process",
        edited(
            (
                f"{TREE}._begin",
                'f"PRAGMA busy_timeout={int(lock_within_s * 1000)}"',
                'f"PRAGMA busy_timeout={int(self._busy_timeout_s * 1000)}"',
            )
        ),
        STOPPED,
    ),
    TestMutant(
        "sqlite-no-view",
        "a change is made whatever others have changed since it was worked out",
        edited((f"{TREE}._attempt", "self._viewed = view.rows", "self._viewed = view.rows; view.close()")),
        (f"{COMMITS}::test_what_was_worked_out_from_an_older_state_is_not_written",),
    ),
    TestMutant(
        "sqlite-rows-of-an-older-view",
        "rows that were read along with a view count after it as well",
        edited((f"{TREE}._attempt", "self._viewed = {}", "pass")),
        (f"{COMMITS}::test_what_a_view_had_read_does_not_count_for_what_is_tried_after_it",),
    ),
    TestMutant(
        "sqlite-covers-what-came-later",
        "the sync of a change counts for what others have committed meanwhile",
        edited(
            (
                "buckram.metadata.sqlite.database_file:SqliteConnection._settle",
                "near.is_durable(seen)",
                "near.is_durable(near.moment())",
            )
        ),
        (f"{NEAR}::test_a_commit_of_others_during_a_sync_is_not_covered_by_it",),
    ),
    TestMutant(
        "sqlite-tells-at-once",
        "the loop tells what others have committed before it is on the disk",
        edited(
            ("buckram.metadata.sqlite.durable_reads:SqliteNear.peek", "if moment == self._durable else", "if True else")
        ),
        (f"{NEAR}::test_a_commit_of_others_is_told_after_a_sync",),
    ),
    TestMutant(
        "sqlite-never-opened",
        "a process that has opened nothing tells what others have not synced",
        edited(("buckram.metadata.sqlite.keys:SqliteKeys._settle_near", "tree.make_all_durable", "tree.make_durable")),
        (f"{NEAR}::test_the_first_to_read_in_a_process_tells_nothing_before_a_sync",),
    ),
    TestMutant(
        "sqlite-set-unseen",
        "a key that is set alone counts as set although its version had changed",
        edited(("buckram.metadata.sqlite.changes:set_alone", "rowcount == 1", "rowcount >= 0")),
        (f"{COMMITS}::test_a_key_that_is_set_alone_is_of_the_version_that_was_read_and_of_no_session",),
    ),
    TestMutant(
        "sqlite-set-waits",
        "a key that is set alone waits for the lock, and all reads of its process with it",
        edited(
            (
                "buckram.metadata.sqlite.changes:set_alone",
                "view = View(db)",
                "View(db).close()\n    view = db.execute('SELECT 1 WHERE 0')",
            )
        ),
        (f"{COMMITS}::test_a_key_that_is_set_alone_waits_for_nobody",),
    ),
    TestMutant(
        "sqlite-lock-between-statements",
        "the lock is held from the beginning of a transaction to its commit",
        edited(("buckram.metadata.sqlite.changes:commit", "if len(parts) > 1 and not", "if not")),
        (f"{COMMITS}::test_the_lock_is_not_held_from_one_statement_to_the_next",),
    ),
    TestMutant(
        "sqlite-count-takes-value",
        "a key loses its value when it gets a child",
        edited(
            (
                "buckram.metadata.sqlite.changes:_statement",
                'f"{COMMIT}{_PUT[0]}{places}{_PUT[1]}"',
                "COMMIT + _PUT[0] + places"
                " + _PUT[1].replace('CASE excluded.version WHEN version', 'CASE excluded.version WHEN -1')",
            )
        ),
        (f"{COMMITS}::test_a_count_of_children_alone_leaves_value_and_version",),
    ),
    TestMutant(
        "sqlite-session-taken",
        "whoever was stopped while its session began keeps all others from beginning one",
        edited((f"{TREE}._begin_session", "range(last + 1, last + 1 + _MAX_BEGINNING)", "range(last + 1, last + 2)")),
        (f"{COMMITS}::test_a_session_that_begins_takes_no_number_of_another_that_does",),
    ),
    TestMutant(
        "sqlite-holder-not-named",
        "a time-out does not name the process that holds the lock",
        edited(
            (
                "buckram.metadata.sqlite.file_locks:held_by",
                "if found and found[0] > 0 else None",
                "if found and found[0] < 0 else None",
            )
        ),
        STOPPED,
    ),
)
