"""Bugs of exports, of the table around history, of imports and of verification."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

EXPORT = "tests/streams/maintain/history/test_export.py::"
TABLE = "tests/streams/maintain/history/test_iceberg.py::"
IMPORT = "tests/streams/maintain/test_imports.py::"
OFFLOAD = "tests/streams/maintain/test_offload.py::"
ROWS = "tests/streams/maintain/test_import_source_rows.py::"
VERIFY = "tests/streams/maintain/history/test_verify.py::"

MUTANTS = (
    TestMutant(
        "export-intent-stays",
        "a copy is published and keeps its intent, by which the janitor deletes it a day later",
        edited(
            (
                "buckram.streams.maintain.history.export:_publish",
                "[] if intent is None else [Delete(streams.layout.intent(work.uid, intent.ledger), intent.version)]",
                "[]",
            )
        ),
        (EXPORT + "test_the_table_and_the_files_have_the_very_records",),
    ),
    TestMutant(
        "export-published-before-written",
        "a copy is published before its files are there",
        edited(("buckram.streams.maintain.history.export:_publish_made", "await attempt.digest()", "pass")),
        (EXPORT + "test_a_crash_after_each_step",),
    ),
    TestMutant(
        "export-leftovers-stay",
        "what a crashed export wrote stays beside the whole copy",
        edited(("buckram.streams.maintain.history.export:_discard_leftovers", "one.place == directory", "False")),
        (EXPORT + "test_a_crash_after_each_step",),
    ),
    TestMutant(
        "copy-ahead-stays",
        "after a failure the copy of the next segment stays, which nothing names",
        edited(
            (
                "buckram.streams.maintain.history.segment_copy:CopiesAhead.__aexit__",
                "not isinstance(error, BuckramError)",
                "True",
            )
        ),
        (OFFLOAD + "test_a_failure_leaves_nothing_of_the_next_segment",),
    ),
    TestMutant(
        "export-begins-anew",
        "an export does not know what is there already",
        edited(("buckram.core.streams.external.exports:advanced", "next=due.row.end", "next=export.next")),
        (EXPORT + "test_only_what_is_new_is_copied",),
    ),
    TestMutant(
        "export-whole-segment-again",
        "a segment that compaction made is copied as a whole, with records that are there",
        edited(("buckram.core.streams.external.exports:due_of", "max(row.base, export.next)", "row.base")),
        (EXPORT + "test_a_segment_that_was_compacted_is_copied_from_where_the_export_was",),
    ),
    TestMutant(
        "export-beside-offload",
        "records are in the table twice, exported and offloaded",
        edited(("buckram.streams.maintain.history.export:_withdraw_replaced", "if not ranges:", "if True:")),
        (EXPORT + "test_an_offload_takes_the_place_of_exported_copies",),
    ),
    TestMutant(
        "export-beside-history",
        "an export leaves copies of what became history at its place meanwhile",
        edited(
            (
                "buckram.streams.maintain.history.export:export_stream",
                "replaced = await _withdraw_replaced(client, streams, work.name, work.uid, work.directory)",
                "replaced = []",
            )
        ),
        (EXPORT + "test_what_becomes_history_at_the_place_meanwhile_is_there_once",),
    ),
    TestMutant(
        "export-prunes-nothing",
        "an export that prunes ends with an error where nothing is published",
        edited(("buckram.streams.maintain.history.export:_prune", "if not known:", "if False:")),
        (EXPORT + "test_nothing_is_pruned_where_nothing_is_published",),
    ),
    TestMutant(
        "table-names-deleted-files",
        "truncation deletes files that the table names",
        edited(
            (
                "buckram.streams.maintain.truncate:trim",
                "await update_tables_before(streams, name, head.uid, dead)",
                "pass",
            )
        ),
        (EXPORT + "test_an_offload_takes_the_place_of_exported_copies",),
    ),
    TestMutant(
        "table-last-writer-wins",
        "of two commits at once the second undoes the first",
        edited(
            (
                "buckram.streams.maintain.history.iceberg:_PathCatalog.commit_table",
                "if not self._place.create(_file(version), metadata.model_dump_json(exclude_none=True).encode()):",
                "if self._place.write(_file(version), metadata.model_dump_json(exclude_none=True).encode(), -1):",
            )
        ),
        (TABLE + "test_of_two_commits_at_once_one_begins_anew",),
    ),
    TestMutant(
        "table-hint-believed",
        "a hint that a crash left behind hides the newest version",
        edited(
            (
                "buckram.streams.maintain.history.iceberg:_PathCatalog.load",
                "while version + 1 in known:",
                "while False:",
            )
        ),
        (TABLE + "test_a_hint_that_is_behind_is_no_matter",),
    ),
    TestMutant(
        "import-unconditional",
        "a run with an older list of files publishes what another file has by now",
        edited(
            (
                "buckram.streams.maintain.imports:_Range._publish",
                "[CheckVersion(key, self._work.record.version)]",
                "[]",
            )
        ),
        (IMPORT + "test_a_run_with_an_older_list_of_files_cannot_publish",),
    ),
    TestMutant(
        "import-other-files",
        "files that changed since they were imported are not noticed",
        edited(("buckram.core.streams.external.imports:continued", "file is None or file.mark != mark", "False")),
        (IMPORT + "test_sources_that_changed_are_refused",),
    ),
    TestMutant(
        "import-begins-anew",
        "an import does not know which ranges are in the stream",
        edited(
            (
                "buckram.streams.maintain.imports:import_files",
                "position_of(record.done) if record.done >= 0 else ImportPosition(0, -1)",
                "ImportPosition(0, -1)",
            )
        ),
        (IMPORT + "test_each_row_is_imported_once",),
    ),
    TestMutant(
        "import-line-of-two-ranges",
        "a line that begins where a range ends is imported twice",
        edited(("buckram.streams.maintain.import_sources:blocks", "stop - at - 1) + 1", "stop - at) + 1")),
        (ROWS + "test_lines_of_json_come_once",),
    ),
    TestMutant(
        "verify-blind",
        "columns that differ count as equal",
        edited(
            (
                "buckram.streams.maintain.history.row_compare:first_difference",
                "if count and not _equal(",
                "if not count and not _equal(",
            )
        ),
        (VERIFY + "test_the_first_difference_is_told",),
    ),
    TestMutant(
        "verify-files-unproved",
        "files are compared whatever their digests are",
        edited(("buckram.streams.shared.history_parts:part_rows", "digest_of(data) != part.sha256", "False")),
        (VERIFY + "test_files_that_are_damaged_or_missing_are_told",),
    ),
)
