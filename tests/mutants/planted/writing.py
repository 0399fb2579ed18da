"""Bugs of writers: ensemble changes, metadata in doubt, resends, force, absent bookies."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

FOLLOWER = "tests/simulator/engine/test_cell_behind_follower.py"

MUTANTS = (
    TestMutant(
        "cell-conflict-own",
        "a refused write ends the doubt",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "except VersionConflict:\n            stale,",
                ("except VersionConflict:\n            self._doubt = None\n            stale,"),
            )
        ),
        ("tests/client/shared/test_ledger_metadata.py::test_doubt_ends_with_a_newer_record_not_with_a_refused_write",),
    ),
    TestMutant(
        "cell-no-sync",
        "after a conflict the metadata is read from a server that may lag",
        edited(("buckram.client.shared.ledger_metadata:MetadataCell.update", "await self._store.sync()", "pass")),
        ("tests/client/shared/test_ledger_metadata.py::test_after_a_conflict_the_record_is_read_after_a_sync",),
    ),
    TestMutant(
        "cell-no-pause",
        "repeated conflicts are retried without a pause",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "if conflicts > 1:\n                    await",
                "if False:\n                    await",
            )
        ),
        ("tests/client/shared/test_ledger_metadata.py::test_conflicts_that_repeat_are_paused_and_end",),
    ),
    TestMutant(
        "cell-impatient",
        "repeated conflicts behind a follower are retried without a pause",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "if conflicts > 1:\n                    await",
                "if False:\n                    await",
            )
        ),
        (f"{FOLLOWER}::test_endless_conflicts_back_off_and_fail_in_time",),
    ),
    TestMutant(
        "cell-doubt-late",
        "doubt begins when the write has failed",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell._write",
                "self._doubt = version\n",
                "",
            )
        ),
        ("tests/client/shared/test_ledger_metadata.py::test_doubt_ends_with_a_newer_record_not_with_a_refused_write",),
    ),
    TestMutant(
        "change-awaited",
        "an absent bookie is held to its earlier incarnation",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange._remember_incarnations",
                " if b not in self._awaited",
                "",
            )
        ),
        ("tests/client/write/test_create_with_absent.py::test_an_absent_member_may_come_back_empty",),
    ),
    TestMutant(
        "create-prefers-absent",
        "an absent bookie that was seen long ago is preferred to one seen recently",
        edited(
            (
                "buckram.client.cluster.bookies:BookieWatcher._away",
                "1 if b in self._known else 2",
                "2 if b in self._known else 1",
            )
        ),
        ("tests/client/write/test_create_with_absent.py::test_the_bookie_that_was_seen_lately_is_preferred",),
    ),
    TestMutant(
        "change-state",
        "metadata in recovery does not end the writer",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange._check_open",
                "if metadata.state is LedgerState.IN_RECOVERY:",
                "if False:",
            )
        ),
        ("tests/client/write/test_ensemble_change.py::test_a_recovery_seen_in_a_change_ends_the_writer",),
    ),
    TestMutant(
        "change-old-incarnation",
        "a bookie is held to the last incarnation that it reported",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange._remember_incarnations",
                "known.get(b) or self._watcher.incarnation(b)",
                "self._watcher.incarnation(b) or known.get(b)",
            )
        ),
        (
            "tests/client/write/test_ensemble_change.py::test_a_bookie_that_comes_back_empty_is_not_taken_for_the_old_one",
        ),
    ),
    TestMutant(
        "change-retrying",
        "after a failed retry there is no further one",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange._retry",
                "self._retrying = False",
                "pass",
            )
        ),
        ("tests/client/write/test_ensemble_change.py::test_a_connection_reset_alone_degrades_for_a_moment_only",),
    ),
    TestMutant(
        "outbox-resend-old-target",
        "after an ensemble change entries are resent to the old bookie",
        edited(
            (
                "buckram.client.write.outbox:Outbox.resend",
                "self._retarget()\n    self._put(sends)",
                "self._put(sends)\n    self._retarget()",
            )
        ),
        ("tests/client/write/test_ensemble_change.py::test_dead_bookies_are_replaced_under_load[3/3/2]",),
    ),
    TestMutant(
        "change-doubt-forgotten",
        "a bookie is readmitted while a write in doubt may remove it from metadata",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange._retry",
                "if cell.in_doubt:",
                "if False:",
            ),
            (
                "buckram.client.write.ensemble_change:EnsembleChange._retry",
                "if positions and not cell.in_doubt:",
                "if positions:",
            ),
        ),
        ("tests/client/write/test_writer_doubt.py::test_bookie_is_readmitted_only_after_writes_in_doubt_are_settled",),
    ),
    TestMutant(
        "force-losses",
        "force does not notice that a bookie restarted meanwhile",
        edited(
            (
                "buckram.client.write.durability:force",
                "if pool.losses(bookie) != losses:",
                "if False:",
            )
        ),
        ("tests/client/write/test_writer_modes.py::test_bookie_restarted_between_ack_and_force_ends_the_writer",),
    ),
    TestMutant(
        "change-doubt-is-done",
        "an ensemble change in doubt is taken for done",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "            stale = True\n            if loop.time() + delays.next_s >= deadline:",
                (
                    "            if wanted is not None:\n"
                    "                self._current = Versioned(wanted, base.version)\n"
                    "                return wanted\n"
                    "            if loop.time() + delays.next_s >= deadline:"
                ),
            ),
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "delays, stale, conflicts = Delays(STORE_CONFLICT), False, 0",
                "delays, stale, conflicts, wanted = Delays(STORE_CONFLICT), False, 0, None",
            ),
        ),
        ("tests/client/write/test_ensemble_change.py::test_lost_answers_neither_repeat_nor_lose_a_change",),
    ),
    TestMutant(
        "absent-never-filled",
        "an absent bookie does not get the entries that it missed",
        edited(("buckram.client.shared.lagging_replicas:LaggingMembers.returned", "if bookie in self.left", "if None")),
        (
            "tests/client/write/test_create_with_absent.py::test_the_writer_fills_in_what_a_member_missed_when_it_is_back",
        ),
    ),
    TestMutant(
        "debts-forgotten",
        "a ledger that was closed without a bookie does not get its copies",
        edited(
            (
                "buckram.client.shared.lagging_replicas:LaggingLedgers.add",
                "if not members or self._scope.closed:",
                "if True:",
            )
        ),
        ("tests/client/write/test_create_with_absent.py::test_closed_ledgers_are_copied_to_a_member_that_comes_back",),
    ),
    TestMutant(
        "note-given-up",
        "a note that the store did not take in time is never written",
        edited(
            (
                "buckram.client.write.engine:LedgerAppender._close",
                "if len(self._notes.noted(behind)) < len(behind):",
                "if False:",
            )
        ),
        (
            "tests/client/shared/test_copies.py::"
            "test_a_note_that_was_not_taken_in_time_is_written_once_the_store_answers_and_holds_up_no_close",
        ),
    ),
    TestMutant(
        "close-waits-for-the-cancelled",
        "a close waits without bound for copies that it has cancelled",
        edited(
            (
                "buckram.client.shared.lagging_replicas:LaggingMembers.settle",
                "await asyncio.wait(late, timeout=ENDING_S)",
                "await asyncio.wait(late)",
            )
        ),
        ("tests/client/write/test_complete_copies.py::test_a_copy_that_does_not_end_holds_up_no_close",),
    ),
    TestMutant(
        "closed-before-noted",
        "a ledger is closed, and only later is it noted who may lack entries",
        edited(
            (
                "buckram.client.write.durability:complete_copies",
                "await notes.note(behind, max(HURRY_S, until - loop.time()))",
                "pass",
            ),
            ("buckram.client.shared.lagging_replicas:LaggingMembers._note_left", "await self._note([bookie])", "pass"),
        ),
        ("tests/client/shared/test_copies.py::test_a_close_that_has_waited_long_enough_notes_who_lacks_entries",),
    ),
    TestMutant(
        "lost-lac-stays-lost",
        "an explicit LAC that was lost on its way is not published again",
        edited(
            (
                "buckram.client.write.explicit_lac:ExplicitLac.take",
                "self._look(now + max(self._retry_s, _LOOK_S))",
                "pass",
            )
        ),
        ("tests/client/write/test_lac_packets.py::test_what_was_lost_on_the_way_is_sent_again",),
    ),
    TestMutant(
        "refused-lac-is-published",
        "bookies that refuse an explicit LAC count as if they had stored it",
        edited(("buckram.client.write.explicit_lac:ExplicitLac.answered", "code is Code.OK and ", "")),
        ("tests/client/write/test_lac_packets.py::test_refusals_are_no_success",),
    ),
    TestMutant(
        "replies-behind-lacs-are-lost",
        "what follows the replies to explicit LACs in a chunk is taken for replies that nobody waits for",
        edited(
            (
                "buckram.core.wire.client_protocol:ClientProtocol.feed",
                "offset = after\n                    continue",
                "offset = after",
            )
        ),
        ("tests/core/wire/test_lacs.py::test_replies_between_those_to_adds_and_reads_cost_none_of_them",),
    ),
)
