"""The thread that sends spans: bounded, in order, again where the collector may take them later, once at the end."""

from __future__ import annotations

import logging
import random
import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.support.polling import wait_until

from buckram.runtime.process.stats import MemoryCounter
from buckram.runtime.telemetry.otlp import CLIENT, resource_of
from buckram.runtime.telemetry.sending import MOST_WAITING, NotPosted, SpanSender
from buckram.runtime.telemetry.spans import OtelSpan

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
