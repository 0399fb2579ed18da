"""A line of the log as text or as JSON, without control characters, secrets or an end that never comes.

The fields of a line are named after the words before the values in its text: `log.info("ledger %d: bookie %s failed",
7, "b1")` has the fields ledger and bookie without naming them twice, so the line for people and the fields for machines
cannot differ. Levels are parsed as people write them: `info`, or `info buckram.net=debug` for one room of its own.
Repeated lines are limited, so that endless repetition neither fills the disk nor hides other lines.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from buckram.errors import ConfigError

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


# -- fields ---------------------------------------------------------------------------------------------------

NAMES = ("ledger", "bookie", "namespace", "stream", "machine", "job", "auditor", "replicator", "task")

LONGEST_VALUE = 200
"""Characters of a field's value."""

_VALUE = re.compile(r"%(?:%|(?P<kind>[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]))")

_WORD = re.compile(rf"\b({'|'.join(NAMES)}) $", re.IGNORECASE)


@lru_cache(maxsize=1024)
def places(template: str) -> tuple[tuple[str, int], ...]:
    """Fields of a text in printf style, with the places of their values; the first of a field that is there twice."""
    found: dict[str, int] = {}
    place = 0
    for match in _VALUE.finditer(template):
        if match["kind"] is None:
            continue
        word = _WORD.search(template, max(0, match.start() - 20), match.start())
        if word is not None:
            found.setdefault(word[1].lower(), place)
        place += 1
    return tuple(found.items())


def fields(template: str, values: object) -> dict[str, int | str]:
    """Return the fields of one line: whole numbers stay numbers, everything else is text."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | Mapping):
        return {}
    found: dict[str, int | str] = {}
    for name, place in places(template):
        if place < len(values):
            value = values[place]
            found[name] = value if type(value) is int else str(value)[:LONGEST_VALUE]
    return found


# -- repeated lines -------------------------------------------------------------------------------------------

K = TypeVar("K", bound=Hashable)

WINDOW_S = 60.0

MOST_KINDS = 1000


class LeftOut(NamedTuple, Generic[K]):
    """`lines` of the kind were left out in a window that is over."""

    kind: K
    lines: int


class _Window:
    __slots__ = ("begin", "left_out", "passed")

    def __init__(self, begin: float) -> None:
        self.begin, self.passed, self.left_out = begin, 0, 0


class Repeats(Generic[K]):
    """The first `limit` lines of a kind pass in each minute; the others are counted. A limit of 0 lets all pass.

    At most MOST_KINDS kinds are known at a time; the one whose window began first is forgotten for a new one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._windows: OrderedDict[K, _Window] = OrderedDict()

    def passes(self, kind: K, now: float) -> bool:
        """Count a line. `now` is of a monotonic clock, in seconds."""
        if not self._limit:
            return True
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now)
        window.passed += 1
        if window.passed <= self._limit:
            return True
        window.left_out += 1
        return False

    def ended(self, now: float) -> list[LeftOut[K]]:
        """Remove windows that are over, and return the lines that they suppressed. Call it before `passes`."""
        found = []
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.begin < WINDOW_S and len(self._windows) < MOST_KINDS:
                break
            del self._windows[kind]
            if window.left_out:
                found.append(LeftOut(kind, window.left_out))
        return found

    def rest(self) -> list[LeftOut[K]]:
        """Return the suppressed lines that were not reported yet, and forget all windows."""
        found = [LeftOut(kind, window.left_out) for kind, window in self._windows.items() if window.left_out]
        self._windows.clear()
        return found


# -- levels as people write them ------------------------------------------------------------------------------

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Numbers of the levels, as in Python's logging."""

LONGEST_LEVELS = 400

_ROOM = re.compile(r"[A-Za-z_][\w.]{0,99}")


class Levels(NamedTuple):
    """Log levels of a process: `base` applies to every logger without a row in `rooms`. Both hold numbers of LEVELS."""

    base: int
    rooms: dict[str, int]

    def __str__(self) -> str:
        names = {number: name for name, number in LEVELS.items()}
        return " ".join([names[self.base], *(f"{room}={names[level]}" for room, level in self.rooms.items())])


def parse_levels(text: str, what: str = "level") -> Levels:
    """Words with spaces or commas between them: one level for all, and LOGGER=LEVEL for some.

    ConfigError, which begins with `what`, for anything else.
    """
    words = text.replace(",", " ").split()
    base: int | None = None
    rooms: dict[str, int] = {}
    for word in words if len(text) <= LONGEST_LEVELS else ():
        room, equals, name = word.rpartition("=")
        level = LEVELS.get(name.lower())
        if level is None or bool(equals) != bool(_ROOM.fullmatch(room)) or (not equals and base is not None):
            raise ConfigError(_needs(what, text))
        if equals:
            rooms[room] = level
        else:
            base = level
    if base is None:
        raise ConfigError(_needs(what, text))
    return Levels(base, rooms)


def _needs(what: str, text: str) -> str:
    return (
        f"{what} = {text[:60]!r}: needs one of {', '.join(LEVELS)}, and after it perhaps LOGGER=LEVEL, "
        f"for example `info buckram.net=debug` (at most {LONGEST_LEVELS} characters)"
    )
