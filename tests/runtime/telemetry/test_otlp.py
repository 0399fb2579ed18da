"""The bytes of spans, read by OpenTelemetry's own messages."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from buckram.runtime.telemetry.otlp import CLIENT, MAX_TEXT, SERVER, request_of, resource_of
from buckram.runtime.telemetry.spans import OtelSpan

TRACE, PARENT = bytes(range(16)), bytes(range(100, 108))


def ended(*spans: OtelSpan) -> list[Any]:
    """Their messages, as a collector reads them."""
    resource = resource_of({"service.name": "s", "process.pid": 7, "odd": (1, 2)})
    (sent,) = ExportTraceServiceRequest.FromString(request_of(resource, spans)).resource_spans
    assert {one.key: one.value.string_value or one.value.int_value for one in sent.resource.attributes} == {
        "service.name": "s",
        "process.pid": 7,
        "odd": "(1, 2)",
    }
    (scope,) = sent.scope_spans
    assert scope.scope.name == "buckram"
    return list(scope.spans)


def span(
    name: str = "step", parent: bytes = PARENT, notes: dict[str, str | int] | None = None, **more: Any
) -> OtelSpan:
    return OtelSpan(
        lambda one: None, random.Random(1), name, more.pop("kind", CLIENT), TRACE, parent, notes or {}, **more
    )


def test_a_span_is_what_a_collector_reads() -> None:
    root, step = span("root", b"", kind=SERVER, is_remote=True), span()
    root.end("it broke")
    step.end()
    first, second = ended(root, step)
    assert (first.name, first.kind, first.trace_id, first.span_id, first.parent_span_id) == (
        "root",
        SERVER,
        TRACE,
        root.id,
        b"",
    )
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (root.began_ns, root.ended_ns)
    assert (first.status.code, first.status.message) == (2, "it broke")
    assert (second.name, second.kind, second.parent_span_id, second.status.code) == ("step", CLIENT, PARENT, 0)
    assert (first.flags, second.flags) == (0x301, 0x101)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16_383, 16_384, 1 << 32, (1 << 63) - 1, -1, "", "b", "é" * 200])
def test_attributes_keep_their_values(value: str | int) -> None:
    one = span(notes={"first": value, "second": value})
    one.end()
    (read,) = ended(one)
    assert {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in read.attributes} == {
        "first": value,
        "second": value,
    }


def test_texts_are_bounded_and_always_text() -> None:
    one = span(notes={"long": "x" * (MAX_TEXT + 1)})
    one.end("\ud800" + "y" * MAX_TEXT)
    (read,) = ended(one)
    assert len(read.attributes[0].value.string_value) == len(read.status.message) == MAX_TEXT
    assert read.status.message.startswith("?y")


def test_a_clock_that_went_back_makes_no_span_of_less_than_nothing() -> None:
    one = span()
    one.end()
    one.ended_ns = one.began_ns - 5
    (read,) = ended(one)
    assert read.end_time_unix_nano == read.start_time_unix_nano
