"""Bookies: admission, opening, group commit, the ledger table, compaction."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "opening-damaged-active", "the log goes on in a damaged segment",
        edited((
            "buckram.bookie.opening:Opening._choose_active",
            "and not written[-1][1].damaged",
            "",
        )),
        ("tests/unit/test_store_corruption.py::test_a_bad_block_before_good_ones_is_lost_data",),
    ),
    TestMutant(
        "commit-full-is-written", "a block that found no space counts as written",
        edited((
            "buckram.bookie.commit:GroupCommit._write",
            "self._retry = loop.call_later(RETRY_S, lambda: self._write(group, write))",
            "self._written(group)",
        )),
        ("tests/unit/test_store_trouble.py::test_a_disk_that_is_really_full_holds_back_acknowledgements",),
    ),
    TestMutant(
        "commit-laid-not-noted", "zeros are laid over blocks",
        edited((
            "buckram.bookie.commit:GroupCommit._lay",
            "segment.laid_to = stop",
            "pass",
        )),
        ("tests/unit/test_commit.py::test_a_small_block_in_untouched_space_is_followed_by_zeros_and_the_next_ones_are_not",),
    ),
    TestMutant(
        "checkpoint-newest-first", "sources of a checkpoint are merged oldest first",
        edited((
            "buckram.bookie.checkpoints:Checkpoints._checkpoint",
            "sources.insert(0, segment)",
            "sources.append(segment)",
        )),
        ("tests/unit/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "checkpoint-old-first", "the old table is removed before the superblock names the new one",
        edited((
            "buckram.bookie.checkpoints:Checkpoints._checkpoint",
            "old = state.superblock.table\n",
            ("old = state.superblock.table\n    if old:\n"
             "        await state.disk.offload(partial(state.disk.remove, old))\n"),
        )),
        ("tests/unit/test_ledger_table.py::test_checkpoints_merge_and_replace_one_another",),
    ),
    TestMutant(
        "table-unpin-any", "unpinning drops a record that a later segment touched",
        edited((
            "buckram.bookie.ledger_table:LedgerTable.unpin",
            "record is not None and record.slot is slot",
            "record is not None",
        )),
        ("tests/unit/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "compaction-not-verified", "damaged data is copied",
        edited((
            "buckram.bookie.compaction:Compaction._run",
            "if live and not await self._verified(segment):",
            "if False:",
        )),
        ("tests/unit/test_compaction.py::test_damaged_data_is_not_copied",),
    ),
    TestMutant(
        "compaction-stride", "runs of different sizes are joined as even",
        edited((
            "buckram.bookie.compaction_output:Output._place",
            "same = stride if stride == run[4] else 0",
            "same = stride",
        )),
        ("tests/unit/test_compaction.py::test_mixed_files_are_rewritten_sorted_and_reading_goes_on",),
    ),
    TestMutant(
        "compaction-no-checkpoint", "states of segments that are rewritten are not kept",
        edited((
            "buckram.bookie.compaction:Compaction._run",
            "await self._maintenance.checkpoint()",
            "pass",
        )),
        ("tests/unit/test_compaction.py::test_wholly_dead_files_are_handed_on",),
    ),
    TestMutant(
        "admission-wrong-key-all", "with a wrong key first all waiting runs are refused",
        edited((
            "buckram.bookie.admission:Admission._conclude",
            "Verdict.ADMITTED, last)  # goes",
            "verdict, last)  # goes",
        )),
        ("tests/unit/test_bookie_admission.py::test_adds_behind_a_wrong_key_are_judged_on_their_own",),
    ),
    TestMutant(
        "admission-closed-admitted", "what a closed ledger lacks makes the ledger admitted",
        edited((
            "buckram.bookie.admission:Admission._write_down",
            "admitted=False",
            "admitted=True",
        )),
        ("tests/unit/test_bookie_admission.py::test_a_copy_that_the_quorum_did_not_wait_for_is_taken",),
    ),
)
