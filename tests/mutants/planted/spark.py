"""Bugs of writes from Spark: which tasks count, in which order, and the ledgers of those that do not."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "spark-skipped-nothing",
        "skipped tasks and no ledgers count as no rows",
        edited(
            (
                "buckram.spark.transactions:publish",
                " and not skipped",
                "",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_batches_of_a_query_count_once",),
    ),
    TestMutant(
        "spark-skipped-published",
        "a commit with skipped tasks publishes the ledgers of the others",
        edited(
            (
                "buckram.spark.transactions:publish",
                "if skipped:\n        raise",
                "if False:\n        raise",
            )
        ),
        ("tests/spark/test_sink_skipped.py::test_nothing_is_published_if_some_tasks_were_skipped",),
    ),
    TestMutant(
        "spark-no-losers",
        "ledgers of a step that was published before are not deleted",
        edited(
            (
                "buckram.spark.transactions:publish",
                "await _drop(bulk, ledgers[name])",
                "pass",
            )
        ),
        ("tests/spark/test_sink_skipped.py::test_ledgers_of_a_run_that_came_second_are_deleted",),
    ),
    TestMutant(
        "spark-app",
        "with txnAppId batches are identified by the query",
        edited(
            (
                "buckram.spark.transactions:Identity.of_batch",
                "self.application or query",
                "query",
            )
        ),
        ("tests/spark/test_sink_skipped.py::test_a_named_query_is_identified_by_its_name",),
    ),
    TestMutant(
        "spark-missing-part",
        "a missing message is left out",
        edited(
            (
                "buckram.spark.transactions:in_order",
                "len(found) != len(parts) or numbers != list(range(len(parts)))",
                "False",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_a_write_with_missing_or_double_parts_is_not_published",),
    ),
    TestMutant(
        "spark-twins",
        "two messages of a partition are both published",
        edited(
            (
                "buckram.spark.transactions:in_order",
                "numbers != list(range(len(parts)))",
                "numbers != sorted(numbers)",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_a_write_with_missing_or_double_parts_is_not_published",),
    ),
    TestMutant(
        "spark-unordered",
        "parts are published in the order of arrival",
        edited(
            (
                "buckram.spark.transactions:in_order",
                "key=lambda part: part.attempt.partition",
                "key=lambda part: 0",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_partitions_and_rows_keep_their_order",),
    ),
    TestMutant(
        "spark-batch-other",
        "messages of another batch are committed",
        edited(
            (
                "buckram.spark.transactions:batch_of",
                "number != batch or ",
                "",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_batches_of_a_query_count_once",),
    ),
    TestMutant(
        "spark-seal-twice",
        "a sealed ledger is kept as the open one",
        edited(
            (
                "buckram.spark.sink_task:_Task._seal",
                "self._ledger = None",
                "pass",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_a_task_ends_segments_by_size",),
    ),
    TestMutant(
        "spark-giveup-sealed",
        "a failed attempt does not delete the ledgers that it sealed",
        edited(
            (
                "buckram.spark.sink_task:_Task.discard_all",
                "ledgers = [sealed.ledger for sealed in self._sealed]",
                "ledgers = []",
            )
        ),
        ("tests/spark/test_sink_parts.py::test_ledgers_of_a_failed_task_are_deleted_at_once",),
    ),
    TestMutant(
        "spark-first-start",
        "a repeated first batch begins at the present start",
        edited(
            (
                "buckram.spark.stream_live:batch_start",
                "start.get(INITIAL) and BEGAN in end",
                "False",
            )
        ),
        ("tests/spark/test_streaming_parts.py::test_a_repeated_first_batch_has_the_same_start",),
    ),
    TestMutant(
        "spark-replay-count",
        "of a repeated batch only the number of rows is compared",
        edited(
            (
                "buckram.spark.replay:compare",
                "if seen is None:",
                "if seen is not None:",
            )
        ),
        ("tests/spark/test_sink_replay.py::test_other_rows_of_the_same_number_are_refused",),
    ),
    TestMutant(
        "spark-replay-planned",
        "the planning time of a batch is ignored",
        edited(
            (
                "buckram.spark.replay:compare",
                "planned <= done.time",
                "False",
            )
        ),
        ("tests/spark/test_sink_replay.py::test_a_batch_planned_before_the_publishing_is_accepted",),
    ),
    TestMutant(
        "spark-small-order",
        "small parts are published after all ledgers",
        edited(
            (
                "buckram.spark.small_parts:with_small_parts",
                "groupby(filled, key=",
                "groupby(sorted(filled, key=lambda part: bool(part[1])), key=",
            )
        ),
        ("tests/spark/test_sink_small.py::test_small_parts_and_ledgers_keep_the_order_of_partitions",),
    ),
    TestMutant(
        "spark-small-left",
        "the driver's ledger of a failed publishing is not deleted",
        edited(
            (
                "buckram.spark.transactions:publish",
                "await _drop(bulk, [ledger for ledger in written if ledger not in ledgers[bulk.stream]])",
                "pass",
            )
        ),
        ("tests/spark/test_sink_small.py::test_the_driver_s_ledger_is_deleted_if_it_cannot_be_published",),
    ),
    TestMutant(
        "spark-others-lost",
        "of what tasks wrote to other streams only the last part counts",
        edited(
            (
                "buckram.spark.transactions:of_others",
                "found.setdefault(name, []).append(one)",
                "found[name] = [one]",
            )
        ),
        ("tests/spark/test_sink_streams.py::test_each_row_goes_to_the_stream_that_it_names",),
    ),
    TestMutant(
        "spark-others-unknown",
        "rows of a repeated batch for a stream that got none of it are not compared",
        edited(
            (
                "buckram.spark.transactions:_compare",
                "done = published.get(name) or first._replace(first_offset=0, next_offset=0)",
                "done = published.get(name)\n        if done is None:\n            continue",
            )
        ),
        ("tests/spark/test_sink_streams.py::test_a_repeated_batch_with_rows_for_another_stream_is_refused",),
    ),
)
