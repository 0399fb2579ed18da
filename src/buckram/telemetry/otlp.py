"""Spans as the bytes of OTLP (opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest), written by hand.

The SDK's objects and encoder take 100 microseconds a span, this a few: what an append costs altogether. Not here: what
spans are (`telemetry/spans.py`), sending (`telemetry/sending.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from buckram.core.wire.protobuf import bytes_field, int_field, varint

if TYPE_CHECKING:
    from buckram.telemetry.spans import OtelSpan

INTERNAL, SERVER, CLIENT = 1, 2, 3
"""Kinds of spans: what a process does by itself, what another one asked it for, and what it asks another one for."""
MAX_TEXT = 4096
"""Longer values of attributes and errors are cut, characters."""
_TIMES = struct.Struct("<BQBQ")
_BEGAN, _ENDED = 7 << 3 | 1, 8 << 3 | 1
_TRACE, _ID, _PARENT = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_ATTRIBUTE = 9
_FLAGS = varint(16 << 3 | 5)
_HERE, _REMOTE = (_FLAGS + flags.to_bytes(4, "little") for flags in (0x101, 0x301))
"""It is sampled, and it is known that its parent is of this process, or of another one."""
_ERROR = 2
_SCOPE = bytes_field(1, bytes_field(1, b"buckram"))


def resource_of(attributes: Mapping[str, object]) -> bytes:
    """Who sends, for `request_of`."""
    pairs = (_pair(name, value if isinstance(value, int) else str(value)) for name, value in attributes.items())
    return bytes_field(1, b"".join(bytes_field(1, pair) for pair in pairs))


def request_of(resource: bytes, spans: Iterable[OtelSpan]) -> bytes:
    """Spans that have ended, as one request."""
    scope = bytes_field(2, _SCOPE + b"".join([bytes_field(2, _span(span)) for span in spans]))
    return bytes_field(1, resource + scope)


def _span(span: OtelSpan) -> bytes:
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
    if span.error:
        parts.append(bytes_field(15, bytes_field(2, _utf8(span.error)) + int_field(3, _ERROR)))
    return b"".join(parts)


@lru_cache(1024)
def _head(name: str, kind: int) -> bytes:
    return bytes_field(5, _utf8(name)) + int_field(6, kind)


@lru_cache(1024)
def _text(name: str, value: str) -> bytes:
    return bytes_field(_ATTRIBUTE, _pair(name, value))


@lru_cache(1024)
def _before_number(name: str, size: int) -> bytes:
    """What comes before a number that takes `size` bytes: an attribute without them, and so without its end."""
    return bytes_field(_ATTRIBUTE, _pair(name, (1 << 7 * (size - 1)) if size > 1 else 0))[:-size]


def _pair(name: str, value: str | int) -> bytes:
    """A KeyValue with an AnyValue."""
    any_value = int_field(3, value) if isinstance(value, int) else bytes_field(1, _utf8(value))
    return bytes_field(1, _utf8(name)) + bytes_field(2, any_value)


def _utf8(text: str) -> bytes:
    return text[:MAX_TEXT].encode(errors="replace")


__all__ = ["CLIENT", "INTERNAL", "MAX_TEXT", "SERVER", "request_of", "resource_of"]
