"""Bugs of writes from Spark: which tasks count, in which order, and the ledgers of those that do not."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "spark-skipped-nothing",
        "skipped tasks and no ledgers count as no rows",
        edited(
            (
                "buckram.spark.sink.exactly_once:write_once",
                "not skipped and ",
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
                "buckram.spark.sink.exactly_once:write_once",
                "if skipped:",
                "if False:",
            )
        ),
        ("tests/spark/test_sink_skipped.py::test_nothing_is_published_if_some_tasks_were_skipped",),
    ),
    TestMutant(
        "spark-no-losers",
        "ledgers of a step that was published before are not deleted",
        edited(
            (
                "buckram.spark.sink.exactly_once:write_once",
                "kept.discard()",
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
                "buckram.spark.sink.transactions:Identity.of_batch",
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
                "buckram.spark.sink.transactions:in_order",
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
                "buckram.spark.sink.transactions:in_order",
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
                "buckram.spark.sink.transactions:in_order",
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
                "buckram.spark.sink.transactions:batch_of",
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
                "buckram.spark.sink.write_task:_Task._seal",
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
                "buckram.spark.sink.write_task:_Task.discard_all",
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
                "buckram.spark.shared.first_batch:batch_start",
                "end.get(BEGAN, start)",
                "start",
            )
        ),
        ("tests/spark/test_streaming_parts.py::test_a_repeated_first_batch_has_the_same_start",),
    ),
    TestMutant(
        "spark-replay-count",
        "of a repeated batch only the number of rows is compared",
        edited(
            (
                "buckram.spark.sink.replay_check:check_same",
                "if seen is None:",
                "if seen is not None:",
            )
        ),
        ("tests/spark/test_sink_replay.py::test_other_rows_of_the_same_number_are_refused",),
    ),
    TestMutant(
        "spark-goes-on-behind-lost-batches",
        "a query whose batches went with a restore of the metadata goes on as if they had had no rows",
        edited(
            (
                "buckram.core.streams.metadata.transactions:check_known",
                "done.history != step.history",
                "False",
            )
        ),
        (
            "tests/core/streams/metadata/test_transactions.py::test_batches_that_may_have_gone_with_a_restore_are_noticed",
            "tests/spark/test_went_back.py::test_a_query_that_writes_behind_lost_batches_is_stopped",
        ),
    ),
    TestMutant(
        "spark-replay-planned",
        "the planning time of a batch is ignored",
        edited(
            (
                "buckram.spark.sink.replay_check:_is_that_plan",
                "planned == done.planned if done.planned else planned <= done.time",
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
                "buckram.spark.sink.small_parts:with_small_parts",
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
                "buckram.spark.sink.transactions:StreamStep._drop_small",
                "await _drop(bulk, [ledger for ledger in written if ledger not in made])",
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
                "buckram.spark.sink.transactions:of_others",
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
                "buckram.spark.sink.exactly_once:_compare",
                "done = records.get(name) or first._replace(first_offset=0, next_offset=0)",
                "done = records.get(name)\n        if done is None:\n            continue",
            )
        ),
        ("tests/spark/test_sink_streams.py::test_a_repeated_batch_with_rows_for_another_stream_is_refused",),
    ),
    TestMutant(
        "spark-target-gone",
        "a further stream that was deleted under its query is made anew",
        edited(
            ("buckram.core.streams.metadata.transactions:check_target", "_mark(name) in _marks(", "False and _marks(")
        ),
        ("tests/spark/test_sink_streams.py::test_a_target_that_was_deleted_under_its_query_is_an_error",),
    ),
    TestMutant(
        "spark-old-place",
        "a deleted checkpoint is not known by its place as earlier releases wrote it",
        edited(("buckram.core.streams.metadata.transactions:_others", "(step.place, step.was)", "(step.place,)")),
        ("tests/spark/checkpoints/test_location.py::test_a_query_of_an_earlier_release_goes_on",),
    ),
    TestMutant(
        "spark-any-gateway",
        "a checkpoint is where its gateway is",
        edited(("buckram.spark.checkpoints.location:_normal", "scheme in SCHEMES", "False")),
        ("tests/spark/checkpoints/test_location.py::test_the_same_checkpoint_through_two_gateways_is_one_place",),
    ),
    TestMutant(
        "spark-no-place",
        "a sink without the place of a checkpoint and without a name is not refused",
        edited(("buckram.spark.sink.exactly_once:stream_writer", "and not sink.once.identity.place", "and False")),
        ("tests/spark/test_db.py::test_the_sink_knows_queries_and_places_as_that_of_streams_does",),
    ),
    TestMutant(
        "spark-db-uncounted",
        "a step of a database is written although another one was noted since",
        edited(("buckram.spark.databases.table_sink:DatabaseStep._notes", "(_COUNTED, (self._count,)),", "")),
        ("tests/spark/test_db.py::test_two_drivers_that_both_found_a_step_missing",),
    ),
    TestMutant(
        "spark-changes-start",
        "the first batch of changes does not keep where it began",
        edited(("buckram.spark.shared.first_batch:with_start", "if start.get(INITIAL) else end", "if False else end")),
        ("tests/spark/test_db.py::test_a_repeated_first_batch_of_changes_begins_where_it_began",),
    ),
    TestMutant(
        "relay-once",
        "a request is not sent again when its gateway dies",
        edited(
            (
                "buckram.spark.relay.failover:GatewayFailover.ask",
                "except OSError as",
                "except ConnectionRefusedError as",
            )
        ),
        ("tests/spark/relay/test_server.py::test_a_body_that_is_under_way_is_sent_to_the_gateway_that_is_left",),
    ),
    TestMutant(
        "relay-body-gone",
        "a body is gone when it was sent",
        edited(
            (
                "buckram.spark.relay.http_messages:Body.pieces",
                "yield from self._pieces",
                "while self._pieces:\n            yield self._pieces.pop(0)",
            )
        ),
        ("tests/spark/relay/test_server.py::test_bodies_share_their_room_in_memory",),
    ),
    TestMutant(
        "relay-first-attempt",
        "a file is refused because its own first attempt put it",
        edited(
            (
                "buckram.serve.webhdfs.files:Files.create",
                "present.metadata.get(ATTEMPTED) == attempt",
                "False",
            )
        ),
        ("tests/serve/webhdfs/test_files.py::test_a_file_that_comes_again_is_known",),
    ),
    TestMutant(
        "relay-any-attempt",
        "a file of somebody else counts as the first attempt",
        edited(
            (
                "buckram.serve.webhdfs.files:Files.create",
                "present.metadata.get(ATTEMPTED) == attempt",
                "True",
            )
        ),
        ("tests/spark/relay/test_server.py::test_a_file_of_another_is_not_replaced_when_the_request_was_lost",),
    ),
    TestMutant(
        "relay-new-name",
        "a request has another name when it is sent again",
        edited(
            (
                "buckram.spark.relay.failover:Request.written",
                "self.attempt)",
                "f'{self.attempt}{self.repeated}')",
            )
        ),
        ("tests/spark/relay/test_server.py::test_a_file_is_its_own_first_attempt_when_the_answer_was_lost",),
    ),
    TestMutant(
        "relay-not-said",
        "a request that is sent again does not say so",
        edited(("buckram.spark.relay.failover:Request.written", "if self.repeated:", "if False:")),
        ("tests/spark/relay/test_server.py::test_changes_whose_answers_were_lost_are_done_once_and_say_so",),
    ),
    TestMutant(
        "relay-read-twice",
        "bytes that were read before the gateway died come twice",
        edited(
            (
                "buckram.spark.relay.failover:GatewayFailover.rest",
                "piece[len(piece) - (at - done) :] if at - done < len(piece) else piece",
                "piece",
            )
        ),
        ("tests/spark/relay/test_server.py::test_a_file_that_is_read_goes_on_in_the_middle",),
    ),
    TestMutant(
        "relay-two-files",
        "the rest of a file is that of another one",
        edited(
            (
                "buckram.spark.relay.failover:GatewayFailover.rest",
                '(head.get("content-length"), head.get("etag")) != (size, tag)',
                "False",
            )
        ),
        ("tests/spark/relay/test_server.py::test_a_file_that_became_another_one_meanwhile_is_cut",),
    ),
    TestMutant(
        "relay-refused",
        "a gateway that has no room has answered",
        edited(("buckram.spark.relay.failover:_refusal", 'told["javaClassName"] in _AGAIN', "False")),
        ("tests/spark/relay/test_server.py::test_a_gateway_that_is_silent_or_has_no_room_is_passed_over",),
    ),
    TestMutant(
        "relay-nobody",
        "a request goes on when nobody waits for its answer",
        edited(("buckram.spark.relay.failover:GatewayFailover._ask_one", "if request.gone():", "if False:")),
        ("tests/spark/relay/test_server.py::test_what_is_asked_by_one_that_is_gone_is_not_sent_again",),
    ),
    TestMutant(
        "spark-regrown-unseen",
        "a query goes on behind a stream that went back and grew beyond its checkpoint again",
        edited(
            (
                "buckram.spark.source.micro_batches:Live._check",
                "error = lost(name, mark, state.earliest, verdict)",
                "error = None",
            )
        ),
        ("tests/spark/test_went_back.py::test_a_stream_that_has_grown_beyond_the_checkpoint_again_ends_the_query",),
    ),
    TestMutant(
        "spark-planned-before-restore",
        "a batch that was planned before a restore is repeated with other records",
        edited(
            (
                "buckram.spark.source.micro_batches:Live.partitions",
                "await self._check(end, name, state)",
                "pass",
            )
        ),
        ("tests/spark/test_went_back.py::test_a_stream_that_has_grown_beyond_the_checkpoint_again_ends_the_query",),
    ),
    TestMutant(
        "spark-history-is-a-batch",
        "an offset that only remembers more is a new batch",
        edited(
            (
                "buckram.spark.shared.first_batch:with_start",
                "if without_notes(plain) == without_notes(end):",
                "if plain == end:",
            )
        ),
        ("tests/spark/test_went_back.py::test_a_history_that_changed_is_no_new_batch",),
    ),
    TestMutant(
        "spark-time-of-an-entry",
        "the time before a position is that of the entry, also where the segment's row bounds it",
        edited(
            (
                "buckram.streams.read.position_check:time_before",
                "return time if summary is None else min(max(time, summary.first_append), summary.last_append)",
                "return time",
            )
        ),
        ("tests/spark/test_went_back.py::test_the_time_of_a_record_is_what_readers_see_wherever_it_is",),
    ),
    TestMutant(
        "spark-regrown-log-unseen",
        "a query of changes goes on behind a log that went back and grew beyond its checkpoint again",
        edited(("buckram.spark.databases.row_changes:check_same", "if error is not None:", "if False:")),
        ("tests/spark/test_db.py::test_a_log_that_has_grown_beyond_the_checkpoint_again_ends_the_query",),
    ),
    TestMutant(
        "spark-history-of-a-server-unseen",
        "a sink does not look at the header in which a server says its history",
        edited(
            (
                "buckram.spark.databases.table_sink:RemoteServer._ask",
                'self._history = answer.headers.get(HISTORY_HEADER, "")',
                "pass",
            )
        ),
        ("tests/spark/test_db.py::test_a_server_says_in_which_history_it_writes_unless_it_is_an_older_one",),
    ),
)
