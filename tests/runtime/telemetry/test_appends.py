"""An append that is followed, as a collector reads it: its own span and one for each bookie, in any order."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from buckram.runtime.telemetry.sending import CLIENT, MAX_TEXT, request_of
from buckram.runtime.telemetry.spans import OtelAppend, OtelTraces

TRACE, PARENT = bytes(range(16)), bytes(range(100, 108))
BOOKIES = ["b-0", "b-1", "b-2"]


class Following:
    """One append, and what was handed on when it had ended."""

    def __init__(self, number: int = 41, parent: bytes = PARENT, entry: int = 300, *, is_remote: bool = False) -> None:
        self.handed_on: list[OtelAppend] = []
        self.append = OtelAppend(self.handed_on.append, TRACE, number, parent, is_remote, 1 << 40, entry, 7, 10_240)

    def read(self) -> list[Any]:
        """Its spans, as a collector reads them."""
        (sent,) = ExportTraceServiceRequest.FromString(request_of(b"", self.handed_on)).resource_spans
        return list(sent.scope_spans[0].spans)


def attributes(span: Any) -> dict[str, str | int]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@pytest.mark.parametrize("entry", [0, 127, 128, 300, 1 << 32, (1 << 63) - 1])
@pytest.mark.parametrize(("parent", "is_remote"), [(b"", False), (PARENT, False), (PARENT, True)])
def test_its_spans_are_what_a_collector_reads(entry: int, parent: bytes, is_remote: bool) -> None:
    following = Following(parent=parent, entry=entry, is_remote=is_remote)
    append = following.append
    contexts = append.sent(BOOKIES)
    for place in (2, 0):
        append.answered(place)
    append.end()
    append.answered(1)
    whole, *steps = following.read()
    assert (whole.name, whole.kind, whole.trace_id, whole.parent_span_id) == ("buckram.append", CLIENT, TRACE, parent)
    assert attributes(whole) == {
        "buckram.ledger": 1 << 40,
        "buckram.entry": entry,
        "buckram.entries": 7,
        "buckram.bytes": 10_240,
    }
    assert (whole.flags, whole.status.code) == (0x301 if is_remote else 0x101, 0)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (append.began_ns, append.ended_ns)
    assert [one.trace_id + one.span_id for one in steps] == contexts
    assert len({whole.span_id, *(one.span_id for one in steps)}) == 4
    assert [attributes(one) for one in steps] == [{"buckram.bookie": bookie} for bookie in BOOKIES]
    for place, step in enumerate(steps):
        assert (step.name, step.kind, step.parent_span_id, step.flags) == (
            "buckram.bookie",
            CLIENT,
            whole.span_id,
            0x101,
        )
        assert (step.start_time_unix_nano, step.end_time_unix_nano) == (append.sent_ns, append.ends[place])
        assert step.status.code == 0


def test_it_is_handed_on_once_when_the_last_of_it_has_ended() -> None:
    following = Following()
    following.append.sent(BOOKIES)
    for place in (0, 0, 1):
        following.append.answered(place)
    following.append.end()
    following.append.end("it was over before")
    assert not following.handed_on
    following.append.answered(2)
    assert following.handed_on == [following.append]
    assert following.append.spans == 4
    assert following.read()[0].status.code == 0


def test_what_went_wrong_is_said_where_it_did() -> None:
    following = Following()
    following.append.sent(BOOKIES)
    following.append.answered(0)
    following.append.answered(1, "fenced" + "y" * MAX_TEXT)
    following.append.answered(2)
    following.append.end("not enough")
    whole, *steps = following.read()
    assert (whole.status.code, whole.status.message) == (2, "not enough")
    assert [one.status.code for one in steps] == [0, 2, 0]
    assert len(steps[1].status.message) == MAX_TEXT


def test_one_that_was_never_sent_has_no_steps() -> None:
    following = Following()
    following.append.end("the writer ended before")
    (whole,) = following.read()
    assert (whole.status.message, following.append.spans) == ("the writer ended before", 1)


def test_numbers_of_steps_begin_again_behind_the_last_one() -> None:
    following = Following(number=(1 << 64) - 1)
    following.append.sent(BOOKIES)
    assert [following.append.step_id(place) for place in range(3)] == [bytes(7) + bytes((place,)) for place in range(3)]


def test_a_clock_that_went_back_makes_no_span_of_less_than_nothing() -> None:
    following = Following()
    append = following.append
    append.sent(["b"])
    append.answered(0)
    append.end()
    append.ends[0] = append.ended_ns = 1
    for span in following.read():
        assert span.end_time_unix_nano == span.start_time_unix_nano


def test_another_process_goes_on_with_a_step() -> None:
    ended: list[Any] = []
    traces = OtelTraces(ended.append, 1.0, 1e9, random.Random(1))
    append = traces.append(7, 5, 1, 100, chosen=True)
    assert append is not None
    (context,) = append.sent(["b"])
    far = traces.continued("stored", context, {})
    assert far is not None
    far.end()
    append.answered(0)
    append.end()
    stored, whole = ended
    assert (stored.trace, stored.parent, stored.is_remote) == (whole.trace, whole.step_id(0), True)
