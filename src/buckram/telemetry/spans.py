"""Traces, as `seams.py` describes them, by OpenTelemetry's SDK, which sends them in a thread of its own.

What waits to be sent is bounded by the SDK (2,048 spans); more are dropped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Span as Traced
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from buckram.seams import Span
from buckram.types import TRACE_SIZE

_NAMES = TraceContextTextMapPropagator()
_TRACE_ID_BYTES = 16


def _getter() -> Callable[[], Context]:
    """The quickest way to the present context: OpenTelemetry's own function costs as much as an append."""
    kept = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return kept.get if isinstance(kept, ContextVar) else contexts.get_current


_current = _getter()


class OtelSpan:
    """A step that is sent to the collector when it ends."""

    __slots__ = ("_span", "_tracer", "context")

    def __init__(self, tracer: Tracer, span: Traced) -> None:
        self._tracer, self._span = tracer, span
        found = span.get_span_context()
        self.context = found.trace_id.to_bytes(_TRACE_ID_BYTES, "big") + found.span_id.to_bytes(8, "big")

    def child(self, name: str, attributes: Mapping[str, str | int]) -> OtelSpan:
        within = set_span_in_context(self._span, Context())
        return OtelSpan(self._tracer, self._tracer.start_span(name, within, SpanKind.CLIENT, attributes))

    def note(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def end(self, error: str = "") -> None:
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class _Rate:
    """At most so many in a second, with as many at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s, 1.0)
        self._left, self._looked = self._most, time.monotonic()

    def take(self) -> bool:
        """Whether one more may be."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._looked) * self._per_s)
        self._looked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class OtelTraces:
    """Decides what is followed: a share of what begins here, and all that is part of a trace which is followed."""

    def __init__(self, provider: TracerProvider, share: float, per_s: float, rng: random.Random) -> None:
        """`share` of what begins here, and at most `per_s` in a second; ten times as many of what others began."""
        self._tracer = provider.get_tracer("buckram")
        self._begun, self._joined = _Rate(per_s), _Rate(10 * per_s)
        self._share, self._rng = share, rng
        self._skip = self._gap()

    def append(self) -> Span | None:
        current = _current()  # empty in most programs, which is seen at once
        parent = get_current_span(current).get_span_context() if current else None
        if parent is None or not parent.is_valid:
            if not self._chosen():
                return None
        elif not parent.trace_flags.sampled:
            return None
        return OtelSpan(self._tracer, self._tracer.start_span("buckram.append", kind=SpanKind.CLIENT))

    def continued(self, name: str, context: bytes, attributes: Mapping[str, str | int]) -> Span | None:
        assert len(context) == TRACE_SIZE
        if not self._joined.take():
            return None
        trace, step = int.from_bytes(context[:_TRACE_ID_BYTES], "big"), int.from_bytes(context[_TRACE_ID_BYTES:], "big")
        far = SpanContext(trace, step, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        within = set_span_in_context(NonRecordingSpan(far), Context())
        return OtelSpan(self._tracer, self._tracer.start_span(name, within, SpanKind.SERVER, attributes))

    @contextmanager
    def request(self, name: str, parent: str) -> Iterator[Span | None]:
        within = _NAMES.extract({"traceparent": parent}, Context())
        known = get_current_span(within).get_span_context()
        span: OtelSpan | None = None
        if known.trace_flags.sampled if known.is_valid else self._chosen():
            begun = self._tracer.start_span(name, within, SpanKind.SERVER)
            span, within = OtelSpan(self._tracer, begun), set_span_in_context(begun, within)
        # What is done for a request that is not followed is not followed either.
        token = contexts.attach(within)
        try:
            yield span
        finally:
            contexts.detach(token)

    def _chosen(self) -> bool:
        if self._skip > 0:
            self._skip -= 1
            return False
        self._skip = self._gap()
        return self._share > 0 and self._begun.take()

    def _gap(self) -> int:
        """How many are left out before the next one: a draw for each that is chosen, and not for each that is not."""
        if not 0 < self._share < 1:
            return 0
        gap = 0
        while self._rng.random() >= self._share:
            gap += 1
        return gap


__all__ = ["OtelSpan", "OtelTraces"]
