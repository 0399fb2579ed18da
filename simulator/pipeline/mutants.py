"""Planted bugs of Spark's side: `python -m buckram.sim --pipeline --mutants`. They were written before the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.pipeline.plan import PipelinePlan, suit

_RULES = "buckram.core.streams.metadata.transactions"
_SINK = "buckram.spark.sink"
_SOURCE = "buckram.spark.source"
_LIVE = f"{_SOURCE}.micro_batches:Live"
_BACK: Mapping[str, Any] = {
    "acts": ["older copy"] * 3,
    "killing": 0.0,
    "vandalism": [],
    "records": 60,
    "runs": 9,
    "source": {"maxOffsetsPerTrigger": "1000"},
}
"""Lives in which older copies of checkpoints are put back, whose batches are planned with other ends then."""
_DATABASE = "buckram.spark.databases.table_sink:DatabaseStep"


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[PipelinePlan]):
    """A planted bug of sources or sinks."""

    life: Mapping[str, Any] = field(default_factory=dict)
    """What the mutant's lives have, by fields of PipelinePlan, for bugs that show only then."""

    def suits(self, plan: PipelinePlan) -> bool:
        suit(plan, **self.life)
        return True


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        # -- what is published once -------------------------------------------------------------------------
        Mutant(
            "batch-number-not-compared",
            "once",
            "a batch is published although the stream has its number of this query already",
            edited((f"{_RULES}:settled", "same[1].version >= step.version", "False")),
        ),
        Mutant(
            "query-named-by-its-run",
            "once, kept, goes on",
            "tasks name the run instead of the query, so that a restarted query is another one",
            edited((f"{_SINK}.transactions:Attempt.here", "getLocalProperty(QUERY_ID)", "getLocalProperty(RUN_ID)")),
        ),
        Mutant(
            "replay-not-compared",
            "kept",
            "a batch that is published already is skipped, whatever rows it has now",
            edited((f"{_SINK}.exactly_once:write_once", "if step.query and sink.once.compared:", "if False:")),
            life={**_BACK, "local": False},
        ),
        Mutant(
            "plan-time-not-compared",
            "kept",
            "a batch that has any time of planning is taken for the published one",
            edited(
                (
                    f"{_SINK}.replay_check:_is_that_plan",
                    "return planned == done.planned if done.planned else planned <= done.time",
                    "return True",
                )
            ),
            life={**_BACK, "local": True},
        ),
        Mutant(
            "checkpoint-place-not-compared",
            "once",
            "a query without a name may publish where one with another checkpoint of that place did",
            edited(
                (
                    f"{_RULES}:_others",
                    "(name == step.application or txn.place in places)",
                    "name == step.application",
                )
            ),
            life={"acts": ["delete", "delete"], "named": False},
        ),
        Mutant(
            "replaced-query-goes-on",
            "once, kept, goes on",
            "a query that was replaced by a new epoch publishes again",
            edited((f"{_RULES}:settled", "if step.query in other.past:", "if False:")),
            life={"acts": ["delete", "delete"], "killing": 0.0, "vandalism": [], "runs": 9},
        ),
        Mutant(
            "unknown-query-goes-on",
            "kept",
            "a later batch is published to a stream that has none of the earlier ones",
            edited((f"{_RULES}:check_known", "if not begins(step):", "if False:")),
            life={"kind": "stream", "acts": ["anew", "anew"]},
        ),
        Mutant(
            "fork-keeps-its-query",
            "once, kept, goes on",
            "the fork of a checkpoint has the id of its source's query",
            edited(("buckram.spark.checkpoints.fork:_copy", "if name == METADATA:", "if False:")),
            life={"kind": "stream", "acts": ["fork"]},
        ),
        # -- what is published at all -----------------------------------------------------------------------
        Mutant(
            "small-rows-forgotten",
            "kept",
            "rows in messages are not published if another task of the batch made a ledger",
            edited(
                (
                    f"{_SINK}.small_parts:with_small_parts",
                    "if ledgers or small",
                    "if ledgers or (small and not any(one for one, _ in parts))",
                )
            ),
            life={
                "kind": "stream",
                "records": 60,
                "sink": {"smallPartBytes": "120"},
                "source": {"minPartitions": "3", "maxOffsetsPerTrigger": "20"},
            },
        ),
        Mutant(
            "skipped-tasks-published",
            "kept",
            "a batch whose tasks wrote nothing, since the stream was held, is published without their rows",
            edited((f"{_SINK}.exactly_once:write_once", "if skipped:", "if False:")),
            80,
            life={"kind": "stream", "vandalism": ["hold"] * 8},
        ),
        Mutant(
            "streams-one-after-another",
            "kept",
            "the streams of one batch are published in one step each",
            edited(
                (
                    f"{_SINK}.transactions:StreamStep._publish",
                    "await publish_together(everything, seal_live=self._seal_live, beside_writer=self._beside_writer)",
                    "for one in everything:\n                await publish_together([one], seal_live=self._seal_live)",
                )
            ),
            80,
            life={"kind": "byStream", "killing": 0.3},
        ),
        Mutant(
            "lagging-metadata-believed",
            "caused, ends, goes on",
            "a step is refused by what a lagging server of the metadata store says",
            edited(
                (
                    f"{_SINK}.transactions:foreseen_step",
                    "(StreamError,)",
                    "()",
                )
            ),
            life={"lag_s": 2.0, "calm": True, "kind": "stream", "source": {"maxOffsetsPerTrigger": "3"}},
        ),
        Mutant(
            "lagging-ledger-believed",
            "ends",
            "a ledger of a task is refused since a lagging server does not know that it is closed",
            edited(
                ("buckram.streams.write.bulk:Bulk._check", "(InvalidSegment, NoSuchLedger)", "()"),
            ),
            life={"lag_s": 2.0, "calm": True, "kind": "stream", "sink": {"smallPartBytes": "1"}},
        ),
        Mutant(
            "target-not-checked",
            "kept",
            "a further stream that was made anew gets later batches without the earlier ones",
            edited(
                (
                    f"{_RULES}:check_target",
                    "if done is not None and _mark(name) in _marks(done[1].targets):",
                    "if False:",
                )
            ),
            80,
            life={"kind": "byStream", "acts": ["anew", "anew"], "killing": 0.0},
        ),
        # -- what is read -----------------------------------------------------------------------------------
        Mutant(
            "stream-not-identified",
            "kept",
            "a stream that was made anew is read on at the old one's position",
            edited(
                (f"{_LIVE}.latest", "uids.get(name, state.head.uid) != state.head.uid", "False"),
                (f"{_LIVE}.partitions", "now.get(name, state.head.uid) != state.head.uid", "False"),
                (f"{_LIVE}.partitions", "if uids.get(name, now.get(name)) == now.get(name)", ""),
                (f"{_LIVE}._compared", "name in now and now[name] != uid", "False"),
            ),
        ),
        Mutant(
            "first-start-planned-anew",
            "kept",
            "a repeated first batch begins where a query would begin now",
            edited(
                (
                    "buckram.spark.shared.first_batch:batch_start",
                    "end.get(BEGAN, start)",
                    "start",
                )
            ),
            life={"starting": "latest", "killing": 0.3},
        ),
        Mutant(
            "end-planned-anew",
            "once",
            "a batch has all that is readable when it is planned, also behind its end",
            edited(
                (
                    f"{_LIVE}.partitions",
                    "wanted.append(Wanted(state, first, stop))",
                    "wanted.append(Wanted(state, first, max(stop, state.end)))",
                )
            ),
        ),
        Mutant(
            "gap-between-partitions",
            "kept",
            "each further partition of a ledger begins one record too late",
            edited(
                (
                    f"{_SOURCE}.stream_planner:Planner._cut",
                    "first, entry = stop, beyond",
                    "first, entry = stop + 1, beyond",
                )
            ),
        ),
        Mutant(
            "truncated-passed-over",
            "kept",
            "records that were truncated before a batch was planned are passed over in silence",
            edited(
                (f"{_LIVE}.latest", "if begin < state.earliest:", "if False:"),
                (f"{_SOURCE}.stream_planner:Planner._extents", "if options.fail_on_loss:", "if False:"),
            ),
        ),
        Mutant(
            "truncated-in-a-task-passed-over",
            "kept",
            "records that are truncated while a task reads are passed over in silence",
            edited(
                (
                    f"{_SOURCE}.partition_reader:PartitionReader._read_through_list",
                    'on_truncated: Truncated = "error" if self._fail_on_loss else "skip"',
                    'on_truncated: Truncated = "skip"',
                )
            ),
            120,
            life={"kind": "stream", "vandalism": ["truncate"] * 6, "acts": []},
        ),
        Mutant(
            "other-stream-read-in-a-task",
            "kept",
            "a task whose stream was made anew reads the new one",
            edited(
                (
                    f"{_SOURCE}.partition_reader:PartitionReader._read_through_list",
                    "if ns.info(full.stream).uid != piece.uid:",
                    "if False:",
                )
            ),
            120,
            life={"kind": "stream", "vandalism": ["make anew"] * 6, "acts": []},
        ),
        Mutant(
            "new-stream-enters-at-its-end",
            "kept",
            "a stream that a pattern finds later enters the query where it ends",
            edited(
                (
                    f"{_LIVE}.latest",
                    "elif name not in before:\n                ends[name] = state.earliest",
                    "elif name not in before:\n                ends[name] = state.end",
                )
            ),
            life={"kind": "pattern", "vandalism": ["add", "add", "add"], "starting": "earliest"},
        ),
        Mutant(
            "cursor-ahead",
            "caused",
            "the cursor moves to the end of a batch before the batch is read",
            edited((f"{_SOURCE}.micro_batches:LiveReader.between", "self.begin(start)", "self._move(end)")),
            80,
            life={"source": {"cursor": "reader"}, "vandalism": ["trim"] * 6, "killing": 0.3, "acts": []},
        ),
        # -- databases --------------------------------------------------------------------------------------
        Mutant(
            "database-writes-twice",
            "once",
            "a batch is written to a table although the database has its number",
            edited((f"{_DATABASE}.foreseen", "return False", "return True")),
            life={"kind": "database", "killing": 0.3},
        ),
        Mutant(
            "database-steps-not-counted",
            "once",
            "two drivers may both write a step to a table",
            edited((f"{_DATABASE}._notes", "(_COUNTED, (self._count,)),", "")),
            120,
            life={"kind": "database", "acts": ["copy", "copy"], "killing": 0.0},
        ),
    )
}
