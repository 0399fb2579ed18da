"""Sending to the collector: ended spans, and the metrics of a process in the form that OpenTelemetry's exporter sends.

Spans wait in a bounded list, whose contents a thread sends. OTLP goes over HTTP, with headers, compression and TLS from
its own environment variables: OTEL_EXPORTER_OTLP_TRACES_HEADERS, _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE and
_CLIENT_KEY, or the same without TRACES. Metrics have the names that the page of metrics has
(docs/reference/metrics.md), as the Prometheus registry of the process has them.

Spans are encoded as the bytes of OTLP (opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest) by hand. The
SDK's objects and encoder take 100 microseconds a span, which is what five appends cost. Here the spans of an append are
two or three joined pieces each: parts that many of them share are made once. Not here: what a span is
(`runtime/telemetry/spans.py`), when metrics are sent (`runtime/telemetry/telemetry.py`).
"""

from __future__ import annotations

import gzip
import http.client
import logging
import math
import ssl
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, Request, build_opener

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.re import parse_env_headers
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from buckram.core.wire.protobuf import bytes_field, int_field, varint
from buckram.errors import ConfigError
from buckram.seams import Counter
from buckram.types import BookieId, LedgerId

if TYPE_CHECKING:
    from buckram.runtime.telemetry.spans import OtelAppend, OtelSpan

_METRICS_SCOPE = InstrumentationScope("buckram")
_UNITS = {"seconds": "s", "bytes": "By"}
_SINCE_START = AggregationTemporality.CUMULATIVE


def metrics_of(registry: CollectorRegistry, resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """Return the present values of all metrics of a registry. Times in nanoseconds UTC; `began_ns` is the start of
    counting."""
    found = [one for family in registry.collect() for one in _of_family(family, began_ns, now_ns)]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_METRICS_SCOPE, found, "")], "")])


def _of_family(family: Family, began_ns: int, now_ns: int) -> Iterator[Metric]:
    if family.type == "histogram":
        points = [_histogram(dict(labels), samples, began_ns, now_ns) for labels, samples in _by_labels(family)]
        if points:
            yield _metric(family.name, family, Histogram(points, _SINCE_START))
        return
    counts = family.type == "counter"
    points_of_numbers = [
        NumberDataPoint(dict(one.labels), began_ns if counts else 0, now_ns, one.value) for one in family.samples
    ]
    if points_of_numbers:
        data = Sum(points_of_numbers, _SINCE_START, is_monotonic=True) if counts else Gauge(points_of_numbers)
        yield _metric(family.samples[0].name, family, data)


def _metric(name: str, family: Family, data: Any) -> Metric:
    word = name.removesuffix("_total").rpartition("_")[2]
    return Metric(name, family.documentation, _UNITS.get(word, "1"), data)


def _by_labels(family: Family) -> Iterable[tuple[tuple[tuple[str, str], ...], list[Sample]]]:
    """Return the samples of a family of histograms, one histogram after another."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        found.setdefault(labels, []).append(sample)
    return found.items()


def _histogram(labels: Mapping[str, str], samples: Iterable[Sample], began_ns: int, now_ns: int) -> HistogramDataPoint:
    bounds, below, total, amount = list[float](), list[int](), 0, 0.0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            below.append(round(sample.value))
        elif sample.name.endswith("_count"):
            total = round(sample.value)
        elif sample.name.endswith("_sum"):
            amount = sample.value
    counts = [upper - lower for upper, lower in zip(below, [0, *below], strict=False)]
    nothing: Any = None  # Least and most are optional on the wire, and are not known here.
    limits = [one for one in bounds if not math.isinf(one)]
    return HistogramDataPoint(dict(labels), began_ns, now_ns, total, amount, counts, limits, nothing, nothing)


INTERNAL, SERVER, CLIENT = 1, 2, 3
"""Kinds of spans: work of the process itself, a request from another process, and a request to another one."""
MAX_TEXT = 4096
"""Longer values of attributes and errors are cut, characters."""
_TIMES = struct.Struct("<BQBQ")
_BEGAN, _ENDED = 7 << 3 | 1, 8 << 3 | 1
_TRACE, _ID, _PARENT = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_ROOT, _WITHIN = struct.Struct("<2s16s2s8sBQBQ"), struct.Struct("<2s16s2s8s2s8sBQBQ")
"""Ids and times of a span, the latter with the span around it."""
_ATTRIBUTE = 9
_FLAGS = varint(16 << 3 | 5)
_HERE, _REMOTE = (_FLAGS + flags.to_bytes(4, "little") for flags in (0x101, 0x301))
"""Flags of a sampled span whose parent is known to be in this process (_HERE), or in another one (_REMOTE)."""
_ERROR = 2
_SPAN = 2
_SCOPE = bytes_field(1, bytes_field(1, b"buckram"))


def resource_of(attributes: Mapping[str, object]) -> bytes:
    """Return the encoded resource, which describes the sender, for `request_of`."""
    pairs = (_pair(name, value if isinstance(value, int) else str(value)) for name, value in attributes.items())
    return bytes_field(1, b"".join(bytes_field(1, pair) for pair in pairs))


class Ended(Protocol):
    """One or more spans that have ended."""

    @property
    def spans(self) -> int:
        """Return the number of spans."""
        ...

    def encoded(self) -> bytes:
        """Return all spans, encoded by `span_bytes` or `append_bytes`."""
        ...


def request_of(resource: bytes, ended: Iterable[Ended]) -> bytes:
    """Spans that have ended, as one request."""
    scope = bytes_field(2, _SCOPE + b"".join([one.encoded() for one in ended]))
    return bytes_field(1, resource + scope)


def append_bytes(append: OtelAppend) -> bytes:
    """Return the spans of an append: its own, and one for each bookie."""
    trace, own = append.trace, append.number.to_bytes(8, "big")
    digits, ended = varint(append.entry), max(append.ended_ns, append.began_ns)
    about = (append.ledger, append.entries, append.size, len(digits), append.error)
    if append.parent:
        ids = _WITHIN.pack(_TRACE, trace, _ID, own, _PARENT, append.parent, _BEGAN, append.began_ns, _ENDED, ended)
    else:
        ids = _ROOT.pack(_TRACE, trace, _ID, own, _BEGAN, append.began_ns, _ENDED, ended)
    parts = [_append_head(*about, len(ids), append.is_remote), digits, ids]
    sent, errors = append.sent_ns, append.errors
    for place, bookie in enumerate(append.bookies):
        ended = max(append.ends[place], sent)
        step = append.step_id(place)
        parts += (
            _step_head(bookie, errors.get(place, "") if errors else ""),
            _WITHIN.pack(_TRACE, trace, _ID, step, _PARENT, own, _BEGAN, sent, _ENDED, ended),
        )
    return b"".join(parts)


@lru_cache(1024)
def _append_head(
    ledger: LedgerId, entries: int, size: int, digits: int, error: str, ids: int, is_remote: bool
) -> bytes:
    """Return the bytes before the number of an entry, which takes `digits` bytes, and `ids` bytes of ids and times."""
    numbers = {"buckram.ledger": ledger, "buckram.entries": entries, "buckram.bytes": size}
    known = [bytes_field(_ATTRIBUTE, _pair(name, value)) for name, value in numbers.items()]
    flags = _REMOTE if is_remote else _HERE
    body = b"".join((_head("buckram.append", CLIENT), flags, *known, _status(error)))
    body += _before_number("buckram.entry", digits)
    return varint(_SPAN << 3 | 2) + varint(len(body) + digits + ids) + body


@lru_cache(1024)
def _step_head(bookie: BookieId, error: str) -> bytes:
    """Return the bytes before the ids and times of a step to a bookie."""
    about = bytes_field(_ATTRIBUTE, _pair("buckram.bookie", bookie))
    body = _head("buckram.bookie", CLIENT) + _HERE + about + _status(error)
    return varint(_SPAN << 3 | 2) + varint(len(body) + _WITHIN.size) + body


def span_bytes(span: OtelSpan) -> bytes:
    """Any other span."""
    parts = [
        _TRACE,
        span.trace,
        _ID,
        span.id,
        _head(span.name, span.kind),
        _TIMES.pack(_BEGAN, span.began_ns, _ENDED, max(span.ended_ns, span.began_ns)),
        _REMOTE if span.is_remote else _HERE,
    ]
    if span.parent:
        parts += (_PARENT, span.parent)
    for name, value in span.notes.items():
        if isinstance(value, int):
            digits = varint(value)
            parts += (_before_number(name, len(digits)), digits)
        else:
            parts.append(_text(name, value))
    parts.append(_status(span.error))
    return bytes_field(_SPAN, b"".join(parts))


def _status(error: str) -> bytes:
    return bytes_field(15, bytes_field(2, _utf8(error)) + int_field(3, _ERROR)) if error else b""


@lru_cache(1024)
def _head(name: str, kind: int) -> bytes:
    return bytes_field(5, _utf8(name)) + int_field(6, kind)


@lru_cache(1024)
def _text(name: str, value: str) -> bytes:
    return bytes_field(_ATTRIBUTE, _pair(name, value))


@lru_cache(1024)
def _before_number(name: str, size: int) -> bytes:
    """Return the bytes before a number that takes `size` bytes: an attribute that lacks just these."""
    return bytes_field(_ATTRIBUTE, _pair(name, (1 << 7 * (size - 1)) if size > 1 else 0))[:-size]


def _pair(name: str, value: str | int) -> bytes:
    """Return a KeyValue with an AnyValue."""
    any_value = int_field(3, value) if isinstance(value, int) else bytes_field(1, _utf8(value))
    return bytes_field(1, _utf8(name)) + bytes_field(2, any_value)


def _utf8(text: str) -> bytes:
    return text[:MAX_TEXT].encode(errors="replace")


MOST_WAITING = 16_384
"""Appends with their steps, and other spans, about 1 KB each; more are dropped, and counted."""

_AT_ONCE = 1024
"""Maximum spans in one request."""

_log = logging.getLogger("buckram.telemetry")


class Poster(Protocol):
    def __call__(self, body: bytes) -> None:
        """Raises NotPosted."""
        ...


class SpanSender:
    """`put` takes spans from any thread; from `start` to `close` they are sent each `every_s`, or when half of the room
    is taken. A collector that may take them later gets them again then, in their order."""

    def __init__(self, post: Poster, resource: bytes, dropped: Counter, every_s: float) -> None:
        self._post, self._resource, self._dropped, self._every_s = post, resource, dropped, every_s
        self._waiting: deque[Ended] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._fails = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def put(self, ended: Ended) -> None:
        count = len(self._waiting)
        if count < MOST_WAITING:
            self._waiting.append(ended)
            if count == MOST_WAITING // 2:
                self._wake.set()
        else:
            self._dropped.inc(ended.spans)

    def start(self) -> None:
        self._thread.start()

    def send_soon(self) -> None:
        """Wake the sending thread; does not wait for it."""
        self._wake.set()

    def close(self) -> None:
        """Send the remaining spans once and wait for that; later spans are not sent."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            self._wake.wait(self._every_s)
            self._wake.clear()
            closed = self._closed  # looked at before: what is put until then is sent
            self._send()

    def _send(self) -> None:
        while self._waiting:
            ended = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
            try:
                self._post(request_of(self._resource, ended))
            except Exception as error:  # nothing that is only shown may end what is shown
                again = isinstance(error, NotPosted) and error.again
                if again and len(self._waiting) + len(ended) <= MOST_WAITING:
                    self._waiting.extendleft(reversed(ended))
                else:
                    self._dropped.inc(sum(one.spans for one in ended))
                if not self._fails:  # one line for each time that it begins to fail
                    self._fails = True
                    _log.warning("traces were not sent: %s", error)
                if again:
                    return
            else:
                self._fails = False


# -- posts to a collector -------------------------------------------------------------------------------------

_TRY_AGAIN = (429, 502, 503, 504)
"""Answers of a collector that may take the same bytes later."""

_COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class NotPosted(Exception):
    """`again`: the collector may take the same bytes later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Post:
    """HTTP connection to the collector. Raises ConfigError for variables of the environment that cannot be applied."""

    def __init__(self, url: str, timeout_s: float, environment: Mapping[str, str]) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "User-Agent": "buckram",
            **parse_env_headers(_said(environment, "HEADERS"), liberal=True),
        }
        way = _said(environment, "COMPRESSION").strip().lower() or "none"
        if way != "none" and way not in _COMPRESSIONS:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_COMPRESSION = {way!r}: must be none, {' or '.join(_COMPRESSIONS)}")
        self._compress = _COMPRESSIONS.get(way)
        if self._compress is not None:
            self._headers["Content-Encoding"] = way
        self._opener = build_opener(*([HTTPSHandler(context=_tls(environment))] if url.startswith("https:") else []))

    def __call__(self, body: bytes) -> None:
        """Raise NotPosted unless the collector took it."""
        data = body if self._compress is None else self._compress(body)
        try:
            with self._opener.open(Request(self._url, data, self._headers), timeout=self._timeout_s):
                pass
        except HTTPError as error:
            with error:
                raise NotPosted(f"{self._url} answers {error.code}", again=error.code in _TRY_AGAIN) from None
        except (OSError, http.client.HTTPException) as error:
            raise NotPosted(f"{self._url}: {error}", again=True) from None


def _said(environment: Mapping[str, str], name: str) -> str:
    return environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environment.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext:
    authorities, own = _said(environment, "CERTIFICATE"), _said(environment, "CLIENT_CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        if own:
            context.load_cert_chain(own, _said(environment, "CLIENT_KEY") or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates that OTEL_EXPORTER_OTLP_* name cannot be used: {error}") from None
    return context
