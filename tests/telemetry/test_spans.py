"""Which appends and requests are traced: a share of those that begin a trace, and those whose trace is sampled."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from buckram.seams import Traces
from buckram.telemetry.spans import OtelTraces

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    def __init__(self, share: float, per_s: float = 1e9) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.traces: Traces = OtelTraces(self.provider, share, per_s, random.Random(1))

    @property
    def steps(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    def appended(self, times: int) -> int:
        found = [self.traces.append() for _ in range(times)]
        for span in found:
            if span is not None:
                span.end()
        return sum(span is not None for span in found)


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.0, 0, 0), (1.0, 10_000, 10_000), (0.01, 70, 130), (0.5, 4800, 5200)]
)
def test_a_share_is_traced(share: float, least: int, most: int) -> None:
    assert least <= Traced(share).appended(10_000) <= most


def test_no_more_traces_begin_in_a_second_than_are_wanted() -> None:
    traced = Traced(1.0, per_s=0.01)
    assert traced.appended(1000) == 1
    assert sum(traced.traces.continued("stored", bytes([1] * 24), {}) is not None for _ in range(1000)) == 1
    with traced.traces.request("GET /", f"00-{TRACE}-{CALLER}-01") as span:
        assert span is not None  # who asks decides
        span.end()


def test_an_append_is_within_the_span_of_its_program() -> None:
    traced = Traced(0.0)
    with traced.provider.get_tracer("program").start_as_current_span("work") as work:
        assert traced.appended(1) == 1
    assert traced.appended(1) == 0
    (append, _) = traced.steps
    assert append.parent == work.get_span_context()


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
            assert traced.appended(1) == 0
        if span is not None:
            span.end("broken")
    if followed:
        append, request = traced.steps
        assert append.parent is not None
        assert request.context is not None
        assert append.parent.span_id == request.context.span_id
        assert request.status.description == "broken"
        assert f"{request.context.trace_id:032x}" == TRACE or not parent


def test_another_process_goes_on_with_a_trace() -> None:
    traced = Traced(1.0)
    span: Any = traced.traces.append()
    step = span.child("sent", {"buckram.bookie": "b"})
    assert len(step.context) == 24
    far: Any = traced.traces.continued("stored", step.context, {"buckram.entry": 5})
    for one in (far, step, span):
        one.end()
    stored, sent, append = traced.steps
    assert stored.parent is not None
    assert sent.context is not None
    assert (stored.parent.span_id, stored.parent.is_remote) == (sent.context.span_id, True)
    assert {one.context.trace_id for one in traced.steps if one.context} == {
        append.context.trace_id if append.context else 0
    }
    assert dict(stored.attributes or {}) == {"buckram.entry": 5}
