"""Bugs of streams: cursors, retention, repeated appends, entries that are sent again."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "cursor-seen-forgotten",
        "a deleted cursor is created again by its next commit",
        edited(
            (
                "buckram.streams.read.cursors:Cursor.load",
                "self._seen = True",
                "pass",
            )
        ),
        ("tests/streams/read/test_cursors.py::test_a_cursor_deleted_under_a_reader_is_not_made_again",),
    ),
    TestMutant(
        "cursor-created-unchecked",
        "a first commit does not check that the stream is the same",
        edited(
            (
                "buckram.streams.read.cursors:Cursor._create",
                "if at.head.uid != self._uid:",
                "if False:",
            )
        ),
        ("tests/streams/read/test_cursors.py::test_a_late_commit_leaves_nothing_in_a_deleted_stream",),
    ),
    TestMutant(
        "cursor-delete-sent",
        "a lost reply to a deletion is NoSuchCursor",
        edited(
            (
                "buckram.streams.read.cursors:Cursor.delete",
                "sent = True",
                "pass",
            )
        ),
        ("tests/streams/read/test_cursors.py::test_lost_replies_change_nothing_for_a_cursor",),
    ),
    TestMutant(
        "retention-older-open",
        "the open segment's creation does not count",
        edited(
            (
                "buckram.streams.maintain.truncate:_may_hold_older",
                "segment is not None and segment.created < cutoff",
                "segment is not None and segment.created <= cutoff - 10_000_000",
            )
        ),
        ("tests/streams/maintain/test_truncate.py::test_a_record_of_exactly_the_retention_age_stays",),
    ),
    TestMutant(
        "retention-alldead",
        "an open segment with readable records counts as all older",
        edited(
            (
                "buckram.streams.maintain.truncate:all_older",
                "await known_end(client, name, head) <= head.earliest",
                "True",
            )
        ),
        ("tests/streams/maintain/test_truncate.py::test_the_segment_of_a_dead_writer_is_sealed_when_it_has_expired",),
    ),
    TestMutant(
        "append-repeat-offset",
        "a partly repeated append skips nothing",
        edited(
            (
                "buckram.streams.write.appender:Appender._begin",
                "pending.skip(known)",
                "pass",
            )
        ),
        ("tests/streams/write/test_writer.py::test_a_retry_is_stored_once",),
    ),
    TestMutant(
        "append-resend-order",
        "after a repair entries are kept by <",
        edited(
            (
                "buckram.streams.write.appender:Appender.replace",
                "if sent.next_offset > end]",
                "if sent.next_offset >= end]",
            )
        ),
        ("tests/streams/write/test_opening.py::test_a_writer_survives_the_loss_of_most_bookies",),
    ),
    TestMutant(
        "append-remember-late",
        "the table remembers the offset of the next record",
        edited(
            (
                "buckram.streams.write.appender:Appender._remember",
                "self.next_offset - 1, time",
                "self.next_offset, time",
            )
        ),
        ("tests/streams/write/test_writer.py::test_a_retry_is_stored_once",),
    ),
    TestMutant(
        "append-forget-one",
        "a producer expires one too early",
        edited(
            (
                "buckram.core.streams.records.producers:ProducerTable.expire",
                "known.time >= now - keep_us",
                "known.time > now",
            )
        ),
        ("tests/streams/write/test_writer.py::test_a_forgotten_producer_gets_an_error",),
    ),
    TestMutant(
        "producer-forgotten-unknown",
        "a forgotten producer may begin again with any sequence",
        edited(
            (
                "buckram.core.streams.records.producers:ProducerTable.fresh",
                "if _hash(producer) in self._forgotten:",
                "if False:",
            )
        ),
        ("tests/core/streams/test_pure.py::test_what_is_forgotten_is_refused_and_never_stored_twice",),
    ),
    TestMutant(
        "producer-fresh-off",
        "a repeated last sequence counts as new",
        edited(
            (
                "buckram.core.streams.records.producers:ProducerTable.fresh",
                "known.sequence + 1 - first",
                "known.sequence - first",
            )
        ),
        ("tests/streams/write/test_writer.py::test_a_retry_is_stored_once",),
    ),
    TestMutant(
        "append-repeat-at-once",
        "a repeated append in flight is answered at once",
        edited(
            (
                "buckram.streams.write.appender:Appender._begin",
                (
                    "self._promise(range(self.next_offset, self.next_offset) "
                    "if pending.many else offset, pending.future)"
                ),
                ("pending.future.set_result(range(self.next_offset, self.next_offset) if pending.many else offset)"),
            )
        ),
        ("tests/streams/write/test_repeated_appends.py::test_a_repeated_append_is_answered_when_the_first_is_stored",),
    ),
    TestMutant(
        "cursor-lowest-first-page",
        "only the last page of cursors counts",
        edited(
            (
                "buckram.streams.read.cursors:lowest_cursor",
                "lowest = least if lowest is None else min(lowest, least)",
                "lowest = least",
            )
        ),
        ("tests/streams/read/test_cursor_pages.py::test_the_lowest_cursor_of_all_pages_counts",),
    ),
    TestMutant(
        "cursor-page-end",
        "a page whose cursors were all deleted ends the list",
        edited(
            (
                "buckram.streams.read.cursors:cursor_positions",
                "if found or not names:",
                "if True:",
            )
        ),
        ("tests/streams/read/test_cursor_pages.py::test_a_page_of_cursors_deleted_meanwhile_is_not_the_last",),
    ),
    TestMutant(
        "window-listed",
        "records of the next segment are released before the list",
        edited(
            (
                "buckram.core.streams.ack_window:StreamWindow._release",
                "not oldest.listed or ",
                "",
            )
        ),
        ("tests/core/streams/test_pure.py::test_nothing_is_released_before_the_segment_is_listed",),
    ),
    TestMutant(
        "janitor-looks-once",
        "a janitor that runs once does not check leftovers a second time",
        edited(("buckram.streams.maintain.janitor:Janitor.finish", "if not self.undecided:", "if True:")),
        ("tests/streams/maintain/test_janitor.py::test_finish_waits_and_seals_streams_of_dead_writers",),
    ),
    TestMutant(
        "janitor-waits-always",
        "a janitor that runs once waits for a stream that it has sealed, or whose writer lives",
        edited(
            (
                "buckram.streams.maintain.janitor:Janitor._is_abandoned",
                "self._quiet.pop(head.uid, None)",
                "self._quiet[head.uid] = _Quiet(0, 0, 0)",
            )
        ),
        ("tests/streams/maintain/test_janitor.py::test_finish_waits_and_seals_streams_of_dead_writers",),
    ),
    TestMutant(
        "namespaces-fitted-to-the-past",
        "a namespace that is made while the cluster grows stays as small as the cluster was",
        edited(("buckram.streams.shared.namespaces:Namespaces._make", "if default.same is None:", "if True:")),
        ("tests/streams/shared/test_fitting.py::test_a_namespace_that_is_made_while_the_cluster_grows_is_as_wide",),
    ),
    TestMutant(
        "rests-by-version",
        "a stream that was made anew rests as the one before it did, because the versions of their heads are equal",
        edited(
            ("buckram.streams.maintain.resting:_mark", "hash((found.version, found.value))", "hash(found.version)"),
        ),
        ("tests/streams/maintain/test_resting.py::test_another_stream_of_the_same_name_does_not_rest",),
    ),
    TestMutant(
        "rest-makes-data-nobodys",
        "the data of a stream that was passed over are taken for those of a deleted one",
        edited(("buckram.streams.maintain.janitor:Janitor._visit", "this.uids[uid] = None", "pass")),
        ("tests/streams/maintain/test_resting.py::test_data_of_streams_at_rest_never_pass_for_nobodys",),
    ),
)
