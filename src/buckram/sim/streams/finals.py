"""What must hold of a whole life when it is over and every stream was read in full by somebody who knows nothing."""

from __future__ import annotations

from itertools import pairwise

from buckram.sim.engine.checkers.report import Report
from buckram.sim.streams.facts import Facts, Line, Step


class Finals:
    def __init__(self, facts: Facts, report: Report) -> None:
        self._facts, self._report = facts, report

    def judge(self) -> None:
        for line in self._facts.lines.values():
            if line.final is None:
                continue
            self._dense(line)
            self._durable(line)
            self._orders(line)
            self._atomic(line)
            self._times(line)
            for step in line.steps:
                self._step(line, step)
            self._once(line)

    def _dense(self, line: Line) -> None:
        assert line.final is not None
        assert line.head is not None
        report, offsets = self._report, list(line.final)
        report.check(
            "dense",
            offsets == list(range(line.final_earliest, line.head.end)),
            "{} holds {} to {}, {} of them, the list says {} to {}",
            line.name,
            offsets[:1],
            offsets[-1:],
            len(offsets),
            line.final_earliest,
            line.head.end,
        )
        for row in line.head.tail:
            if row.summary is None:
                continue
            inside = [line.truth[o].time for o in range(row.base, row.end) if o in line.final]
            if inside:
                times = [time for time in inside if time is not None]
                first, last = row.summary.first_append, row.summary.last_append
                report.check(
                    "sealed-row",
                    all(first <= time <= last for time in times),
                    "{} of {} holds append times {} to {}",
                    row,
                    line.name,
                    min(times),
                    max(times),
                )

    def _durable(self, line: Line) -> None:
        assert line.final is not None
        for offset, sent in line.acked.items():
            if offset >= line.final_earliest:
                self._report.check(
                    "durable",
                    line.final.get(offset) == sent.ident,
                    "{} was acknowledged at {} of {}, there is {}",
                    sent.ident,
                    offset,
                    line.name,
                    line.final.get(offset),
                )
        if line.final_earliest > 0:
            return
        for ident, attempts in self._facts.sent.items():
            if any(sent.result == "ok" and sent.session.line is line for sent in attempts):
                self._report.check(
                    "durable", ident in line.place, "{} was acknowledged and is not in {}", ident, line.name
                )

    def _orders(self, line: Line) -> None:
        for session in self._facts.sessions:
            if session.line is not line:
                continue
            placed = [
                (line.place[s.ident], s.ident)
                for s in session.order
                if s.ident in line.place and s.content.producer is None
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
                    line.name,
                )
        producers: dict[str, list[tuple[int, int]]] = {}
        for ident, offset in line.place.items():
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
                line.name,
            )
            if line.final_earliest == 0:
                self._report.check(
                    "idempotent",
                    [sequence for sequence, _ in rows] == list(range(len(rows))),
                    "the records of producer {} have gaps: {} in {}",
                    name,
                    rows,
                    line.name,
                )

    def _atomic(self, line: Line) -> None:
        for group in line.groups:
            found = [(index, line.place[ident]) for index, ident in enumerate(group.idents) if ident in line.place]
            if not found:
                continue
            first = found[0][1] - found[0][0]
            due = [
                (index, first + index)
                for index in range(len(group.idents))
                if first + index >= line.final_earliest or (index, first + index) in found
            ]
            self._report.check(
                "atomic",
                set(found) >= set(due),
                "of the atomic batch {} of {} there is {}",
                group.idents,
                line.name,
                found,
            )

    def _times(self, line: Line) -> None:
        seen = [(offset, line.truth[offset]) for offset in sorted(line.truth)]
        timed = [(offset, one.time) for offset, one in seen if one.time is not None]
        for (a, before), (b, after) in pairwise(timed):
            self._report.check(
                "append-time",
                before <= after,
                "offsets {} and {} of {} were appended at {} and {}",
                a,
                b,
                line.name,
                before,
                after,
            )
        given = [(offset, one.txid) for offset, one in seen if one.txid is not None]
        for (a, low), (b, high) in pairwise(given):
            self._report.check(
                "txid", low <= high, "offsets {} and {} of {} have txids {} and {}", a, b, line.name, low, high
            )

    def _once(self, line: Line) -> None:
        """Of all attempts of one version of a transaction one at most is there."""
        versions: dict[tuple[str, int], list[Step]] = {}
        for step in line.steps:
            if any(ident in line.place for ident in step.idents):
                versions.setdefault((step.application, step.version), []).append(step)
        for (application, version), steps in versions.items():
            self._report.check(
                "bulk",
                len(steps) == 1,
                "version {} of {} is in {} {} times",
                version,
                application,
                line.name,
                len(steps),
            )

    def _step(self, line: Line, step: Step) -> None:
        report, idents = self._report, step.idents
        found = [(index, line.place[ident]) for index, ident in enumerate(idents) if ident in line.place]
        told = next(
            (
                other.told
                for other in line.steps
                if other.told is not None and (other.application, other.version) == (step.application, step.version)
            ),
            None,
        )
        if told is not None and found:
            report.check(
                "bulk",
                all(told.start + index == offset for index, offset in found) and len(told) == len(idents),
                "version {} of {} was told {}, it stands at {} in {}",
                step.version,
                step.application,
                told,
                found,
                line.name,
            )
        if found:
            first = found[0][1] - found[0][0]
            due = [(i, first + i) for i in range(len(idents)) if first + i >= line.final_earliest]
            report.check(
                "bulk",
                set(found) >= set(due),
                "of version {} of {} there is {} in {}",
                step.version,
                step.application,
                found,
                line.name,
            )


__all__ = ["Finals"]
