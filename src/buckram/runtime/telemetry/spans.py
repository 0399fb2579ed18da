"""Traces, as `seams.py` describes them: the sampling of steps and appends, and their data until they end.

A span is a few values until a thread makes bytes of it (`runtime/telemetry/sending.py`). OpenTelemetry's context names
the span that the program is within. A traced append is one value for it and its steps to bookies: nearly all spans are
of this kind, so the append itself only records a few numbers.

Not here: the form of spans (`runtime/telemetry/sending.py`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from buckram.runtime.telemetry.sending import CLIENT, INTERNAL, SERVER, Ended, append_bytes, span_bytes
from buckram.seams import AppendSpan, Span
from buckram.types import TRACE_SIZE, BookieId, EntryId, LedgerId

ID_BYTES = 8

_NAMES = TraceContextTextMapPropagator()

_TRACE_ID_BYTES = 16

_TRACE_BITS, _ID_BITS = 8 * _TRACE_ID_BYTES, 8 * ID_BYTES

_ID_MASK = (1 << _ID_BITS) - 1

_NEVER = 1 << 62
"""Number of entries that no ledger reaches: nothing is sampled."""


def _getter() -> Callable[[], Context]:
    """Return the quickest function that gets the present context: OpenTelemetry's own function costs as much as an
    append."""
    kept = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return kept.get if isinstance(kept, ContextVar) else contexts.get_current


class OtelSpan:
    """Span of a step. `kind`: one of those of `runtime/telemetry/sending.py`; `parent`: the id of the step around it,
    b"" for none; `is_remote`: that one is of another process. Times in nanoseconds UTC."""

    __slots__ = (
        "_ended",
        "_rng",
        "began_ns",
        "ended_ns",
        "error",
        "id",
        "is_remote",
        "kind",
        "name",
        "notes",
        "parent",
        "trace",
    )

    def __init__(
        self,
        ended: OnEnded,
        rng: random.Random,
        name: str,
        kind: int,
        trace: bytes,
        parent: bytes,
        notes: dict[str, str | int],
        is_remote: bool = False,
    ) -> None:
        self._ended, self._rng = ended, rng
        self.name, self.kind, self.trace, self.parent, self.notes = name, kind, trace, parent, notes
        self.id = rng.getrandbits(_ID_BITS).to_bytes(ID_BYTES, "big")
        self.is_remote = is_remote
        self.error = ""
        self.began_ns, self.ended_ns = time.time_ns(), 0

    @property
    def context(self) -> bytes:
        return self.trace + self.id

    @property
    def spans(self) -> int:
        """Return the number of spans, which is one."""
        return 1

    def encoded(self) -> bytes:
        """Return the span encoded for a request to a collector."""
        return span_bytes(self)

    def child(self, name: str, attributes: Mapping[str, str | int]) -> OtelSpan:
        return OtelSpan(self._ended, self._rng, name, CLIENT, self.trace, self.id, dict(attributes))

    def note(self, name: str, value: str | int) -> None:
        self.notes[name] = value

    def end(self, error: str = "") -> None:
        self.error = error
        self.ended_ns = time.time_ns()
        self._ended(self)


OnEnded: TypeAlias = Callable[[Ended], None]
"""Takes spans that have ended. Neither waits nor raises. Any thread."""


class _Rate:
    """Token bucket: at most `per_s` events per second, with a burst of as many."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s, 1.0)
        self._left, self._looked = self._most, time.monotonic()

    def take(self) -> bool:
        """Take a token; return False if none is left."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._looked) * self._per_s)
        self._looked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class OtelTraces:
    """Sampling of traces: a share of those that begin here, and all parts of traces that are already sampled."""

    def __init__(self, ended: OnEnded, share: float, per_s: float, rng: random.Random) -> None:
        """Sample a `share` of the traces that begin here, at most `per_s` in a second; ten times as many of those that
        other processes began."""
        self._ended, self._rng = ended, rng
        self._begun, self._joined = _Rate(per_s), _Rate(10 * per_s)
        self._share = share
        self._log_of_others = math.log1p(-share) if 0 < share < 1 else 0.0
        self._skip = self.gap()
        self.within: Callable[[], object] = _getter()

    def gap(self) -> int:
        if self._share <= 0:
            return _NEVER
        if self._share >= 1:
            return 0
        # One draw for each that is chosen, none for those that are not: how often a coin of this share falls badly.
        return int(math.log1p(-self._rng.random()) / self._log_of_others)

    def append(self, ledger: LedgerId, entry: EntryId, entries: int, size: int, *, chosen: bool) -> AppendSpan | None:
        trace = parent = b""
        is_remote = False
        if self.within():
            around = get_current_span().get_span_context()
            if around.is_valid:
                if not around.trace_flags.sampled:
                    return None
                (trace, parent), is_remote = _ids(around), around.is_remote
        if not trace and not (chosen and self._begun.take()):
            return None
        number = self._rng.getrandbits(_TRACE_BITS + _ID_BITS)  # one draw for all of its ids
        if not trace:
            trace = (number >> _ID_BITS).to_bytes(_TRACE_ID_BYTES, "big")
        own = number & _ID_MASK
        return OtelAppend(self._ended, trace, own, parent, is_remote, ledger, entry, entries, size)

    def continued(self, name: str, context: bytes, attributes: Mapping[str, str | int]) -> OtelSpan | None:
        assert len(context) == TRACE_SIZE
        if not self._joined.take():
            return None
        trace, parent = context[:_TRACE_ID_BYTES], context[_TRACE_ID_BYTES:]
        return OtelSpan(self._ended, self._rng, name, SERVER, trace, parent, dict(attributes), True)

    @contextmanager
    def request(self, name: str, parent: str) -> Iterator[Span | None]:
        within = _NAMES.extract({"traceparent": parent}, Context())
        known = get_current_span(within).get_span_context()
        span: OtelSpan | None = None
        if known.trace_flags.sampled if known.is_valid else self._chosen():
            trace, above = _ids(known) if known.is_valid else (self._rng.randbytes(_TRACE_ID_BYTES), b"")
            span = OtelSpan(self._ended, self._rng, name, SERVER, trace, above, {}, known.is_valid)
            within = _within(span)
        # What is done for a request that is not followed is not followed either.
        with _attached(within):
            yield span

    def beginning(self, name: str, context: bytes, began_ns: int, attributes: Mapping[str, str | int]) -> OtelSpan:
        """Return the first step of a trace, which other processes have `continued` by this context already.

        `began_ns`: when it began, nanoseconds UTC; 0: now.
        """
        trace = context[:_TRACE_ID_BYTES]
        span = OtelSpan(self._ended, self._rng, name, INTERNAL, trace, b"", dict(attributes))
        span.id, span.began_ns = context[_TRACE_ID_BYTES:], began_ns or span.began_ns
        return span

    def is_in_share(self, context: bytes) -> bool:
        """Return whether a trace is sampled by its id: the result is the same in all processes with this share."""
        number = int.from_bytes(context[_TRACE_ID_BYTES - 8 : _TRACE_ID_BYTES], "big")
        return number < self._share * (1 << 64)

    def around(self, span: Span) -> AbstractContextManager[None]:
        """Return a context manager whose block is within the span."""
        return _attached(_within(span))

    def _chosen(self) -> bool:
        if self._skip > 0:
            self._skip -= 1
            return False
        self._skip = self.gap()
        return self._begun.take()


def _ids(around: SpanContext) -> tuple[bytes, bytes]:
    return around.trace_id.to_bytes(_TRACE_ID_BYTES, "big"), around.span_id.to_bytes(ID_BYTES, "big")


def _within(span: Span) -> Context:
    trace, step = span.context[:_TRACE_ID_BYTES], span.context[_TRACE_ID_BYTES:]
    flags = TraceFlags(TraceFlags.SAMPLED)
    known = SpanContext(int.from_bytes(trace, "big"), int.from_bytes(step, "big"), is_remote=False, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(known), Context())


@contextmanager
def _attached(within: Context) -> Iterator[None]:
    token = contexts.attach(within)
    try:
        yield
    finally:
        contexts.detach(token)


# -- traced appends -------------------------------------------------------------------------------------------

_STEP_ID_MASK = (1 << 8 * ID_BYTES) - 1


class OtelAppend:
    """A traced append. `number` is the id of its own span as an integer; those of its steps are the next ones.
    `parent`: the id of the step around it, b"" for none; `is_remote`: that one is of another process. Times in
    nanoseconds UTC, 0 for what has not ended; `ends` and `errors` of steps by the place of their bookie."""

    __slots__ = (
        "_ended",
        "_open",
        "began_ns",
        "bookies",
        "ended_ns",
        "ends",
        "entries",
        "entry",
        "error",
        "errors",
        "is_remote",
        "ledger",
        "number",
        "parent",
        "sent_ns",
        "size",
        "trace",
    )

    def __init__(
        self,
        ended: OnAppendEnded,
        trace: bytes,
        number: int,
        parent: bytes,
        is_remote: bool,
        ledger: LedgerId,
        entry: EntryId,
        entries: int,
        size: int,
    ) -> None:
        self._ended, self._open = ended, 1
        self.trace, self.number, self.parent, self.is_remote = trace, number, parent, is_remote
        self.ledger, self.entry, self.entries, self.size = ledger, entry, entries, size
        self.bookies: Sequence[BookieId] = ()
        self.ends: list[int] = []
        self.errors: dict[int, str] = {}
        self.error = ""
        self.sent_ns = self.ended_ns = 0
        self.began_ns = time.time_ns()

    @property
    def spans(self) -> int:
        """Return the number of spans: the append's own and one for each bookie."""
        return 1 + len(self.bookies)

    def step_id(self, place: int) -> bytes:
        """Return the id of the step to a bookie."""
        return (self.number + 1 + place & _STEP_ID_MASK).to_bytes(ID_BYTES, "big")

    def encoded(self) -> bytes:
        """Its spans, as a request to a collector has them."""
        return append_bytes(self)

    def sent(self, bookies: Sequence[BookieId]) -> list[bytes]:
        self.bookies, self.ends = bookies, [0] * len(bookies)
        self._open += len(bookies)
        self.sent_ns = time.time_ns()
        trace = self.trace
        return [trace + self.step_id(place) for place in range(len(bookies))]

    def answered(self, place: int, error: str = "") -> None:
        if not self.ends[place]:
            self.ends[place] = time.time_ns()
            if error:
                self.errors[place] = error
            self._close_one()

    def end(self, error: str = "") -> None:
        if not self.ended_ns:
            self.error, self.ended_ns = error, time.time_ns()
            self._close_one()

    def _close_one(self) -> None:
        self._open -= 1
        if not self._open:
            self._ended(self)


OnAppendEnded: TypeAlias = Callable[[OtelAppend], None]
"""Takes an append that has ended with all of its steps. Neither waits nor raises."""
