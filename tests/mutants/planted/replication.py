"""Bugs of replications that are killed, of changes of sides, and of what a backup says of shared ledgers."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_PROMOTION = "tests/replication/test_promotion.py::"
_POSITIONS = "tests/core/streams/records/test_positions.py::"
_RESTORED = "tests/replication/test_restored.py::"
_KILLS = "tests/replication/test_kills.py::"
_LINKING = "tests/replication/test_linking.py::"
_BACKUP = "tests/metadata/maintain/test_backup_holders.py::"

MUTANTS = (
    TestMutant(
        "replication-looks-at-no-epoch",
        "where nothing can be compared, a mirror goes on as if the source's metadata had never been restored",
        edited(
            (
                "buckram.core.streams.records.positions:same_history",
                "return epoch >= 0 and (restore == now.restore or (epoch == 0 and now.epoch == 1))",
                "return True",
            )
        ),
        (
            f"{_POSITIONS}test_of_a_mirror_of_an_older_release_nothing_is_assumed",
            f"{_RESTORED}test_where_nothing_can_be_compared_after_a_restore_it_stops",
        ),
    ),
    TestMutant(
        "replication-compares-no-digest",
        "a mirror goes on where its source has another record at the offset that was copied last",
        edited(
            (
                "buckram.core.streams.records.positions:compare",
                "return PositionVerdict.SAME if equal else PositionVerdict.DIFFERS",
                "return PositionVerdict.SAME",
            )
        ),
        (f"{_RESTORED}test_a_source_that_went_back_stops_its_stream_and_nothing_is_lost",),
    ),
    TestMutant(
        "replication-reconciles-unseen",
        "a reconciling takes what lies below the position of a mirror for the same, and deletes it",
        edited(
            (
                "buckram.replication.reconciling:_compared",
                "return await first_difference(old, new, low, stop), mark.end",
                "return stop, mark.end",
            )
        ),
        (f"{_RESTORED}test_a_reconciling_compares_also_what_lies_below_the_position",),
    ),
    TestMutant(
        "replication-objects-unseen",
        "the mirror of objects deletes what its source has forgotten in a restore",
        edited(
            (
                "buckram.replication.object_copy:ObjectCopy._compare",
                "if forgotten and (found.gone or found.replaced):",
                "if False:",
            )
        ),
        (f"{_RESTORED}test_what_only_the_mirror_has_is_kept_aside_when_it_begins_anew",),
    ),
    TestMutant(
        "replication-fences-what-it-keeps",
        "a stream in which records are being kept aside is fenced, so that no other call can go on with it",
        edited(
            (
                "buckram.replication.fencing:supersede",
                "(mark.epoch >= link.epoch or (mark.state, mark.cluster) == (MIRROR, side.cluster))",
                "mark.epoch >= link.epoch",
            )
        ),
        (f"{_PROMOTION}test_a_reconciling_that_was_stopped_is_completed_by_the_next_one[hand_over]",),
    ),
    TestMutant(
        "replication-fork-outlives-fence",
        "a fork that is being made while its side is superseded is left alone, and anybody writes it then",
        edited(("buckram.replication.fencing:supersede", "if head.incomplete:", "if False:")),
        (f"{_PROMOTION}test_a_fork_that_is_being_made_does_not_outlive_the_fence",),
    ),
    TestMutant(
        "replication-leaves-half-deleted",
        "what an earlier call had begun to delete stays, and keeps a mirror from its name",
        edited(("buckram.replication.reconciling:_finish_deleting", "if head.deleting and", "if False and")),
        (
            f"{_PROMOTION}test_a_reconciling_that_was_stopped_is_completed_by_the_next_one[delete_stream]",
            f"{_PROMOTION}test_objects_whose_deletion_was_stopped_are_mirrored_after_the_next_reconciling",
        ),
    ),
    TestMutant(
        "replication-mirror-half-deleted",
        "a mirror that was to begin anew when its copy was killed is refused for ever",
        edited(("buckram.replication.stream_copy:StreamCopy._prepare", "if mirror.deleting and own:", "if False:")),
        (
            "tests/replication/test_stream_copy.py::test_a_mirror_that_was_to_begin_anew_when_its_copy_was_stopped_does_so",
        ),
    ),
    TestMutant(
        "replication-drops-state-before-snapshot",
        "the mirror of a machine that lacks truncated records is deleted before the source's snapshot has been copied",
        edited(
            (
                "buckram.replication.stream_copy:StreamCopy._prepare",
                "if mirror.snapshots is not None:",
                "if False:",
            )
        ),
        (
            "tests/replication/test_machines.py::test_a_mirror_that_was_overtaken_keeps_its_state_until_it_has_the_snapshot",
        ),
    ),
    TestMutant(
        "replication-leaps-without-position",
        "a mirror that goes on at a snapshot notes its position later, and after a kill it is compared by an old time",
        edited(("buckram.core.streams.metadata.snapshots:leapt", ", last_append=last, mark=mark", "")),
        (f"{_KILLS}test_the_copy_of_a_machine_that_was_overtaken_goes_on_wherever_it_was_killed",),
    ),
    TestMutant(
        "replication-snapshot-left",
        "a snapshot whose copy fails for a moment leaves its ledger at each attempt",
        edited(
            (
                "buckram.replication.snapshot_copy:SnapshotCopy._copy",
                "except BuckramError as error:",
                "except (NoSuchLedger, NoSuchEntry) as error:",
            )
        ),
        ("tests/replication/test_machines.py::test_a_snapshot_that_cannot_be_read_now_leaves_no_ledger",),
    ),
    TestMutant(
        "replication-takes-the-written-side",
        "a run in the wrong direction makes a mirror of the side that is written",
        edited(("buckram.replication.linking:_check_own", "check_target(namespace, own)", "pass")),
        (f"{_LINKING}test_a_side_that_is_written_does_not_become_the_mirror_of_an_empty_one",),
    ),
    TestMutant(
        "replication-looks-once",
        "a stream that is created after the look at a target, and before its record, is one of a mirror",
        edited(
            (
                "buckram.replication.linking:_begin",
                "await _check_own(source, target, namespace, wanted)",
                "pass",
            )
        ),
        (f"{_LINKING}test_a_stream_that_is_created_before_the_record_is_found[shop]",),
    ),
    TestMutant(
        "replication-sure-at-once",
        "the record of a mirror holds before the target was looked at once more, and stays if a run is killed then",
        edited(
            (
                "buckram.replication.linking:_begin",
                "tentative = old is None or old.state != MIRROR",
                "tentative = False",
            )
        ),
        (f"{_LINKING}test_what_a_killed_run_left_on_the_side_that_is_written_hinders_nothing",),
    ),
    TestMutant(
        "replication-refusal-stays",
        "the record of a mirror stays although the run was refused",
        edited(
            (
                "buckram.replication.linking:_begin",
                "await _replace(target, namespace, written, old)\n        raise",
                "pass\n        raise",
            )
        ),
        (
            f"{_LINKING}test_a_stream_that_is_created_before_the_record_is_found[shop]",
            f"{_LINKING}test_a_mirror_of_some_streams_stays_one_of_these",
        ),
    ),
    TestMutant(
        "replication-crosses",
        "two runs in opposite directions make a mirror of both sides",
        edited(("buckram.replication.linking:_begin", "await _check_crossing(source, target, namespace)", "pass")),
        (f"{_LINKING}test_two_runs_that_are_both_unsure_do_not_make_two_mirrors",),
    ),
    TestMutant(
        "replication-takes-another-record-back",
        "a refused run removes the record of another one, which has the same version since it was made again",
        edited(
            (
                "buckram.replication.linking:_replace",
                "await keys.multi([put, CheckVersion(layout.namespace(namespace), present.space)])",
                "await keys.multi([put])",
            )
        ),
        (f"{_LINKING}test_two_runs_in_opposite_directions_make_one_mirror[after]",),
    ),
    TestMutant(
        "replication-forks-while-it-looks",
        "a fork is created on a side that a run looks at, and is written there when it is a mirror",
        edited(
            (
                "buckram.streams.shared.namespaces:create_stream",
                "link.state == MIRROR and not link.tentative",
                "link.state == MIRROR",
            )
        ),
        ("tests/contracts/test_stream_creation.py::test_while_a_run_looks_not_even_a_fork_is_created",),
    ),
    TestMutant(
        "replication-sends-again-with-later-times",
        "a mirror whose ledger broke begins the next one with the time of the last record in flight",
        edited(
            (
                "buckram.streams.write.appender:Appender.replace",
                "time = min([self._last_append, *times])",
                "time = self._last_append",
            )
        ),
        ("tests/replication/test_stream_copy.py::test_a_mirror_whose_ledger_broke_has_the_times_of_its_source",),
    ),
    TestMutant(
        "replication-supersedes-again",
        "a side that was reconciled is superseded again by a run that met the promotion before",
        edited(("buckram.replication.sides:put_link", "if same or reconciled or", "if same or")),
        (f"{_PROMOTION}test_a_side_that_was_reconciled_is_not_superseded_again",),
    ),
    TestMutant(
        "replication-older-link-wins",
        "a link is replaced by one from before the last promotion",
        edited(("buckram.replication.sides:put_link", "or known.epoch > link.epoch", "or False")),
        (f"{_PROMOTION}test_a_side_that_was_reconciled_is_not_superseded_again",),
    ),
    TestMutant(
        "replication-mirror-copied-back",
        "a mirror is copied into its source, if that has no record of the replication",
        edited(
            (
                "buckram.core.streams.replication_links:check_run",
                "swapped = source is not None and (source.state, source.cluster) == (MIRROR, target_id)",
                "swapped = False",
            )
        ),
        (f"{_LINKING}test_two_runs_that_are_both_unsure_do_not_make_two_mirrors",),
    ),
    TestMutant(
        "lag-of-the-segment",
        "the time of a segment's first record is that of its first entry, which may have no record",
        edited(
            (
                "buckram.streams.read.locate:entry_of_record",
                "lambda header: header.first + header.records > relative",
                "lambda header: header.first >= relative",
            )
        ),
        (
            "tests/replication/test_run.py::test_a_lag_begins_with_the_record_that_lacks_and_not_with_its_segment",
            "tests/spark/test_went_back.py::test_the_time_of_a_segments_first_record_is_not_that_of_the_producers_before_it",
        ),
    ),
    TestMutant(
        "replication-keeps-what-returns",
        "records that a restored source reads again with its next writer are kept aside from its mirror",
        edited(("buckram.replication.positions:judged", "if stored > end:", "if False:")),
        (f"{_RESTORED}test_what_the_source_reads_again_with_its_next_writer_is_not_kept_aside",),
    ),
    TestMutant(
        "backup-forgets-holders",
        "in a backup of a live store who let a ledger go meanwhile does not hold it",
        edited(
            (
                "buckram.metadata.maintain.backup_holders:wrong_holders",
                "if uid in streams and ledger in streams[uid].lists:",
                "if False:",
            )
        ),
        (f"{_BACKUP}test_who_let_go_meanwhile_holds_what_it_lists_in_the_copy",),
    ),
    TestMutant(
        "backup-keeps-unknown-holders",
        "in a backup of a live store a ledger is held by a stream that is not in it",
        edited(("buckram.metadata.maintain.backup_holders:wrong_holders", "if uid not in streams", "if False")),
        (f"{_BACKUP}test_a_fork_that_is_not_in_the_copy_holds_nothing",),
    ),
    TestMutant(
        "uploads-one-too-many",
        "a namespace has one open upload more than it may",
        edited(
            (
                "buckram.core.objects.index:ObjectIndex._in_parts",
                "len(self.uploads) >= limit[0]",
                "len(self.uploads) > limit[0]",
            )
        ),
        ("tests/core/objects/test_index.py::test_no_upload_begins_where_as_many_are_open_as_may_be",),
    ),
    TestMutant(
        "replication-fenced-ledger",
        "a side that was replaced makes plain ledgers of the namespace",
        edited(
            (
                "buckram.core.streams.replication_links:check_ledger",
                "link.state == SUPERSEDED and not link.streams",
                "False",
            )
        ),
        ("tests/replication/test_promotion.py::test_the_fenced_side_makes_no_ledger_of_the_namespace",),
    ),
    TestMutant(
        "links-get-the-login",
        "a login goes to whatever address the link of a namespace notes",
        edited(("buckram.replication.status:other_side", "and not has_login(os.environ)", "")),
        ("tests/replication/test_cli.py::test_a_namespace_from_the_first_copy_to_the_change_of_sides_and_back",),
    ),
)
