"""Bugs of offload: deleted before verified, published before durable, and bytes that nobody compares."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

OFFLOAD = "tests/streams/maintain/test_offload.py::"
PLACES = "tests/streams/shared/test_locations.py::"
PARTS = "tests/streams/shared/test_history_parts.py::"

MUTANTS = (
    TestMutant(
        "offload-unverified",
        "a ledger goes although its files do not give back what was written",
        edited(("buckram.streams.maintain.history.segment_copy:SegmentCopy._make_part", "if why:", "if False:")),
        (OFFLOAD + "test_nothing_goes_before_it_was_verified",),
    ),
    TestMutant(
        "offload-manifest-unverified",
        "a segment is listed by a manifest that is not there as it was written",
        edited(
            (
                "buckram.streams.maintain.history.segment_copy:SegmentCopy._write_manifest",
                "self._read_back(place, file) != data",
                "False",
            )
        ),
        (OFFLOAD + "test_nothing_goes_before_it_was_verified",),
    ),
    TestMutant(
        "offload-not-durable",
        "files of history are listed before they are on the disk",
        edited(("buckram.streams.shared.locations:_write_durably", "FILES.sync(target)", "pass")),
        (PLACES + "test_a_file_is_durable_before_it_has_its_name",),
    ),
    TestMutant(
        "offload-directory-not-durable",
        "a loss of power takes the directory of a namespace, with all history in it",
        edited(
            (
                "buckram.streams.shared.locations:_make_directory",
                "(len(above) < _LEVELS or not FILES.is_directory(path)) and",
                "len(above) < 2 and",
            )
        ),
        (PLACES + "test_the_names_of_all_directories_are_durable",),
    ),
    TestMutant(
        "offload-removal-not-durable",
        "files that were removed come back after a loss of power, and are nobody's",
        edited(("buckram.streams.shared.locations:FileLocation.remove", "self._sync_removal(copy)", "pass")),
        (PLACES + "test_files_that_are_removed_do_not_come_back",),
    ),
    TestMutant(
        "offload-late-files-of-a-copy",
        "what a copy wrote after its intent was taken stays, if the copy was refused",
        edited(
            (
                "buckram.streams.maintain.compaction:replace_run",
                "await _drop_late_files(client, streams, work, copied.row)",
                "pass",
            )
        ),
        (OFFLOAD + "test_files_that_are_written_after_their_intent_was_taken_are_deleted",),
    ),
    TestMutant(
        "offload-late-files-of-a-failure",
        "what a copy wrote after its intent was taken stays, if the copy failed",
        edited(
            (
                "buckram.streams.maintain.history.segment_copy:SegmentCopy.make_or_discard",
                "await self.drop_late(client)",
                "pass",
            )
        ),
        (OFFLOAD + "test_files_that_are_written_after_their_intent_was_taken_are_deleted",),
    ),
    TestMutant(
        "offload-late-files-of-a-fork",
        "files that a fork wrote after it was given up stay",
        edited(
            (
                "buckram.streams.maintain.fork:_Forking.abandon",
                "if copy.row.offloaded is not None:",
                "if False:",
            )
        ),
        ("tests/streams/maintain/test_fork.py::test_files_that_are_written_after_the_fork_was_given_up_are_deleted",),
    ),
    TestMutant(
        "offload-difference-blind",
        "an entry that comes back with other records counts as equal",
        edited(
            ("buckram.streams.shared.history_parts:difference", "not _same(payload, loaded.payload(entry))", "False")
        ),
        (PARTS + "test_a_difference_is_told",),
    ),
    TestMutant(
        "offload-bytes-unchecked",
        "files of history are believed whatever they hold",
        edited(("buckram.streams.shared.history_parts:part_rows", "digest_of(data) != part.sha256", "False")),
        (PARTS + "test_changed_bytes_are_refused",),
    ),
    TestMutant(
        "offload-producers-table",
        "the segment with the producers' table is offloaded, and writers cannot open any more",
        edited(("buckram.core.streams.external.history:may_offload", "row.number != head.producers", "True")),
        (OFFLOAD + "test_records_offsets_and_times_stay",),
    ),
    TestMutant(
        "offload-files-stay",
        "truncation leaves the files of history behind",
        edited(("buckram.streams.shared.ledgers:drop_segment", "row.offloaded is None", "True")),
        (OFFLOAD + "test_truncation_and_deletion_reach_the_files",),
    ),
    TestMutant(
        "offload-intent-without-files",
        "what a crashed offload wrote stays for good",
        edited(("buckram.streams.shared.ledgers:discard", "if intent.place:", "if False:")),
        (OFFLOAD + "test_a_crash_after_each_step",),
    ),
    TestMutant(
        "offload-anywhere",
        "a policy sends history wherever it likes",
        edited(
            (
                "buckram.core.streams.external.history:OffloadPlaces.check_policy",
                "location not in self.of(namespace)",
                "False",
            ),
        ),
        (OFFLOAD + "test_policies_send_history_where_an_operator_has_listed",),
    ),
    TestMutant(
        "offload-deletes-anywhere",
        "a janitor deletes history wherever a segment list or an intent says that it is",
        edited(("buckram.streams.shared.locations:in_thread", "why_not is not None and", "False and")),
        (OFFLOAD + "test_a_janitor_deletes_history_at_listed_places_only",),
    ),
    TestMutant(
        "offload-gateway-reads-anywhere",
        "a gateway with tokens follows a tenant's segment list to any place",
        edited(("buckram.serve.gateway.server:Gateway.start", "with confined(self._away):", "with confined(None):")),
        ("tests/serve/gateway/shared/test_authentication.py::test_history_is_read_where_the_operator_lists_it",),
    ),
)
