"""A line of the log as text or as JSON, without control characters, secrets or an end that never comes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

FORMATS = ("text", "json")
LONGEST_MESSAGE, LONGEST_TRACE = 4_000, 16_000
"""Maximum characters of a message and of a traceback, of which the last ones are kept."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}
_SECRETS = (
    (re.compile(r"(://[^\s/@:]*):[^\s/@]+@"), r"\1:***@"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), r"\1 ***"),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*"), "***"),
    (re.compile(r"\b(password|passwd|secret|token)(\s*[=:]\s*)(?!\*\*\*)[^\s,;)]+", re.IGNORECASE), r"\1\2***"),
)
"""Patterns of secrets and their replacements: passwords in URIs, HTTP logins, tokens, and values named as a
password."""


class Line(NamedTuple):
    """Contents of one log line. `wall_s` is seconds since 1970; `fields` come after the message in JSON."""

    wall_s: float
    level: str
    logger: str
    message: str
    fields: Mapping[str, int | str]
    trace: str = ""


def without_secrets(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def as_text(line: Line) -> str:
    """`2026-01-02 03:04:05,678 WARNING buckram.store: ...`, in UTC; a request is named behind it."""
    moment = datetime.fromtimestamp(line.wall_s, UTC)
    when = f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
    request = line.fields.get("request")
    behind = f" [request {request}]".translate(_CONTROL) if request is not None else ""
    trace = f"\n{_end(line.trace)}" if line.trace else ""
    return f"{when} {line.level.upper()} {line.logger}: {_begin(line.message).translate(_CONTROL)}{behind}{trace}"


def as_json(line: Line) -> str:
    """Format a line as one JSON object: time (ISO 8601, UTC), level, logger, message, the fields, and a trace if there
    is one."""
    moment = datetime.fromtimestamp(line.wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, int | str] = {"time": moment, "level": line.level.lower(), "logger": line.logger}
    said["message"] = _begin(line.message)
    said |= {name: value for name, value in line.fields.items() if name not in said}
    if line.trace:
        said["trace"] = _end(line.trace)
    return json.dumps(said, ensure_ascii=False)


def _begin(message: str) -> str:
    text = without_secrets(message[: LONGEST_MESSAGE + 1])
    return text if len(message) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}... ({len(message)} characters)"


def _end(trace: str) -> str:
    return without_secrets(trace if len(trace) <= LONGEST_TRACE else f"... {trace[-LONGEST_TRACE:]}")
