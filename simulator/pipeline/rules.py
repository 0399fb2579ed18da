"""The rules of outputs, by the model: each row of each batch that Spark noted as done is there once, and no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.engine.checkers.report import Report
from simulator.pipeline.model import Model, Output
from simulator.pipeline.queries import Query


def judge_output(report: Report, model: Model, found: Output, there: Mapping[str, Sequence[bytes]]) -> None:
    """Compare what an output has, by the stream ("" for a table), with what the model says."""
    query, allowed = found.query, model.allowed(found)
    label = b"%s " % query.label.encode()
    for target, wanted in model.required(found).items():
        rows = [row for row in there.get(target, ()) if row.startswith(label)]
        counts = Counter(rows)
        twice = [row for row, count in counts.items() if count > 1]
        report.check("once", not twice, "{} has {} {} times", target or "the table", *_first(twice, counts))
        missing = [row for row in wanted if row not in counts]
        why = wanted[missing[0]] if missing else ""
        report.check(
            "kept",
            not missing,
            "{} lacks {} of {} rows, such as {} ({})",
            target,
            len(missing),
            len(wanted),
            missing[:1],
            why,
        )
        others = [row for row in counts if row not in allowed]
        report.check("only", not others, "{} has {} of no batch", target, others[:1])
        if not found.shuffled:
            _judge_order(report, target, rows)
    _judge_entries(report, model, found)


def _first(rows: list[bytes], counts: Counter[bytes]) -> tuple[bytes, int]:
    return (rows[0], counts[rows[0]]) if rows else (b"", 0)


def _judge_order(report: Report, target: str, rows: list[bytes]) -> None:
    """Check that the rows of each input are in its order, which is that of the numbers in them."""
    last: dict[bytes, int] = {}
    for row in rows:
        stream, _, number = row.rpartition(b".")
        good = last.get(stream, -1) < int(number)
        if not good:
            report.check("ordered", False, "{} has {} behind {} of its input", target, row, last[stream])
            return
        last[stream] = int(number)
    report.check("ordered", True)


def _judge_entries(report: Report, model: Model, found: Output) -> None:
    """Check that a stream which enters a query that runs enters it at its earliest record."""
    for green in found.greens:
        before = green.start.get("uids", {})
        for name, uid in green.end.get("uids", {}).items():
            one = model.inputs.get(uid)
            if one is not None and before.get(name) != uid:
                report.situation("a stream entered a query that ran")
                at = green.end[name]
                report.check("kept", at <= one.earliest, "{} enters at {}, and begins at {}", name, at, one.earliest)


def judge_whole(report: Report, model: Model, query: Query, end: Mapping[str, Any], current: Mapping[str, str]) -> None:
    """Check that a query that has read everything, up to `end`, has read each of its streams, by name and uid."""
    for name, uid in current.items():
        if query.reads(name):
            wanted, at = model.inputs[uid].end, end.get(name, -1)
            good = at >= wanted and end.get("uids", {}).get(name) == uid
            report.check("whole", good, "{} has read {} up to {}, which ends at {}", query.name, name, at, wanted)


__all__ = ["judge_output", "judge_whole"]
