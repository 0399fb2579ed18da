"""Bugs of bookies: admission, opening, group commit, the ledger table, compaction."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "limbo-clears-a-newer-loss",
        "limbo ends for a loss that was found while the ledgers were looked at for the one before",
        edited(
            (
                "buckram.bookie.integrity.limbo_end:LimboEnd._clear",
                "clear_limbo(loss)",
                "clear_limbo(self._store.loss)",
            ),
            ("buckram.bookie.integrity.limbo_end:LimboEnd._check", "raise _Interrupted", "pass"),
        ),
        ("tests/bookie/integrity/test_limbo_end.py::test_a_loss_that_is_found_meanwhile_is_not_cleared",),
    ),
    TestMutant(
        "limbo-ends-without-a-fence",
        "what was closed before a loss is not fenced again when limbo ends",
        edited(("buckram.bookie.integrity.limbo_end:LimboEnd._fence", "self._store.fence(ledger)", "pass")),
        ("tests/bookie/integrity/test_limbo_end.py::test_what_was_closed_is_fenced_again_before_limbo_ends",),
    ),
    TestMutant(
        "bad-record-is-listed",
        "an entry that the scrub found to be bad stays in the list of entries",
        edited(
            (
                "buckram.bookie.storage.reading.lookup:Lookup.entries",
                "hidden = union([*hidden, *without(bad, union(held))])",
                "pass",
            )
        ),
        (
            "tests/bookie/storage/upkeep/test_verifying.py::"
            "test_bad_entries_are_errors_and_not_listed_until_a_newer_copy_is_there",
        ),
    ),
    TestMutant(
        "opening-damaged-active",
        "the log continues in a damaged segment",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._choose_active",
                "and not written[-1][1].damaged",
                "",
            )
        ),
        ("tests/bookie/storage/test_corruption.py::test_a_bad_block_before_good_ones_is_lost_data",),
    ),
    TestMutant(
        "commit-full-is-written",
        "a block that found no space counts as written",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._write",
                "self._retry = loop.call_later(RETRY_S, lambda: self._write(group, write))",
                "self._written(group)",
            )
        ),
        ("tests/bookie/storage/test_commit_overlap.py::test_a_store_that_found_space_again_takes_adds",),
    ),
    TestMutant(
        "commit-prezero-not-noted",
        "zeros for new space overwrite blocks",
        edited(
            (
                "buckram.bookie.storage.log.block:BlockAssembly._prezero",
                "segment.zeroed_to = stop",
                "pass",
            )
        ),
        (
            "tests/bookie/storage/log/test_block_assembly.py::test_a_small_block_in_untouched_space_is_followed_by_zeros_and_the_next_ones_are_not",
        ),
    ),
    TestMutant(
        "checkpoint-newest-first",
        "sources of a checkpoint are merged oldest first",
        edited(
            (
                "buckram.bookie.storage.upkeep.maintenance:Checkpoints._checkpoint",
                "sources.insert(0, segment)",
                "sources.append(segment)",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "checkpoint-old-first",
        "the old table is removed before the superblock names the new one",
        edited(
            (
                "buckram.bookie.storage.upkeep.maintenance:Checkpoints._checkpoint",
                "old = state.superblock.table\n",
                (
                    "old = state.superblock.table\n    if old:\n"
                    "        await state.disk.offload(partial(state.disk.remove, old))\n"
                ),
            )
        ),
        ("tests/bookie/storage/test_ledger_table.py::test_checkpoints_merge_and_replace_one_another",),
    ),
    TestMutant(
        "table-unpin-any",
        "unpinning drops a record that a later segment touched",
        edited(
            (
                "buckram.bookie.storage.ledger_table:LedgerTable.unpin",
                "record is not None and record.active_index is ledger_index",
                "record is not None",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "compaction-not-verified",
        "damaged data is copied",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Compaction._run",
                "if live and not await self._verified(segment):",
                "if False:",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_damaged_data_is_not_copied",),
    ),
    TestMutant(
        "compaction-stride",
        "runs of different sizes are joined as even",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Output._place",
                "same = stride if stride == run.stride else 0",
                "same = stride",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_mixed_files_are_rewritten_sorted_and_reading_goes_on",),
    ),
    TestMutant(
        "compaction-no-checkpoint",
        "states of rewritten segments are lost",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Compaction._run",
                "await self._maintenance.checkpoint()",
                "pass",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "compaction-uncovered",
        "files are compacted whose states no ledger table covers",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Compaction._run",
                "or segment.seq > self._covered(segment)",
                "",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_files_with_states_that_no_table_covers_are_left_alone",),
    ),
    TestMutant(
        "commit-open-first",
        "the open block is written before closed ones",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._flush",
                "group = self._closed.popleft()",
                "group = self._closed.pop()",
            )
        ),
        (
            "tests/bookie/storage/test_commit_overlap.py::test_one_block_at_a_time_is_on_its_way_and_an_answer_waits_for_its_own",
        ),
    ),
    TestMutant(
        "commit-open-behind",
        "while closed blocks wait, an answer does not wait for the open block",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit.after_durable",
                "elif self._open is not None",
                "elif self._open is not None and not self._closed",
            )
        ),
        (
            "tests/bookie/storage/test_commit_overlap.py::test_one_block_at_a_time_is_on_its_way_and_an_answer_waits_for_its_own",
        ),
    ),
    TestMutant(
        "commit-overlaps",
        "a block is written while another write is under way",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._flush",
                "if self._in_flight is not None or self.failed is not None:",
                "if self.failed is not None:",
            ),
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit.kick",
                "if self._in_flight is None:",
                "if True:",
            ),
        ),
        (
            "tests/bookie/storage/test_commit_overlap.py::test_one_block_at_a_time_is_on_its_way_and_an_answer_waits_for_its_own",
        ),
    ),
    TestMutant(
        "commit-written-early",
        "entries whose write is under way are read from the file",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit.written",
                "(self._in_flight, *self._closed, self._open)",
                "(*self._closed, self._open)",
            )
        ),
        ("tests/bookie/storage/test_commit_overlap.py::test_what_is_on_its_way_is_not_read_from_the_file",),
    ),
    TestMutant(
        "commit-fail-forgets-open",
        "after a failure the callbacks of the open group are not called",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit.fail",
                "groups.append(self._open)",
                "pass",
            )
        ),
        ("tests/bookie/storage/test_commit_overlap.py::test_a_failed_write_is_reported_to_all_later_waiters",),
    ),
    TestMutant(
        "commit-closed-lost",
        "after a failure the callbacks of closed blocks are not called",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit.fail",
                "groups = [*self._closed]",
                "groups = []",
            )
        ),
        ("tests/bookie/storage/test_commit_overlap.py::test_a_failed_write_is_reported_to_all_later_waiters",),
    ),
    TestMutant(
        "commit-full-not-reset",
        "the store stays full although there is space again",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._write",
                "self.full = False",
                "pass",
            )
        ),
        ("tests/bookie/storage/test_commit_overlap.py::test_a_store_that_found_space_again_takes_adds",),
    ),
    TestMutant(
        "opening-found-unsynced",
        "scanned log files are used before they are synced",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._settle",
                "state.disk.write_now([Write(segment.file, 0, [])])",
                "pass",
            )
        ),
        (
            "tests/bookie/storage/test_opening_sync.py::test_an_entry_that_a_start_found_is_still_there_after_a_loss_of_power",
        ),
    ),
    TestMutant(
        "compaction-newest-loses",
        "of two copies of an entry the older one is kept",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Output.write",
                "for segment, live in sources:",
                "for segment, live in reversed(sources):",
            )
        ),
        ("tests/bookie/storage/test_compaction_copies.py::test_of_two_copies_of_an_entry_the_newer_one_stays",),
    ),
    TestMutant(
        "compaction-last-batch",
        "the last batch of a ledger's runs is not copied",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Output._copy_runs",
                "if batch:",
                "if len(batch) > 1:",
            )
        ),
        ("tests/bookie/storage/test_compaction_copies.py::test_a_ledger_that_has_one_entry_in_a_file_keeps_it",),
    ),
    TestMutant(
        "admission-wrong-key-all",
        "with a wrong key first all waiting runs are refused",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._conclude",
                "one.done(verdict, found.last)",
                "one.done(Verdict.WRONG_KEY if waiting[0].key != found.key else verdict, found.last)",
            )
        ),
        ("tests/bookie/service/entries/test_admission.py::test_adds_behind_a_wrong_key_are_judged_on_their_own",),
    ),
    TestMutant(
        "admission-not-fenced",
        "a ledger that is not open any more is refused, but not fenced",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._write_down",
                "store.fence(ledger_id)",
                "pass",
            )
        ),
        ("tests/bookie/service/entries/test_admission.py::test_a_ledger_that_is_not_open_is_fenced_durably",),
    ),
    TestMutant(
        "admission-limbo-closed",
        "a bookie that may have lost a fence accepts entries of a closed ledger",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._decide",
                "metadata.last_entry is not None and not self._store.limbo",
                "metadata.last_entry is not None",
            )
        ),
        ("tests/bookie/service/test_limbo_admission.py::test_a_copy_of_a_closed_ledger_comes_by_recovery_adds_only",),
    ),
    TestMutant(
        "admission-limbo-any",
        "a bookie that may have lost a deletion admits a ledger that metadata does not know",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._decide",
                "if self._anybody and not self._store.limbo:",
                "if self._anybody:",
            )
        ),
        ("tests/bookie/test_run.py::test_adds_ask_metadata_again",),
    ),
    TestMutant(
        "admission-closed-admitted",
        "a closed ledger is admitted because entries are missing",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._write_down",
                "admitted = verdict is Verdict.ADMITTED",
                "admitted = True",
            )
        ),
        ("tests/bookie/service/entries/test_admission.py::test_a_copy_that_the_quorum_did_not_wait_for_is_taken",),
    ),
    TestMutant(
        "admission-first-key",
        "the first key in a request stays the ledger's key",
        edited(
            (
                "buckram.bookie.service.entries.admission:needs_proof",
                "record is None or (not record.proven and record.master_key != key)",
                "False",
            )
        ),
        (
            "tests/bookie/service/test_wrong_keys.py::test_a_wrong_password_leaves_nothing_at_a_bookie_that_never_saw_the_ledger",
        ),
    ),
    TestMutant(
        "admission-all-proven",
        "a key that was not compared with metadata counts as proven",
        edited(("buckram.bookie.service.entries.admission:needs_proof", "not record.proven and ", "False and ")),
        ("tests/bookie/service/test_wrong_keys.py::test_the_right_key_takes_the_place_of_one_that_nobody_could_check",),
    ),
    TestMutant(
        "admission-proof-forgotten",
        "after a restart a key that was not compared with metadata counts as proven",
        edited(("buckram.core.storage.ledger_state:unpack_state", "bool(flags & (_ADMITTED | _PROVEN))", "True")),
        ("tests/bookie/service/test_wrong_keys.py::test_an_unproven_key_stays_one_over_a_restart",),
    ),
    TestMutant(
        "admission-fence-stays",
        "a fence with a wrong key stays after the key was replaced",
        edited(
            (
                "buckram.bookie.storage.store_ledgers:LedgerStates._anew",
                "record.tombstone = record.fenced = False",
                "record.tombstone = False",
            )
        ),
        ("tests/bookie/service/test_wrong_keys.py::test_the_right_key_takes_the_place_of_one_that_nobody_could_check",),
    ),
    TestMutant(
        "admission-name-is-evidence",
        "an invented ledger id makes the bookie suspect its metadata",
        edited(("buckram.bookie.service.entries.admission:Admission._contradicts", " or not record.proven", "")),
        (
            "tests/bookie/service/test_wrong_keys.py::test_a_name_that_nobody_could_check_is_no_evidence_against_the_store",
        ),
    ),
    TestMutant(
        "admission-disputed-is-refused",
        "the right key is unauthorized while metadata is unavailable",
        edited(
            (
                "buckram.bookie.service.entries.adds:AddPath._decide",
                "Code.UNAUTHORIZED if record.proven else Code.TOO_MANY_REQUESTS",
                "Code.UNAUTHORIZED",
            )
        ),
        ("tests/bookie/service/test_wrong_keys.py::test_without_metadata_the_right_key_gets_too_many_requests",),
    ),
    TestMutant(
        "admission-unsynced",
        "an absent ledger is believed without a sync of metadata",
        edited(("buckram.bookie.service.entries.admission:Admission._look", "await self._metadata.sync()", "pass")),
        (
            "tests/bookie/service/entries/test_admission.py::test_a_server_that_lags_does_not_fence_a_ledger_just_made[0]",
            "tests/bookie/service/entries/test_admission.py::test_a_server_that_lags_does_not_fence_a_ledger_just_made[1]",
        ),
    ),
    TestMutant(
        "admission-one-look",
        "an absent ledger is looked up only once",
        edited(
            (
                "buckram.bookie.service.entries.admission:Admission._look",
                "absent += found is None",
                "absent += LOOKS * (found is None)",
            )
        ),
        (
            "tests/bookie/service/entries/test_admission.py::test_a_server_that_lags_does_not_fence_a_ledger_just_made[1]",
        ),
    ),
)
