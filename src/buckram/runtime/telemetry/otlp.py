"""Spans as the bytes of OTLP (opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest), written by hand.

The SDK's objects and encoder take 100 microseconds a span, which is what five appends cost. Here the spans of an append
are two or three joined pieces each: parts that many of them share are made once. Not here: the contents of spans
(`runtime/telemetry/spans.py`, `runtime/telemetry/spans.py`), sending (`runtime/telemetry/sending.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from buckram.core.wire.protobuf import bytes_field, int_field, varint
from buckram.types import BookieId, LedgerId

if TYPE_CHECKING:
    from buckram.runtime.telemetry.spans import OtelAppend, OtelSpan

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
