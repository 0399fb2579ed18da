"""Bugs of a bookie's store: the witnessed end of the log, group commit, opening, checkpoints, compaction, losses."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

TAIL = "tests/bookie/storage/test_tail.py::"
CUTS = ("tests/crashpoints/test_store_crash.py::test_no_acknowledged_data_is_lost_by_any_crash",)

MUTANTS = (
    TestMutant(
        "sync-ends-in-the-devices-cache",
        "on macOS a sync hands the data to the device, and does not wait until they are there",
        edited(("buckram.runtime.disk.syncing:sync_file", "if FULL is not None:", "if False:")),
        ("tests/runtime/disk/test_syncing.py::test_on_macos_every_sync_waits_for_the_device",),
    ),
    TestMutant(
        "growth-asked-in-vain",
        "a block that came to wait while a file could not be made longer is forgotten",
        edited(("buckram.bookie.storage.upkeep.log_files:Growth._run", "self._is_urgent()", "urgent")),
        (
            "tests/bookie/storage/upkeep/test_growth.py::"
            "test_a_block_that_came_while_growth_failed_is_written_by_the_next_attempt",
        ),
    ),
    TestMutant(
        "made-size-ignored",
        "a log file that was cut off is taken for a shorter log",
        edited(("buckram.bookie.storage.opening:Opening._load", "size < entry.made and not entry.log_end", "False")),
        (TAIL + "test_a_shortened_active_file_is_a_loss_and_not_a_shorter_log",),
    ),
    TestMutant(
        "page-ignored",
        "the witnessed end of the log is ignored",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._judge_ends",
                "[*mark.earlier, mark.end]",
                "[]",
            )
        ),
        (TAIL + "test_a_damaged_last_block_that_was_acknowledged_is_a_loss",),
    ),
    TestMutant(
        "page-earlier-ignored",
        "only the end of the newest log file is witnessed",
        edited(("buckram.bookie.storage.opening:Opening._judge_ends", "[*mark.earlier, mark.end]", "[mark.end]")),
        (TAIL + "test_the_end_of_the_log_file_before_the_newest_is_known",),
    ),
    TestMutant(
        "page-checksum-ignored",
        "another valid block is taken for the witnessed one",
        edited(("buckram.bookie.storage.opening:Opening._load", "scanned.checksum != mark.checksum", "False")),
        (TAIL + "test_another_good_block_in_the_place_of_the_last_one_is_a_loss",),
    ),
    TestMutant(
        "page-may-be-gone",
        "a missing page is ignored",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._judge_ends",
                "mark is None and block.starts and not block.clean",
                "0",
            )
        ),
        (TAIL + "test_a_page_that_is_gone_or_damaged_is_a_loss_unless_the_stop_was_orderly",),
    ),
    TestMutant(
        "page-one-sector",
        "both writes of the page go to one sector",
        edited(("buckram.bookie.storage.log.tail_page:TailPage.write", "_PLACES[count & 1]", "_PLACES[0]")),
        (TAIL + "test_a_page_that_was_being_written_falls_back_to_the_block_before",),
    ),
    TestMutant(
        "page-not-checked",
        "a half-written sector of the page counts",
        edited(
            (
                "buckram.bookie.storage.log.tail_page:_open_slot",
                "len(data) < _SIZE + 4 or crc(data[:_SIZE]) != _SUM.unpack_from(data, _SIZE)[0]",
                "len(data) < _SIZE + 4",
            )
        ),
        (TAIL + "test_a_page_that_was_being_written_falls_back_to_the_block_before",),
    ),
    TestMutant(
        "page-before-the-sync",
        "the end of a block is witnessed before it is written",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._write",
                "self._disk.write([write], done)",
                "self.page and self.page.write(group.segment.seq, group.end, group.checksum)\n"
                "    self._disk.write([write], done)",
            )
        ),
        CUTS,
    ),
    TestMutant(
        "claim-ignored",
        "a directory that is behind its witness key is used",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._judge_ends",
                "claim is not None and claim.incarnation == block.incarnation",
                "False",
            )
        ),
        (TAIL + "test_a_directory_restored_from_a_copy_is_in_limbo_for_what_came_since",),
    ),
    TestMutant(
        "claim-starts-ignored",
        "only the log's end is compared, not the number of starts",
        edited(("buckram.bookie.storage.opening:Opening._judge_ends", "claim.starts > block.starts", "False")),
        (TAIL + "test_a_directory_of_an_earlier_start_is_in_limbo_though_its_log_is_as_long",),
    ),
    TestMutant(
        "clear-limbo-clears-all",
        "clearing any loss clears the newest",
        edited(("buckram.bookie.storage.store:Store.clear_limbo", "if loss != newest:", "if False:")),
        (TAIL + "test_a_second_loss_is_another_number_and_only_the_newest_is_cleared",),
    ),
    TestMutant(
        "same-damage-counts-again",
        "damage that was found before counts as a new loss",
        edited(("buckram.bookie.storage.opening:Opening._load", "if entry.damage != scanned.digest:", "if True:")),
        (TAIL + "test_more_damage_in_a_file_whose_loss_was_counted_is_a_new_loss",),
    ),
    TestMutant(
        "more-damage-is-the-same",
        "new damage beside older damage does not count as a new loss",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._load",
                "if entry.damage != scanned.digest:",
                "if not entry.damage:",
            )
        ),
        (TAIL + "test_more_damage_in_a_file_whose_loss_was_counted_is_a_new_loss",),
    ),
    TestMutant(
        "idle-tail-open",
        "an idle log is never closed by an empty block",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._watch_idleness",
                "not self._closing and",
                "False and",
            )
        ),
        (TAIL + "test_an_idle_log_is_closed_by_an_empty_block_once",),
    ),
    TestMutant(
        "idle-block-again",
        "an idle log writes empty blocks for ever",
        edited(("buckram.bookie.storage.log.group_commit:GroupCommit._written", "if group.size:", "if True:")),
        (TAIL + "test_an_idle_log_is_closed_by_an_empty_block_once",),
    ),
    TestMutant(
        "opening-not-synced",
        "what a start has scanned counts as durable without a sync",
        edited(
            (
                "buckram.bookie.storage.opening:Opening._settle",
                "state.disk.write_now([Write(segment.file, 0, [])])",
                "pass",
            ),
            (
                "buckram.bookie.storage.opening:Opening._write_empty_block",
                '[header.ljust(span, b"\\0")])])',
                '[header.ljust(span, b"\\0")])], sync=False)',
            ),
        ),
        ("tests/bookie/storage/test_tail.py::test_what_a_start_found_is_durable_before_it_is_served",),
    ),
    TestMutant(
        "commits-overlap",
        "a second block is written while one is in flight",
        edited(
            (
                "buckram.bookie.storage.log.group_commit:GroupCommit._flush",
                "if self._in_flight is not None or self.failed is not None:",
                "if self.failed is not None:",
            ),
            ("buckram.bookie.storage.log.group_commit:GroupCommit.kick", "if self._in_flight is None:", "if True:"),
        ),
        (TAIL + "test_one_block_is_in_flight_at_a_time",),
    ),
    TestMutant(
        "checkpoint-unsynced",
        "the ledger table is named before it is durable",
        edited(
            (
                "buckram.bookie.storage.upkeep.maintenance:Checkpoints._write_table",
                "await disk.offload(partial(disk.write_now, [Write(file, offset, [writer.finish()])]))",
                "await disk.offload(partial(disk.write_now, [Write(file, offset, [writer.finish()])], sync=False))",
            )
        ),
        CUTS,
        slow=True,
    ),
    TestMutant(
        "output-unsynced",
        "a compaction's output is named before it is durable",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Output._write_footer",
                "sync=last",
                "sync=False",
            )
        ),
        CUTS,
        slow=True,
    ),
    TestMutant(
        "birth-forgotten",
        "a ledger's state is loaded without its birth",
        edited(("buckram.bookie.storage.ledger_table:record_of", "state.birth,", "")),
        (
            "tests/bookie/storage/test_store_births.py::test_a_birth_is_given_learned_once_and_kept_over_starts_and_deletions",
        ),
    ),
    TestMutant(
        "reborn-keeps-data",
        "a new ledger finds the entries of an older one with its id",
        edited(
            (
                "buckram.bookie.storage.store_ledgers:LedgerStates._anew",
                "self.delete_ledger(record.ledger_id)\n    ledger_index = self._change(record)\n    record.epoch += 1",
                "ledger_index = self._change(record)",
            )
        ),
        ("tests/bookie/storage/test_store_births.py::test_what_an_older_ledger_left_in_sealed_files_is_dead",),
    ),
    TestMutant(
        "growth-not-published",
        "blocks are written beyond the size in the superblock",
        edited(
            (
                "buckram.bookie.storage.upkeep.log_files:Growth._grow",
                "await self._superblocks.publish(change)",
                "change()",
            )
        ),
        (
            "tests/bookie/storage/upkeep/test_growth.py::test_a_block_goes_only_where_the_superblock_says_that_the_file_is",
        ),
    ),
    TestMutant(
        "reserve-kept",
        "the reserve is not released for a superblock on a full disk",
        edited(("buckram.bookie.storage.disk_space:Reserve.run", "not no_space(error)", "True")),
        ("tests/bookie/storage/test_full_disk.py::test_a_store_starts_on_a_full_disk_and_can_be_read",),
    ),
    TestMutant(
        "log-eats-reserve",
        "the log takes the whole reserve, and no superblock can be written for the next start",
        edited(("buckram.bookie.storage.disk_space:Reserve._in_reserve", "if log_bytes else 0", "if False else 0")),
        ("tests/bookie/storage/test_full_disk.py::test_the_log_leaves_the_reserve_to_what_frees_room",),
    ),
    TestMutant(
        "footer-of-a-growing-file",
        "a footer is placed at the end of a file that is growing",
        edited(("buckram.bookie.storage.upkeep.log_files:Sealing.seal", "await self._growth.settled()", "pass")),
        ("tests/bookie/storage/upkeep/test_growth.py::test_a_file_that_still_grows_gets_its_footer_afterwards",),
    ),
)
