"""Bugs of SQL databases: commits, groups, savepoints, spilled pages, readers."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_FOLLOWING = "tests/state/db/test_following.py::"
_BACKUPS = "tests/state/db/test_backups.py::"
_SUPERSEDED = "tests/state/db/test_superseded.py::"
_TOKENS = "tests/state/db/test_tokens.py::"
_REPEATS = "tests/serve/hrana/test_repeats.py::"
_STATEMENTS = "tests/serve/gateway/test_database_pages.py::"
_SOCKETS = "tests/serve/hrana/test_websockets.py::"
_WRITING = "tests/state/db/test_writing.py::"

MUTANTS = (
    TestMutant(
        "db-fail-forgotten",
        "a statement that said OR FAIL is not done again when another one made SQLite roll everything back",
        edited(
            (
                "buckram.state.db.table_engine.execution:Execution._attempt",
                "one in self._partly or not isinstance",
                "not isinstance",
            )
        ),
        (_WRITING + "test_a_statement_that_says_or_fail_keeps_what_it_did_beside_those_of_others",),
    ),
    TestMutant(
        "cdc-undone-rows",
        "what triggers did of a statement that failed is told as if it had been committed",
        edited(("buckram.state.db.table_engine.row_images:RowImages.execute", " and self._is_kept(executor)", "")),
        ("tests/state/db/test_cdc.py::test_what_triggers_did_of_a_statement_that_fails_is_undone_or_kept_with_it",),
    ),
    TestMutant(
        "db-reading-with",
        "a read that begins with WITH takes a turn to write",
        edited(("buckram.state.db.table_engine.statements:_looked_at", 'word == "WITH"', 'word == "WITHOUT"')),
        (_WRITING + "test_a_read_that_begins_with_with_takes_no_turn",),
    ),
    TestMutant(
        "backup-unverified",
        "older backups go although the new one came back with other bytes",
        edited(("buckram.state.db.backups:Backups._made", "back != digest", "False")),
        (_BACKUPS + "test_a_file_that_comes_back_with_other_bytes",),
    ),
    TestMutant(
        "backup-found-unproven",
        "a file that is found at the place counts as a backup whatever is in its rows",
        edited(("buckram.state.db.backups:Backups._found", "not digest.startswith(newest.digest)", "False")),
        (_BACKUPS + "test_a_file_that_is_found_counts_only_without_faults",),
    ),
    TestMutant(
        "backup-of-namesake",
        "a database that was made anew takes the backups of the old one for its own",
        edited(("buckram.core.db.backups:files_of", "match is None or match[1] != uid", "match is None")),
        (_BACKUPS + "test_a_database_that_was_made_anew_has_backups_of_its_own",),
    ),
    TestMutant(
        "backup-in-doubt",
        "a clock that nobody believes makes backups due, which push out the old ones",
        edited(
            (
                "buckram.streams.maintain.janitor:Janitor._look_at_backups",
                "self._now(policy.backup_every_s)",
                "self._client.services.clocks.now()",
            )
        ),
        (_BACKUPS + "test_nothing_is_made_by_age_while_the_time_is_in_doubt",),
    ),
    TestMutant(
        "hrana-sent-on-twice",
        "a request whose first statement may be committed is sent on to the next leader",
        edited(
            (
                "buckram.serve.hrana.pipeline:Pipeline._execute",
                "self.untouched = False\n    raise",
                "raise",
            )
        ),
        ("tests/serve/hrana/test_forwarding.py::test_what_may_be_done_here_is_not_done_again_by_the_next_leader",),
    ),
    TestMutant(
        "temp-trigger",
        "a trigger of the schema temp on a replicated table passes the guard",
        edited(
            (
                "buckram.state.db.table_engine.statements:Guard._authorize",
                "action in _CREATIONS",
                "action in _CREATIONS - {18}",
            )
        ),
        (_WRITING + "test_what_a_replicated_database_does_not_execute",),
    ),
    TestMutant(
        "pragma-stays",
        "what a caller sets of the writing connection stays for the next transaction",
        edited(("buckram.state.db.table_engine.execution:Execution._prepare", "executor.give_back()", "pass")),
        (_WRITING + "test_what_a_caller_sets_ends_with_his_transaction",),
    ),
    TestMutant(
        "pragma-shared",
        "what a caller sets counts for those that share the commit",
        edited(("buckram.state.db.table_engine.execution:Execution._unit", "executor.give_back()", "pass")),
        (_WRITING + "test_what_a_unit_sets_is_not_there_for_those_that_share_its_commit",),
    ),
    TestMutant(
        "db-commit-early",
        "a commit is in the leader's files before the log has acknowledged it",
        edited(
            (
                "buckram.state.db.table_engine.engine:Engine.ask_for_commit",
                "pending.decided.wait()",
                "pending.decided.wait(0)",
            )
        ),
        (_FOLLOWING + "test_a_leader_that_is_fenced_commits_nothing_more",),
    ),
    TestMutant(
        "db-stale-group",
        "a group that was computed on another state is applied",
        edited(
            (
                "buckram.state.db.commits.state_machine:DatabaseState.apply_entry",
                "if group.sequence != self.sequence + 1:",
                "if False:",
            ),
        ),
        ("tests/state/db/commits/test_state_machine.py::test_a_group_that_was_made_for_another_state_is_void",),
    ),
    TestMutant(
        "db-digest-ignored",
        "a follower whose pages differ goes on",
        edited(("buckram.state.db.table_engine.engine:Engine._apply", "digest != group.digest", "False")),
        (_FOLLOWING + "test_a_replica_whose_pages_were_changed_stops_and_says_where",),
    ),
    TestMutant(
        "db-deferred-keys",
        "a deferred foreign key that is violated fails the whole group",
        edited(("buckram.state.db.table_engine.execution:Execution._unit", "if _deferred(connection):", "if False:")),
        (_WRITING + "test_a_deferred_foreign_key_fails_alone",),
    ),
    TestMutant(
        "db-receipt-lost",
        "a token is not recorded with what was committed under it",
        edited(("buckram.state.db.table_engine.execution:Execution._unit", "if unit.token is not None:", "if False:")),
        (_WRITING + "test_under_a_token_it_is_executed_once",),
    ),
    TestMutant(
        "db-spilled-frames",
        "what a rolled-back savepoint had spilled stays in the group",
        edited(
            (
                "buckram.state.db.table_engine.capture_vfs:CaptureVfs.writes",
                "self._headers[frame] = header = parse_frame_header(data)",
                "header = self._headers.setdefault(frame, parse_frame_header(data))",
            )
        ),
        (_WRITING + "test_spilled_pages_of_a_rolled_back_savepoint_are_in_no_group",),
    ),
    TestMutant(
        "db-image-unheld",
        "a snapshot's pages are read without a reader that holds them",
        edited(
            ("buckram.state.db.table_engine.wal_files:WalFiles.image", 'holder.execute("BEGIN").fetchall()', "pass")
        ),
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
        edited(
            ("buckram.state.db.commits.state_machine:DatabaseState.room", "return self.engine.room()", "return None")
        ),
        (_SUPERSEDED + "test_the_loop_goes_on_while_groups_wait_for_a_long_statement",),
    ),
    TestMutant(
        "db-goes-on-in-vain",
        "a statement goes on although another leader has written",
        edited(("buckram.state.db.table_engine.engine:Engine.superseded", "self._queued > 0", "False")),
        (_SUPERSEDED + "test_a_statement_that_can_never_be_committed_is_stopped",),
    ),
    TestMutant(
        "db-image-too-late",
        "a snapshot that waits for a statement comes too late",
        edited(("buckram.state.db.table_engine.engine:Engine.ask_for_commit", "self._take_images()", "pass")),
        (
            _SUPERSEDED + "test_an_image_is_taken_before_what_is_being_executed_is_committed",
            "tests/state/db/test_transfer.py::test_backups_and_snapshots_of_a_busy_leader_are_states_that_were_committed",
        ),
    ),
    TestMutant(
        "db-token-of-a-commit",
        "a transaction is committed although its token was used",
        edited(
            (
                "buckram.state.db.commits.transactions:OpenTransaction.commit",
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
            (
                "buckram.state.db.commits.transactions:OpenTransaction.commit",
                "(full := self._committing.full())",
                "(full := None)",
            )
        ),
        (_TOKENS + "test_where_no_more_tokens_can_be_kept_new_ones_are_refused",),
    ),
    TestMutant(
        "db-receipt-of-nothing",
        "what changed nothing leaves no receipt",
        edited(("buckram.state.db.table_engine.execution:Execution._record_receipts", "not self._wrote", "False")),
        (_TOKENS + "test_what_changes_nothing_leaves_a_receipt_too",),
    ),
    TestMutant(
        "db-earlier-leadership",
        "a call that came under an earlier leadership is executed",
        edited(
            (
                "buckram.state.db.commits.write_queue:WriteQueue._execute",
                "if waiting.leader is not leader:",
                "if False:",
            )
        ),
        (_TOKENS + "test_what_was_asked_of_an_earlier_leadership_is_not_executed",),
    ),
    TestMutant(
        "db-first-of-several",
        "the first statement of a text of several is executed",
        edited(
            (
                "buckram.state.db.table_engine.statements:Executor.execute",
                "len(sql) != len(statement.sql) and",
                "False and",
            )
        ),
        ("tests/state/db/test_bounds.py::test_nothing_of_a_text_of_several_statements_is_executed",),
    ),
    TestMutant(
        "db-snapshot-unproved",
        "a snapshot is restored whose pages are not those of its digest",
        edited(
            (
                "buckram.state.db.commits.state_machine:DatabaseState.fault",
                '!= (head["digest"], head["pages"])',
                "is None",
            )
        ),
        ("tests/state/db/test_transfer.py::test_a_snapshot_with_other_pages_than_its_digest_is_passed_over_loudly",),
    ),
    TestMutant(
        "db-hot-journal",
        "a file is restored with the pages of a transaction that a crash left behind",
        edited(
            (
                "buckram.state.db.transfer:_File._held",
                'connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()',
                "pass",
            )
        ),
        ("tests/state/db/test_transfer.py::test_what_a_crash_left_beside_a_file_is_brought_to_its_end",),
    ),
    TestMutant(
        "db-read-of-an-old-state",
        "a thread that took a state before a slow statement answers later reads from it",
        edited(("buckram.state.db.table_engine.readers:Readers._work_off", "number > newest", "False")),
        ("tests/state/db/table_engine/test_readers.py::test_a_read_after_a_write_sees_it_beside_slow_statements",),
    ),
    TestMutant(
        "db-read-of-nothing",
        "a replica that was just opened is read before it has read its log",
        edited(("buckram.state.db.database:Database._begun", "await self._replica.begun()", "pass")),
        (_FOLLOWING + "test_a_replica_that_was_just_opened_answers_from_nothing_older_than_its_opening",),
    ),
    TestMutant(
        "db-refused-rows-stay",
        "what a statement changed before its rows were refused stays in the transaction",
        edited(
            (
                "buckram.state.db.table_engine.execution:Execution._all_or_nothing",
                'executor.inside("ROLLBACK TO buckram_statement")',
                "pass",
            )
        ),
        (
            "tests/state/db/test_write_errors.py::test_a_statement_whose_rows_are_refused_leaves_none_in_its_transaction",
        ),
    ),
    TestMutant(
        "db-files-not-looked-for",
        "nobody looks whether the local files are still there",
        edited(("buckram.state.db.table_engine.engine:Engine._look", "not self.files.intact", "False")),
        ("tests/state/db/test_deleted_files.py::test_files_that_cannot_be_made_anew_end_the_leadership",),
    ),
    TestMutant(
        "db-other-files-opened",
        "a connection is opened beside a log, or an index of it, that SQLite makes anew",
        edited(("buckram.state.db.table_engine.wal_files:WalFiles._check_intact", "not self.intact", "False")),
        (
            "tests/state/db/test_deleted_files.py::test_deleted_files_are_made_anew_on_a_leader_and_on_a_follower[main.db-wal]",
        ),
    ),
    TestMutant(
        "db-turns-not-in-rotation",
        "a caller who asks again and again has all turns before the next one has any",
        edited(("buckram.state.db.commits.write_queue:RoundRobin.take", "self.queues.move_to_end(caller)", "pass")),
        (_WRITING + "test_who_asks_again_and_again_does_not_hold_others",),
    ),
    TestMutant(
        "hrana-token-of-a-commit-lost",
        "the token that a stream was given is not that of its transaction's commit",
        edited(
            ("buckram.sql.session:SqlSession._inside", "transaction.commit(token=self._token)", "transaction.commit()")
        ),
        (_REPEATS + "test_a_function_gives_the_token_where_a_driver_has_no_headers",),
    ),
    TestMutant(
        "hrana-token-kept-for-the-next-request",
        "a token that came with a request that only read is that of whatever the stream writes next",
        edited(("buckram.serve.hrana.pipeline:Pipeline._end_token", "self._stream.session.autocommit", "False")),
        (_REPEATS + "test_a_header_makes_one_statement_one_batch_and_one_commit_happen_once",),
    ),
    TestMutant(
        "hrana-token-not-sent-on",
        "a follower sends a request on to the leader without its token",
        edited(("buckram.serve.hrana.execution:Execution._send_on", "in _PASSED_ON if", "in _PASSED_ON[1:] if")),
        (_REPEATS + "test_a_retry_after_outcome_unknown_applies_once",),
    ),
    TestMutant(
        "hrana-history-of-the-follower",
        "a follower says its own history of what the leader answered",
        edited(
            (
                "buckram.serve.hrana.execution:Execution._send_on",
                "in found.headers}",
                "in found.headers} | self._history()",
            )
        ),
        ("tests/serve/hrana/test_forwarding.py::test_answers_say_in_which_history_of_the_metadata_they_were_given",),
    ),
    TestMutant(
        "hrana-rights-of-the-server-that-sends-on",
        "at the leader a request has the rights of the server that sent it on",
        edited(("buckram.serve.hrana.forwarding:rights_sent", "{_RIGHTS: _READ}", "{}")),
        (_STATEMENTS + "test_other_machines_read_from_a_gateway_without_tokens",),
    ),
    TestMutant(
        "hrana-backup-outlives-its-grant",
        "a backup goes on after its grant was withdrawn",
        edited(("buckram.serve.hrana.database_files:Exchange.backup", "over=over,", "")),
        ("tests/serve/hrana/test_database_files.py::test_a_backup_ends_with_its_grant",),
    ),
    TestMutant(
        "gateway-statements-by-session",
        "a browser's session sends statements to databases",
        edited(("buckram.serve.gateway.shared.authentication:Access.who", "if operation.statements:", "if False:")),
        (_STATEMENTS + "test_a_browsers_session_is_no_token",),
    ),
    TestMutant(
        "hrana-offset-not-waited-for",
        "a replica that is asked for an offset answers from what it has",
        edited(("buckram.state.db.database:Database.applied_at_least", "self.applied >= offset", "True")),
        (_REPEATS + "test_an_offset_that_does_not_come_is_not_waited_for_for_ever",),
    ),
    TestMutant(
        "hrana-lane-begins-again-in-a-transaction",
        "what follows on a transaction that was lost with its leader is executed alone",
        edited(
            (
                "buckram.serve.hrana.websocket_streams:Lane._begin_again",
                "self._in_transaction or self._remembers",
                "False",
            )
        ),
        (_SOCKETS + "test_a_follower_sends_a_stream_on_and_takes_over",),
    ),
    TestMutant(
        "hrana-grants-of-hello",
        "a WebSocket keeps the right to write that its first request had",
        edited(
            ("buckram.serve.hrana.websocket_streams:Lane._work", "stream.session.may_write = rights.may_write", "pass")
        ),
        (_SOCKETS + "test_hello_says_who_asks_and_each_request_looks_again",),
    ),
    TestMutant(
        "hrana-everything-read",
        "a WebSocket is read however much of what came is not answered",
        edited(("buckram.serve.hrana.websockets:_Connection._take", "self._waiting >= self._limits.requests", "False")),
        (_SOCKETS + "test_who_sends_and_does_not_read_is_not_read_any_more_and_then_cut_off",),
    ),
    TestMutant(
        "hrana-texts-of-later",
        "a request takes the stored text of the moment when its turn comes",
        edited(
            (
                "buckram.serve.hrana.websockets:_Connection._planned",
                "return one, lambda: self._ask(asked, one, raw)",
                "return one, lambda: self._ask(asked, one, with_texts(asked.raw, self._texts.text))",
            )
        ),
        (_SOCKETS + "test_requests_are_answered_in_order_although_they_are_sent_at_once",),
    ),
    TestMutant(
        "db-loaded-over-tables",
        "a file is loaded into a database that has tables",
        edited(("buckram.state.db.transfer:_write_pages", "found.rows != [(0,)]", "False")),
        (
            "tests/state/db/test_transfer.py::"
            "test_a_file_fills_a_database_that_is_empty_and_one_that_is_cut_off_leaves_it_empty",
        ),
    ),
    TestMutant(
        "db-loaded-with-its-schema-number",
        "what is loaded keeps the number of its schema, by which readers may know another one",
        edited(("buckram.state.db.transfer:_schema_after", ") + 1,", "),")),
        (
            "tests/state/db/test_transfer.py::"
            "test_readers_from_before_see_the_tables_of_a_file_whose_schema_has_the_number_of_theirs",
        ),
    ),
    TestMutant(
        "db-backup-of-what-was-told",
        "a backup of the newest state ends at what readers had been told of",
        edited(
            (
                "buckram.state.db.opening:_newest",
                "wanted = await end_of_acknowledged(client, ns.store, name)",
                "wanted = 0",
            )
        ),
        ("tests/state/db/test_transfer.py::test_a_backup_has_what_was_acknowledged_a_moment_ago",),
    ),
    TestMutant(
        "leaders-are-believed",
        "requests are sent on to whatever address the leader of a database announces",
        edited(
            (
                "buckram.serve.hrana.forwarding:DatabaseServerRegistry._is_shown",
                "return address in self._known",
                "return True",
            )
        ),
        ("tests/serve/hrana/test_forwarding.py::test_nothing_is_sent_where_no_server_of_the_cluster_is",),
    ),
    TestMutant(
        "the-callers-token-is-sent-on",
        "a leader gets the token of the caller",
        edited(
            (
                "buckram.serve.http.tokens:ClusterTokens.vouch",
                'return f"{_SCHEME} {await self._security.pass_for(token, _purpose(path))}"',
                "return f\"Bearer {await self._security.pass_for(token, '')}\"",
            )
        ),
        ("tests/serve/hrana/test_database_access.py::test_a_leader_is_told_who_asks_and_gets_no_token_of_the_caller",),
    ),
    TestMutant(
        "vouched-again-and-again",
        "what says who asks counts as often as it comes",
        edited(("buckram.serve.http.tokens:OnceOnly.take", "return False", "return True")),
        ("tests/serve/hrana/test_database_access.py::test_what_says_who_asks_is_for_one_request_to_one_path",),
    ),
    TestMutant(
        "db-tells-its-files",
        "statements tell where on the server the files of a database are",
        edited(("buckram.state.db.table_engine.statements:Executor.execute", "if text.files:", "if False:")),
        ("tests/state/db/test_bounds.py::test_no_statement_tells_where_the_files_are",),
    ),
    TestMutant(
        "fork-of-nothing-differs",
        "a fork of an empty database has another page than its source, and so another digest",
        edited(("buckram.state.db.transfer:_schema_after", "if page == before:", "if False:")),
        ("tests/state/db/test_transfer.py::test_a_fork_has_the_very_pages_of_its_source",),
    ),
)
