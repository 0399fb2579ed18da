"""The thread that sends spans: bounded, in order, again where the collector may take them later, once at the end.

What a registry has, in OpenTelemetry's form: sums, gauges and histograms with the same values and labels.
The bytes of spans, read by OpenTelemetry's own messages.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from tests.support.polling import wait_until

from buckram.runtime.process.stats import MemoryCounter, PrometheusStats
from buckram.runtime.telemetry.sending import (
    CLIENT,
    MAX_TEXT,
    MOST_WAITING,
    SERVER,
    NotPosted,
    SpanSender,
    metrics_of,
    request_of,
    resource_of,
)
from buckram.runtime.telemetry.spans import OtelSpan

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")


NEVER_S = 3600.0


class Taker:
    """Takes what is sent, or fails with each of `errors` first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.names = list(errors), list[str]()
        self.requests = 0
        self.failed = threading.Event()

    def __call__(self, body: bytes) -> None:
        if self.errors:
            error = self.errors.pop(0)
            self.failed.set()
            raise error
        self.requests += 1
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.names += [span.name for scope in resource.scope_spans for span in scope.spans]


def sender(taker: Taker, every_s: float = NEVER_S) -> tuple[SpanSender, MemoryCounter]:
    dropped = MemoryCounter()
    return SpanSender(taker, resource_of({"service.name": "s"}), dropped, every_s), dropped


def put(to: SpanSender, *numbers: int) -> None:
    for number in numbers:
        OtelSpan(to.put, random.Random(number), f"step-{number}", CLIENT, bytes(16), b"", {}).end()


def test_what_is_left_is_sent_at_the_end() -> None:
    taker = Taker()
    sending, dropped = sender(taker)
    sending.start()
    put(sending, 1, 2)
    sending.close()
    put(sending, 3)
    assert (taker.names, taker.requests, dropped.value) == (["step-1", "step-2"], 1, 0)


def test_spans_are_sent_without_being_asked_for() -> None:
    taker = Taker()
    sending, _ = sender(taker, every_s=0.01)
    sending.start()
    put(sending, 1)
    wait_until(lambda: taker.names == ["step-1"], "the span was not sent")
    sending.close()


def test_they_are_sent_soon_where_that_is_wanted_or_half_of_the_room_is_taken() -> None:
    taker = Taker()
    sending, _ = sender(taker)
    sending.start()
    put(sending, 1)
    sending.send_soon()
    wait_until(lambda: taker.names == ["step-1"], "the span was not sent")
    put(sending, *range(MOST_WAITING // 2 + 1))
    wait_until(lambda: len(taker.names) > MOST_WAITING // 2, "they were not sent")
    sending.close()


def test_a_collector_that_may_take_them_later_gets_them_again_in_order() -> None:
    taker = Taker(NotPosted("it is away", again=True))
    sending, dropped = sender(taker)
    sending.start()
    put(sending, *range(5))
    sending.send_soon()
    assert taker.failed.wait(10)
    put(sending, 5)
    sending.close()
    assert (taker.names, dropped.value) == ([f"step-{number}" for number in range(6)], 0)


def test_what_is_refused_or_has_no_room_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    taker = Taker(NotPosted("it does not like them", again=False), RuntimeError("a bug"))
    sending, dropped = sender(taker)
    put(sending, *range(MOST_WAITING + 7))
    assert dropped.value == 7
    with caplog.at_level(logging.WARNING, "buckram.telemetry"):
        sending.start()
        sending.close()
    assert len(taker.names) + dropped.value == MOST_WAITING + 7
    assert taker.names[-1] == f"step-{MOST_WAITING - 1}"
    assert [record.getMessage() for record in caplog.records] == ["traces were not sent: it does not like them"]


pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")


def test_values_labels_and_buckets_are_kept() -> None:
    stats = PrometheusStats()
    stats.counter("buckram_things_total", "things", kind="a").inc(3)
    stats.counter("buckram_things_total", "things", kind="b").inc(4)
    stats.gauge("buckram_free_bytes", "free").set(17.5)
    took = stats.histogram("buckram_took_seconds", "took", stage="x")
    for seconds in (0.0001, 0.002, 0.002, 1000.0):
        took.observe(seconds)
    stats.histogram("buckram_took_seconds", "took", stage="y").observe(0.5)
    encoded: Any = encode_metrics(metrics_of(stats.registry, Resource.create({"service.name": "s"}), 10, 20))
    (resource,) = encoded.resource_metrics
    found = {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
    assert sorted(found) == ["buckram_free_bytes", "buckram_things_total", "buckram_took_seconds"]
    things = found["buckram_things_total"].sum
    assert sorted((one.attributes[0].value.string_value, one.as_double) for one in things.data_points) == [
        ("a", 3),
        ("b", 4),
    ]
    assert (things.is_monotonic, things.aggregation_temporality) == (True, 2)
    assert {(one.start_time_unix_nano, one.time_unix_nano) for one in things.data_points} == {(10, 20)}
    assert found["buckram_free_bytes"].gauge.data_points[0].as_double == 17.5
    assert found["buckram_free_bytes"].unit == "By"
    x, y = found["buckram_took_seconds"].histogram.data_points
    assert (x.count, x.sum, sum(x.bucket_counts)) == (4, pytest.approx(1000.0041), 4)
    assert x.bucket_counts[0] == 1
    assert x.bucket_counts[-1] == 1
    assert len(x.bucket_counts) == len(x.explicit_bounds) + 1
    assert (y.count, y.attributes[0].value.string_value) == (1, "y")
    assert not x.HasField("min")


pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")


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
