"""Bugs of steps that are safe only with a proof: a count, a fence, a sync, a last look before what cannot be undone."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_INDEX, _SPACE = "buckram.core.objects.index:ObjectIndex", "buckram.core.objects.ledger_use:LedgerSpace"
_COUNTED = "tests/core/objects/test_references.py::test_references_are_those_of_the_rows"
_SWEPT = "tests/state/objects/test_objects.py::test_space_returns_after_deletion_and_small_ones_share_ledgers"
_REPAIR = "buckram.healing.repair.ledger_repair:LedgerRepair"
_ORDER = "tests/healing/repair/test_ledger_repair.py::test_"
_WAIT = "buckram.healing.operations.decommission:_wait"
_COLLECTOR, _RECORDED, _LIMBO_TESTS = (
    f"tests/bookie/{name}.py::test_"
    for name in ("garbage/test_collector", "garbage/test_recorded_deletions", "integrity/test_limbo_end")
)
_LIMBO = "buckram.bookie.integrity.limbo_end:LimboEnd"
_AT_THE_END = "tests/healing/test_leaving.py::test_a_ledger_that_is_seen_only_at_the_end_is_waited_for"

_MAINTAIN = "buckram.metadata.maintain"
_HUNG = "that_hung_changes_nothing_where_the_cluster_goes_on"

MUTANTS = (
    TestMutant(
        "object-moved-unreferred",
        "a ledger to which the bytes of an object were moved counts as needed by nobody",
        edited((f"{_INDEX}._moved", "self.space.refer(extents)", "pass")),
        (_COUNTED,),
    ),
    TestMutant(
        "object-part-kept-for-ever",
        "the ledger of a part that another one replaced is never freed",
        edited((f"{_INDEX}._in_parts", "self.space.release(old[2])", "pass")),
        (_COUNTED,),
    ),
    TestMutant(
        "object-one-row-left",
        "a sealed ledger is dead while one row keeps an extent of it",
        edited((f"{_SPACE}._judge", "row.references == 0", "row.references <= 1")),
        (_COUNTED,),
    ),
    TestMutant(
        "object-living-ledger-gone",
        "a ledger that is not dead is forgotten because somebody says that it is deleted",
        edited((f"{_SPACE}.gone", "if ledger in self.dead:", "if ledger in self._ledgers:")),
        (_COUNTED,),
    ),
    TestMutant(
        "object-sweep-takes-sealed",
        "a sweep deletes sealed ledgers that rows keep extents of",
        edited(
            (
                "buckram.state.objects.garbage_collection:Sweeper._delete",
                "list(state.space.dead)",
                "[one for one in state.space._ledgers if one not in state.space.open]",
            )
        ),
        (_SWEPT,),
    ),
    TestMutant(
        "promoted-unfenced",
        "a promotion takes an open stream over and lets its writer go on",
        edited(
            (
                "buckram.replication.fencing:hand_over",
                "live = ledger, await recover_segment(side.client, name, present.uid, ledger)",
                (
                    "from buckram.core.streams.names import StreamId\n"
                    "            from buckram.streams.shared.ownership import opened\n"
                    "            from buckram.streams.shared.recovery import summarise\n"
                    "            async with opened(side.client, StreamId(name, present.uid), ledger) as reader:\n"
                    "                live = ledger, await summarise(name, reader)"
                ),
            )
        ),
        (
            "tests/replication/test_promotion.py::"
            "test_a_live_writer_of_the_source_is_fenced_before_the_mirror_takes_records",
        ),
    ),
    TestMutant(
        "repair-without-second-look",
        "a repair names a member and does not look whether it still has its copies",
        edited(
            (f"{_REPAIR}._replace", "for again in (False, True):", "for again in (False,):"),
            (
                f"{_REPAIR}._replace",
                "if await lists_all(self._services, target, copy.ledger, birth, ranges()) is not False:",
                "if True:",
            ),
        ),
        (f"{_ORDER}copies_that_the_target_dropped_before_it_was_named_are_made_again",),
    ),
    TestMutant(
        "repair-named-before-forced",
        "a repair names a member before its copies are synced",
        edited((f"{_REPAIR}._replace", "await self._force(target, digest, copy.ledger)", "pass")),
        (f"{_ORDER}a_member_is_named_when_its_copies_are_synced",),
    ),
    TestMutant(
        "repair-refused-sync-is-well",
        "a bookie that refuses the sync of its copies is named all the same",
        edited((f"{_REPAIR}._force", "if reply.code is not Code.OK:", "if False:")),
        (f"{_ORDER}a_member_that_does_not_confirm_the_sync_is_not_named",),
    ),
    TestMutant(
        "repair-failed-sync-is-well",
        "a bookie that died before it answered the sync is named all the same",
        edited((f"{_REPAIR}._force", "raise reply", "return")),
        (f"{_ORDER}a_member_that_dies_before_it_has_synced_is_not_named",),
    ),
    TestMutant(
        "decommission-without-proof",
        "a bookie is forgotten when the ledgers that were seen at first are free",
        edited((_WAIT, "found = await ledgers_naming(store, bookie)", "found = {}")),
        (_AT_THE_END,),
    ),
    TestMutant(
        "decommission-proof-of-yesterday",
        "the last proof of a decommission is read without a sync of the store",
        edited((_WAIT, "await store.sync()", "pass")),
        (_AT_THE_END,),
    ),
    TestMutant(
        "collected-by-a-listing-of-another-history",
        "ledgers are deleted by a listing of a store that went back meanwhile",
        edited(
            (
                "buckram.bookie.garbage.collector:Collector.round",
                "if not await self._brake.trusted():  # the listing may be of another history",
                "if False:",
            )
        ),
        (f"{_COLLECTOR}a_store_that_went_back_while_it_was_listed_deletes_nothing",),
    ),
    TestMutant(
        "collected-by-number",
        "a recorded deletion counts for another ledger of the same id",
        edited(("buckram.bookie.garbage.gc_limits:DeletionLimits.unambiguous", "if one > memory.settled", "if True")),
        (f"{_RECORDED}an_id_that_may_have_been_given_twice_is_not_known_by_its_number",),
    ),
    TestMutant(
        "limbo-ends-by-another-history",
        "limbo ends by the listing of a store that went back meanwhile",
        edited(
            (
                f"{_LIMBO}.look",
                "await self._fence(loss)\n        if not await self._trust.confirm():",
                "await self._fence(loss)\n    if False:",
            )
        ),
        (f"{_LIMBO_TESTS}a_store_that_went_back_while_it_was_looked_at_ends_no_limbo",),
    ),
    TestMutant(
        "limbo-ends-by-number",
        "another ledger of the same id counts as younger than the loss",
        edited((f"{_LIMBO}._judge", "and not is_other(record, birth_of(metadata))", "")),
        (f"{_LIMBO_TESTS}another_ledger_of_the_same_id_is_not_younger_than_a_loss",),
    ),
    TestMutant(
        "ready-unregistered",
        "a bookie that clients do not find is said to be ready",
        edited(
            (
                "buckram.bookie.pages.status_pages:StatusPages.__call__",
                'state in ("writable", "readonly")',
                'state != "failed"',
            )
        ),
        ("tests/bookie/pages/test_status_pages.py::test_a_bookie_that_clients_do_not_find_is_healthy_and_not_ready",),
    ),
    TestMutant(
        "manifest-lacks-entries",
        "a manifest that lacks entries without records is whole",
        edited(("buckram.core.streams.external.history:_unsound", "due != summary.last_entry + 1 or", "")),
        ("tests/core/streams/external/test_history.py::test_a_manifest_that_lacks_entries_without_records_is_refused",),
    ),
    TestMutant(
        "touch-empties",
        "a touch that is not to truncate empties a file",
        edited(("buckram.files.filesystem:BuckramFileSystem.touch", "if_absent=not truncate", "if_absent=False")),
        ("tests/files/test_filesystem.py::test_touch_empties_a_file_only_if_that_is_wanted",),
    ),
    TestMutant(
        "restored-uncompared",
        "a restore ends without a comparison, beside a program that changes the store",
        edited(("buckram.metadata.maintain.backup:restore", "await _verify(store, wanted)", "pass")),
        ("tests/contracts/test_backup.py::test_a_restore_beside_a_program_that_changes_the_store_is_no_success",),
    ),
    TestMutant(
        "compaction-drops-stateless",
        "data of a ledger whose state was lost is dropped",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Compaction._lives",
                "record is None or record.epoch == entry.epoch",
                "record is not None and record.epoch == entry.epoch",
            )
        ),
        ("tests/bookie/storage/upkeep/test_compaction.py::test_data_whose_ledger_state_was_lost_is_kept",),
    ),
    TestMutant(
        "lagging-not-copied",
        "a ledger lags no more although its copies were not made",
        edited(("buckram.client.shared.lagging_replicas:LaggingLedgers._one", "if done:", "if True:")),
        ("tests/client/shared/test_copies.py::test_a_ledger_lags_until_its_copies_are_made",),
    ),
    TestMutant(
        "token-lost-without-keys",
        "a token is forgotten where foreign keys are not looked at",
        edited(("buckram.sql.session:SqlSession._run_without_keys", "commit(token=token)", "commit()")),
        ("tests/state/db/test_tokens.py::test_a_token_of_a_session_is_for_its_next_transaction_alone[False]",),
    ),
    TestMutant(
        "token-stays",
        "a token stays after its commit, and the next transaction is taken for a repetition",
        edited(
            (
                "buckram.sql.session:SqlSession._inside",
                "self._transaction = self._token = None\n        self._foreign_keys = True\n        return _NOTHING",
                "self._transaction = None\n    self._foreign_keys = True\n    return _NOTHING",
            )
        ),
        ("tests/state/db/test_tokens.py::test_a_token_of_a_session_is_for_its_next_transaction_alone[True]",),
    ),
    TestMutant(
        "footer-before-durable",
        "a footer names entries whose blocks are not on the device",
        edited(("buckram.bookie.storage.upkeep.log_files:Sealing.seal", "await self._durable()", "pass")),
        (
            "tests/bookie/storage/test_commit_overlap.py::test_a_file_has_its_footer_when_all_its_blocks_are_on_the_device",
        ),
    ),
    TestMutant(
        "joined-across-another",
        "files are joined across one that lies between and stays, so that an older copy comes behind a newer one",
        edited(
            (
                "buckram.bookie.storage.upkeep.compaction:Compaction._adjacent",
                "return all(",
                "return True or all(",
            )
        ),
        ("tests/bookie/storage/test_compaction_copies.py::test_an_older_copy_does_not_come_behind_a_file_that_stays",),
    ),
    TestMutant(
        "doubt-untold",
        "an append whose outcome is unknown is told as one that was refused",
        edited(
            (
                "buckram.serve.gateway.streams.writers:Writers._in_time",
                "except IN_DOUBT as error:",
                "except () as error:",
            )
        ),
        ("tests/serve/gateway/streams/test_writers.py::test_what_a_lost_writer_has_sent_may_be_in_the_stream",),
    ),
    TestMutant(
        "absent-unproven",
        "a file is absent by the state of a process that leads no more",
        edited(
            (
                "buckram.serve.webhdfs.files:Files.delete",
                "present, above = await objects.statuses(path.name, path.parent.name)\n",
                "pass\n",
            )
        ),
        ("tests/serve/webhdfs/test_files.py::test_what_another_process_put_is_deleted_by_one_that_leads_no_more",),
    ),
    TestMutant(
        "moved-to-bookies",
        "metadata are moved to a store in which bookies are registered",
        edited(("buckram.metadata.maintain.migration:_check_bookies", "if there:", "if False:")),
        ("tests/contracts/test_moving.py::test_bookies_that_serve_from_an_unfinished_copy_are_named",),
    ),
    TestMutant(
        "lock-of-a-lost-session",
        "a move begins under a lock that went with its session",
        edited(
            ("buckram.healing.operations.rebalance:_Rebalance._ledger", "if sessions == self._sessions:", "if True:")
        ),
        (
            "tests/healing/operations/test_rebalance.py::"
            "test_a_move_does_not_begin_under_a_lock_that_went_with_its_session",
        ),
    ),
    TestMutant(
        "state-published-twice",
        "a snapshot of a state that is published is published again",
        edited(
            (
                "buckram.state.machine.snapshotter:Snapshotter._write",
                "if before and before[-1].offset >= header.offset:",
                "if False:",
            )
        ),
        ("tests/state/machine/test_snapshots.py::test_a_state_is_published_once",),
    ),
    TestMutant(
        "accepted-by-one-that-hung",
        "an acceptance that hung gives a store that another one has accepted a history of its own",
        edited(
            (
                f"{_MAINTAIN}.acceptance:accept",
                "await replace_history(store, accepted, version)",
                f"from {_MAINTAIN}.backup import set_history\n    await set_history(store, accepted)",
            )
        ),
        (f"tests/contracts/test_backup.py::test_an_acceptance_{_HUNG}",),
    ),
    TestMutant(
        "unaccepted-by-one-that-hung",
        "an acceptance that hung before it began takes a store out of use that another one has accepted",
        edited(
            (
                f"{_MAINTAIN}.acceptance:accept",
                'version = await replace_history(store, replace(history, accepted=False, moved=""), version)',
                (
                    f"from {_MAINTAIN}.backup import set_history\n"
                    '    version = await set_history(store, replace(history, accepted=False, moved=""))'
                ),
            )
        ),
        (f"tests/contracts/test_backup.py::test_an_acceptance_{_HUNG}",),
    ),
    TestMutant(
        "restored-by-one-that-hung",
        "a restore that hung goes on writing where the cluster is used again",
        edited((f"{_MAINTAIN}.backup:restore", "when=(mine,)", "when=()")),
        (f"tests/contracts/test_backup.py::test_a_restore_{_HUNG}",),
    ),
    TestMutant(
        "removed-by-one-that-hung",
        "a restore that hung goes on removing keys where the cluster is used again",
        edited(
            (
                f"{_MAINTAIN}.backup:_remove_others",
                "[mine, Delete(one.key, one.version)]",
                "[Delete(one.key, one.version)]",
            )
        ),
        (f"tests/contracts/test_backup.py::test_a_restore_{_HUNG}",),
    ),
    TestMutant(
        "moved-by-one-that-hung",
        "a move that hung goes on writing where the cluster is used again",
        edited(
            (f"{_MAINTAIN}.migration:_fill", "when=(mine,)", "when=()"),
            (f"{_MAINTAIN}.migration:_fill", "[mine, Delete(key, versions[key])]", "[Delete(key, versions[key])]"),
        ),
        (f"tests/contracts/test_moving.py::test_a_move_{_HUNG}",),
    ),
    TestMutant(
        "given-up-once",
        "space that cannot be given up at once is in use for as long as its process lives",
        edited(
            (
                "buckram.state.objects.writing:LedgerMaker._seal",
                "except (HandleClosed, ReplicaStopped, MirrorStream):",
                "except BuckramError:",
            )
        ),
        ("tests/state/objects/test_faults.py::test_space_that_could_not_be_given_up_at_once_returns",),
    ),
    TestMutant(
        "replacement-refused-for-ever",
        "a replacement that was interrupted when its bookie had left is refused from then on",
        edited(("buckram.health.gathering:Gatherer.about", "if wish.out:", "if False:")),
        ("tests/health/test_removal_gate.py::test_a_bookie_that_was_taken_out_may_answer",),
    ),
    TestMutant(
        "scrub-judges-by-number",
        "entries of a deleted ledger are judged by another one of the same id",
        edited(("buckram.bookie.integrity.scrub:Scrub._bad_of", "or is_other(record, birth_of(metadata))", "")),
        (
            "tests/bookie/integrity/test_scrub.py::"
            "test_entries_of_a_deleted_ledger_are_not_judged_by_another_one_of_its_id",
        ),
    ),
    TestMutant(
        "follower-goes-back",
        "who follows a ledger takes an older record after a newer one",
        edited(
            (
                "buckram.client.shared.ledger_metadata:LedgerFollower._install",
                "if seen.version > self._current.version:",
                "if True:",
            )
        ),
        ("tests/client/shared/test_ledger_metadata.py::test_a_server_that_lags_does_not_take_a_follower_back",),
    ),
    TestMutant(
        "accepted-by-an-older-report",
        "what a bookie reported before another restore counts",
        edited((f"{_MAINTAIN}.acceptance:_all_bookies", "one.told is None or one.told >= version", "True")),
        ("tests/contracts/test_backup.py::test_what_was_reported_before_another_restore_does_not_count",),
    ),
    TestMutant(
        "reconciled-by-an-older-comparison",
        "records that came after the comparison are deleted",
        edited(("buckram.replication.reconciling:reconcile", "or head.end != one.end", "")),
        ("tests/replication/test_promotion.py::test_records_that_came_after_the_comparison_stay",),
    ),
    TestMutant(
        "promoted-against-a-stranger",
        "a cluster is fenced that is no source of the mirror",
        edited(
            (
                "buckram.replication.promotion:promote",
                "if source is not None and source.cluster != link.cluster:",
                "if False:",
            )
        ),
        ("tests/replication/test_promotion.py::test_a_cluster_that_is_no_source_of_the_mirror_is_not_fenced",),
    ),
)
