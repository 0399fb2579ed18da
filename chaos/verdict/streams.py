"""Histories of streams against their records at the end: exactly once, in order, where writers and readers saw them."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.history import Event
from chaos.verdict.report import Report
from chaos.verdict.state import State, StreamState


def judge_streams(events: Sequence[Event], state: State, report: Report) -> None:
    """Pure. A stream that never came to be has no events that ask for it."""
    for stream in sorted({event["stream"] for event in events if event["event"] in ("appended", "followed")}):
        found = state.streams.get(stream, StreamState(stream))
        own = [event for event in events if event.get("stream") == stream]
        _judge_producers(found, own, report)
        _judge_readers(found, own, report)
        _judge_segments(found, report)


def _judge_producers(found: StreamState, events: Sequence[Event], report: Report) -> None:
    for wrong in found.wrong or [""]:
        report.check("exactly-once", not wrong, f"stream {found.stream}: {wrong}")
    following: dict[str, int] = {}
    for offset, (producer, sequence) in enumerate(found.records):
        expected = following.get(producer, 0)
        where = f"stream {found.stream}: offset {offset} has {sequence} of {producer}, not {expected}"
        report.check("exactly-once", sequence == expected, where)
        following[producer] = sequence + 1
    for event in events:
        if event["event"] != "appended":
            continue
        producer, stop = f"{event['actor']}-{found.stream}", event["sequence"] + event["count"]
        there = following.get(producer, 0)
        lost = f"stream {found.stream}: {producer} has {stop} acknowledged records, {there} are there"
        report.check("exactly-once", there >= stop, lost)
        if event["offsets"] is not None:
            first, last = event["offsets"][0], event["offsets"][1] - 1
            at = found.records[first : last + 1]
            expected_records = [(producer, sequence) for sequence in range(event["sequence"], stop)]
            text = (
                f"stream {found.stream}: offsets {first} to {last} do not have {producer} {event['sequence']} to {stop}"
            )
            report.check("offsets", at == expected_records, text)


def _judge_readers(found: StreamState, events: Sequence[Event], report: Report) -> None:
    following: dict[str, int] = {}
    for event in events:
        if event["event"] != "followed":
            continue
        who, (first, stop) = event["actor"], event["offsets"]
        report.check("follow", not event["wrong"], f"stream {found.stream}: {who} read {event['wrong']}")
        expected = 0 if event["begins"] else following.get(who, 0)
        report.check("follow", first == expected, f"stream {found.stream}: {who} got {first}, not {expected}")
        same = stop <= len(found.records) and event["digest"] == found.digest(first, stop)
        report.check("follow", same, f"stream {found.stream}: {who} got other records at {first} to {stop}")
        following[who] = stop


def _judge_segments(found: StreamState, report: Report) -> None:
    following = 0
    for number, (base, end, sealed) in enumerate(found.segments):
        where = f"stream {found.stream}: segment {number} of {len(found.segments)}"
        report.check("M9", base == following, f"{where} begins at {base}, not {following}")
        report.check("M9", sealed or number == len(found.segments) - 1, f"{where} is not sealed")
        following = end
