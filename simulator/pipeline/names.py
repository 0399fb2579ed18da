"""The invariants and situations of pipelines that lives evaluate and reach."""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "once": "no row of a query is in its output twice",
    "kept": "every row of a batch that Spark has noted as done is in the output",
    "only": "an output has only rows of batches that its query has planned",
    "whole": "a query that ends without an error, and has no limit, has read all that its streams have",
    "ordered": "without a shuffle, the rows of one input stream keep their order in the output",
    "caused": "a query is refused only where somebody did what the refusal is about",
    "refused": "what would lose rows or write them again is refused before Spark notes the batch as done",
    "says": "a refusal names what to do",
    "goes on": "a query that was refused goes on when somebody does what the refusal says",
    "ends": "without faults every run of a query ends",
}

SITUATIONS = (
    "a batch was repeated after a kill behind the offset log",
    "a batch was repeated after a kill behind planning",
    "a batch was repeated after a kill behind its tasks",
    "a batch was repeated after a kill within the sink's commit",
    "a batch was repeated after a kill behind the sink's commit",
    "a first batch was repeated",
    "a repeated batch was skipped",
    "a batch had several partitions",
    "a batch was shuffled",
    "a task ran twice at once",
    "a task died and was run again",
    "the loser of a task wrote rows as well",
    "tasks went on behind a dead driver",
    "a ledger was not where the planner saw it",
    "a checkpoint was copied, and both queries ran",
    "an older copy of the checkpoint was refused",
    "an older copy of the checkpoint was accepted",
    "a deleted checkpoint was refused",
    "a replaced query was refused",
    "a checkpoint was forked",
    "a fork was refused where its source writes",
    "a checkpoint was moved",
    "options were changed",
    "a stream was truncated under a query",
    "a truncated stream was refused",
    "a stream was made anew under a query",
    "a stream made anew was refused",
    "a query went on without lost records",
    "an input was freed up to a cursor",
    "an input was destroyed between planning and reading",
    "an output was made anew under a query",
    "an output made anew was refused",
    "an output was held by a writer",
    "a stream entered a query that ran",
    "rows went to several streams",
    "rows went to a table",
)


__all__ = ["INVARIANTS", "SITUATIONS"]
