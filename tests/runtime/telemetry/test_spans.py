"""Which appends and requests are traced: a share of those that begin a trace, and those whose trace is sampled."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from buckram.runtime.telemetry.spans import OtelTraces
from buckram.seams import AppendSpan, Traces

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    def __init__(self, share: float, per_s: float = 1e9) -> None:
        self.steps: list[Any] = []
        self.traces: Traces = OtelTraces(self.steps.append, share, per_s, random.Random(1))

    def appended(self, times: int, *, chosen: bool = False) -> int:
        found = [self.append(chosen=chosen) for _ in range(times)]
        for span in found:
            if span is not None:
                span.end()
        return sum(span is not None for span in found)

    def append(self, *, chosen: bool) -> AppendSpan | None:
        return self.traces.append(7, 5, 1, 100, chosen=chosen)


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.0, 0, 0), (1.0, 10_000, 10_000), (0.01, 70, 130), (0.5, 4800, 5200)]
)
def test_gaps_leave_a_share(share: float, least: int, most: int) -> None:
    traces, place, found = Traced(share).traces, -1, 0
    while (place := place + 1 + traces.gap()) < 10_000:
        found += 1
    assert least <= found <= most


def test_an_append_begins_a_trace_only_if_it_is_chosen() -> None:
    traced = Traced(0.5)
    assert (traced.appended(10), traced.appended(10, chosen=True)) == (0, 10)
    assert len({one.trace for one in traced.steps}) == len({one.number for one in traced.steps}) == 10
    assert {one.parent for one in traced.steps} == {b""}


def test_no_more_traces_begin_in_a_second_than_are_wanted() -> None:
    traced = Traced(1.0, per_s=0.01)
    assert traced.appended(1000, chosen=True) == 1
    assert sum(traced.traces.continued("stored", bytes([1] * 24), {}) is not None for _ in range(1000)) == 1
    with traced.traces.request("GET /", f"00-{TRACE}-{CALLER}-01") as span:
        assert span is not None  # who asks decides
        span.end()


def test_an_append_is_within_the_span_of_its_program() -> None:
    traced = Traced(0.0)
    assert not traced.traces.within()
    with TracerProvider(shutdown_on_exit=False).get_tracer("program").start_as_current_span("work") as work:
        assert traced.traces.within()
        assert traced.appended(1) == 1
    assert traced.appended(1) == 0
    (append,) = traced.steps
    around = work.get_span_context()
    assert (append.trace.hex(), append.parent.hex()) == (f"{around.trace_id:032x}", f"{around.span_id:016x}")
    assert not append.is_remote


def test_what_the_sampler_of_a_program_left_out_is_left_out() -> None:
    traced = Traced(1.0)
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("program")
    with off.start_as_current_span("work"):
        assert traced.appended(1, chosen=True) == 0


@pytest.mark.parametrize(
    ("parent", "share", "followed"),
    [
        (f"00-{TRACE}-{CALLER}-01", 0.0, True),
        (f"00-{TRACE}-{CALLER}-00", 1.0, False),
        ("", 1.0, True),
        ("", 0.0, False),
        ("nonsense", 0.0, False),
        (f"00-{'0' * 32}-{CALLER}-01", 0.0, False),
        ("00-" + "f" * 100_000, 0.0, False),
    ],
)
def test_a_request_is_followed_if_its_trace_is(parent: str, share: float, followed: bool) -> None:
    traced = Traced(share)
    with traced.traces.request("GET /", parent) as span:
        assert (span is not None) is followed
        if followed:
            assert traced.appended(1) == 1
        elif parent.endswith("-00"):
            assert traced.appended(1, chosen=True) == 0
        if span is not None:
            span.end("broken")
    if followed:
        append, request = traced.steps
        assert (append.parent, append.trace) == (request.id, request.trace)
        assert request.error == "broken"
        assert request.trace.hex() == TRACE or not parent
        assert (request.parent.hex(), request.is_remote) == ((CALLER, True) if parent else ("", False))


def test_a_share_of_requests_is_followed() -> None:
    traced = Traced(0.1)
    found = 0
    for _ in range(2000):
        with traced.traces.request("GET /", "") as span:
            found += span is not None
    assert 140 <= found <= 260


def test_another_process_goes_on_with_a_trace() -> None:
    traced = Traced(1.0)
    with traced.traces.request("GET /", "") as request:
        assert request is not None
        step = request.child("asked", {"buckram.bookie": "b"})
    assert len(step.context) == 24
    far: Any = traced.traces.continued("stored", step.context, {"buckram.entry": 5})
    for one in (far, step, request):
        one.end()
    stored, asked, whole = traced.steps
    assert (stored.parent, stored.is_remote) == (asked.id, True)
    assert (asked.parent, asked.is_remote) == (whole.id, False)
    assert {one.trace for one in traced.steps} == {whole.trace}
    assert stored.notes == {"buckram.entry": 5}
    assert all(one.ended_ns >= one.began_ns > 0 for one in traced.steps)


def test_all_processes_agree_whether_a_trace_is_in_the_share() -> None:
    rng = random.Random(7)
    contexts = [rng.randbytes(24) for _ in range(4000)]
    here, there = OtelTraces(print, 0.1, 1.0, rng), OtelTraces(print, 0.1, 1.0, random.Random(2))
    chosen = [one for one in contexts if here.is_in_share(one)]
    assert 300 < len(chosen) < 500
    assert chosen == [one for one in contexts if there.is_in_share(one)]
    assert all(OtelTraces(print, 1.0, 1.0, rng).is_in_share(one) for one in contexts)
    assert not any(OtelTraces(print, 0.0, 1.0, rng).is_in_share(one) for one in contexts)


def test_the_first_step_of_a_trace_may_be_sent_after_those_within_it() -> None:
    traced = Traced(1.0)
    traces = OtelTraces(traced.steps.append, 1.0, 1e9, random.Random(3))
    context = bytes(range(24))
    part: Any = traces.continued("part", context, {})
    part.end()
    first = traces.beginning("whole", context, 5, {})
    with traces.around(first):
        assert traced.appended(1) == 1
    first.end()
    part, append, first = traced.steps
    assert (first.trace, first.parent, first.began_ns, first.context) == (context[:16], b"", 5, context)
    assert part.parent == append.parent == first.id
