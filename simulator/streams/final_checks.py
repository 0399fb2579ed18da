"""The invariants that are checked at the end of a life, after a new client has read every stream in full."""

from __future__ import annotations

from itertools import pairwise

from simulator.engine.checkers.report import Report
from simulator.streams.facts import BulkAttempt, Facts, StreamHistory
from simulator.streams.forked import check_fork


class FinalChecks:
    """Compares what was read at the end with everything that happened to the streams."""

    def __init__(self, facts: Facts, report: Report) -> None:
        self._facts, self._report = facts, report

    def run(self) -> None:
        for history in self._facts.histories.values():
            if history.final is None:
                continue
            self._check_dense(history)
            self._check_durable(history)
            self._check_orders(history)
            self._check_atomic(history)
            self._check_times(history)
            for step in history.steps:
                self._check_bulk_step(history, step)
            self._check_published_once(history)
            check_fork(self._report, history)

    def _check_dense(self, history: StreamHistory) -> None:
        assert history.final is not None
        assert history.head is not None
        report, offsets = self._report, list(history.final)
        report.check(
            "dense",
            offsets == list(range(history.final_earliest, history.head.end)),
            "{} holds {} to {}, {} of them, the list says {} to {}",
            history.name,
            offsets[:1],
            offsets[-1:],
            len(offsets),
            history.final_earliest,
            history.head.end,
        )
        for row in history.head.tail:
            if row.summary is None:
                continue
            inside = [history.known_records[o].time for o in range(row.base, row.end) if o in history.final]
            if inside:
                times = [time for time in inside if time is not None]
                first, last = row.summary.first_append, row.summary.last_append
                report.check(
                    "sealed-row",
                    all(first <= time <= last for time in times),
                    "{} of {} holds append times {} to {}",
                    row,
                    history.name,
                    min(times),
                    max(times),
                )

    def _check_durable(self, history: StreamHistory) -> None:
        assert history.final is not None
        for offset, sent in history.acked.items():
            if offset >= history.final_earliest:
                self._report.check(
                    "durable",
                    history.final.get(offset) == sent.ident,
                    "{} was acknowledged at {} of {}, where {} is",
                    sent.ident,
                    offset,
                    history.name,
                    history.final.get(offset),
                )
        if history.final_earliest > 0:
            return
        for ident, attempts in self._facts.sent.items():
            if any(sent.result == "ok" and sent.session.history is history for sent in attempts):
                self._report.check(
                    "durable", ident in history.offset_of, "{} was acknowledged and is not in {}", ident, history.name
                )

    def _check_orders(self, history: StreamHistory) -> None:
        for session in self._facts.sessions:
            if session.history is not history:
                continue
            placed = [
                (history.offset_of[s.ident], s.ident)
                for s in session.order
                if s.ident in history.offset_of and s.content.producer is None
            ]
            for (a, one), (b, other) in pairwise(placed):
                self._report.check(
                    "call-order",
                    a < b,
                    "{} was appended before {} and stands at {}, {} in {}",
                    one,
                    other,
                    a,
                    b,
                    history.name,
                )
        producers: dict[str, list[tuple[int, int]]] = {}
        for ident, offset in history.offset_of.items():
            if ident.startswith("P"):
                name, _, sequence = ident.partition("#")
                producers.setdefault(name, []).append((int(sequence), offset))
        for name, rows in producers.items():
            rows.sort()
            self._report.check(
                "call-order",
                all(a[1] < b[1] for a, b in pairwise(rows)),
                "the records of producer {} stand at {} in {}",
                name,
                rows,
                history.name,
            )
            if history.final_earliest == 0:
                self._report.check(
                    "idempotent",
                    [sequence for sequence, _ in rows] == list(range(len(rows))),
                    "the records of producer {} have gaps: {} in {}",
                    name,
                    rows,
                    history.name,
                )

    def _check_atomic(self, history: StreamHistory) -> None:
        for group in history.groups:
            found = [
                (index, history.offset_of[ident])
                for index, ident in enumerate(group.idents)
                if ident in history.offset_of
            ]
            if not found:
                continue
            first = found[0][1] - found[0][0]
            expected = [
                (index, first + index)
                for index in range(len(group.idents))
                if first + index >= history.final_earliest or (index, first + index) in found
            ]
            self._report.check(
                "atomic",
                set(found) >= set(expected),
                "of the atomic batch {} of {} there is {}",
                group.idents,
                history.name,
                found,
            )

    def _check_times(self, history: StreamHistory) -> None:
        seen = [(offset, history.known_records[offset]) for offset in sorted(history.known_records)]
        timed = [(offset, one.time) for offset, one in seen if one.time is not None]
        for (a, before), (b, after) in pairwise(timed):
            self._report.check(
                "append-time",
                before <= after,
                "offsets {} and {} of {} were appended at {} and {}",
                a,
                b,
                history.name,
                before,
                after,
            )
        given = [(offset, one.txid) for offset, one in seen if one.txid is not None]
        for (a, low), (b, high) in pairwise(given):
            self._report.check(
                "txid", low <= high, "offsets {} and {} of {} have txids {} and {}", a, b, history.name, low, high
            )

    def _check_published_once(self, history: StreamHistory) -> None:
        """Check that the stream has at most one attempt of each version of an application's bulk steps."""
        versions: dict[tuple[str, int], list[BulkAttempt]] = {}
        for step in history.steps:
            if any(ident in history.offset_of for ident in step.idents):
                versions.setdefault((step.application, step.version), []).append(step)
        for (application, version), steps in versions.items():
            self._report.check(
                "bulk",
                len(steps) == 1,
                "version {} of {} is in {} {} times",
                version,
                application,
                history.name,
                len(steps),
            )

    def _check_bulk_step(self, history: StreamHistory, step: BulkAttempt) -> None:
        report, idents = self._report, step.idents
        found = [(index, history.offset_of[ident]) for index, ident in enumerate(idents) if ident in history.offset_of]
        published = next(
            (
                other.published
                for other in history.steps
                if other.published is not None
                and (other.application, other.version) == (step.application, step.version)
            ),
            None,
        )
        if published is not None and found:
            report.check(
                "bulk",
                all(published.start + index == offset for index, offset in found) and len(published) == len(idents),
                "version {} of {} was published at {}, but is at {} in {}",
                step.version,
                step.application,
                published,
                found,
                history.name,
            )
        if found:
            first = found[0][1] - found[0][0]
            expected = [(i, first + i) for i in range(len(idents)) if first + i >= history.final_earliest]
            report.check(
                "bulk",
                set(found) >= set(expected),
                "of version {} of {} there is {} in {}",
                step.version,
                step.application,
                found,
                history.name,
            )


__all__ = ["FinalChecks"]
