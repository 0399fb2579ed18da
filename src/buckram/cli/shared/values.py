"""Values of commands as people type them: times, durations, sizes, policy settings, properties.

A time without a zone is local time, with a remark on standard error; times that are printed are UTC and end in Z.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.cli.shared.output import remark
from buckram.errors import InvalidArgument
from buckram.types import MAX_TIME, MIN_TIME

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.runtime.net.pace import Pace

US = 1_000_000
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1024,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1024**2,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1024**3,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1024**4,
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_S = 10**12
_MOST_DIGITS = 40
NONE = "none"
MOMENTS = "10m (ago), 2026-11-21T08:00 (local time), 2026-11-21T08:00Z, @SECONDS (since 1970)"
"""Forms of times that the help of an option names."""


def text_file(what: str, path: Path) -> str:
    """Return the text of a file. Raises InvalidArgument if it cannot be read as text."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InvalidArgument(f"{what} {path}: {reason}; name a file that can be read") from None


def duration(what: str, text: str) -> float:
    """Return seconds, from 90, 90s, 10m, 1.5h, 7d, 2w. Raises InvalidArgument."""
    found = _NUMBER.fullmatch(text.strip())
    unit = (found[2] or "s").lower() if found else ""
    if found is None or unit not in _SECONDS:
        raise InvalidArgument(f"{what} {text!r}: needs a duration such as 90s, 10m, 1.5h or 7d")
    seconds = float(found[1]) * _SECONDS[unit]
    if seconds > _MOST_S:
        raise InvalidArgument(f"{what} {_short(text)!r}: over the limit of {_MOST_S} s; needs a duration such as 7d")
    return seconds


def size(what: str, text: str) -> int:
    """Return bytes, from 500, 64KiB, 10MB, 1.5GiB. Raises InvalidArgument."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2].lower() not in _BYTES:
        raise InvalidArgument(f"{what} {text!r}: needs a size such as 500, 64KiB or 10GiB")
    if len(found[1]) > _MOST_DIGITS:
        raise InvalidArgument(f"{what} {_short(text)!r}: too many digits, the limit is {_MOST_DIGITS}")
    return int(Fraction(found[1]) * _BYTES[found[2].lower()])


def pace(rate: str | None) -> Pace:
    """Return what holds to the option --rate, bytes a second; no limit without it. Raises as `size`."""
    from buckram.runtime.net.pace import Pace

    return Pace(None if rate is None else size("--rate", rate))


def place(location: str) -> str:
    """Return a path as it is from anywhere on this machine; a URL as it is given."""
    return location if "://" in location or not location else os.path.abspath(location)


def _short(text: str) -> str:
    return text if len(text) <= 50 else text[:50] + "..."


def moment(what: str, text: str, now_us: int) -> int:
    """Return microseconds UTC, from a duration ago (10m), ISO 8601 (local time where it has no zone) or @SECONDS since
    1970.

    A time taken as local is remarked on standard error. Raises InvalidArgument.
    """
    given = text.strip()
    try:
        if given.startswith("@"):
            return int(float(given[1:]) * US)
        if is_ago(given):
            return now_us - int(duration(what, given) * US)
        time = datetime.fromisoformat(given)
        if time.tzinfo is None:
            time = time.astimezone()
            remark(f"{what} {text}: local time, {time.isoformat()} ({time.tzname()})")
        return (time - _EPOCH) // timedelta(microseconds=1)
    except InvalidArgument:
        raise  # it is a ValueError, too, and names the limit
    except (ValueError, OverflowError):
        raise _no_moment(what, text) from None


def offset_or_moment(what: str, text: str | None, now_us: int) -> tuple[int | None, int | None]:
    """Return an offset, or a moment in microseconds UTC; both None if `text` is None. Raises InvalidArgument for other
    text."""
    if text is None:
        return None, None
    return (int(text), None) if text.isdecimal() else (None, moment(what, text, now_us))


def is_ago(text: str) -> bool:
    """Return whether the text is a duration before now, such as "10m"."""
    return _NUMBER.fullmatch(text.strip()) is not None


async def past_moment(client: Client, what: str, text: str) -> int:
    """Return the moment like `moment`; raises InvalidArgument for a duration before now if our clock may be wrong."""
    if is_ago(text) and (doubt := await client.services.clocks.doubt()):
        raise InvalidArgument(f"{what} {text}: {doubt}, or name the time itself, such as 2026-11-21T08:00")
    return moment(what, text, client.services.runtime.clock.wall_us())


def _no_moment(what: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"{what} {_short(text)!r}: needs a time such as {MOMENTS}")


def iso(time_us: int) -> str:
    """Return a time as ISO 8601 in UTC; a number if it is no date, as earlier releases took event times in
    nanoseconds."""
    if not MIN_TIME <= time_us <= MAX_TIME:
        return f"{time_us} us"
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """Return the pairs of KEY=VALUE texts, each key once. Raises InvalidArgument."""
    found: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"{option} {pair!r}: needs KEY=VALUE")
        if key in found:
            raise InvalidArgument(f"{option} {pair!r}: {key!r} is there already; give each key once")
        found[key] = value
    return found


def policy(given: tuple[str, ...]) -> dict[str, Any]:
    """Settings of core/streams/policy from KEY=VALUE: durations, sizes, numbers, yes or no; `none` for no limit."""
    from buckram.core.streams.policy import DEFAULTS, FIELDS

    found: dict[str, Any] = {}
    for key, text in pairs("--set", given).items():
        if key not in FIELDS:
            raise InvalidArgument(f"--set {key}: no such setting; known: {', '.join(FIELDS)}")
        found[key] = _setting(key, text, getattr(DEFAULTS, key))
    return found


def quotas(given: tuple[str, ...]) -> dict[str, int | None]:
    """Quotas of core/tenants/quotas from KEY=VALUE: sizes and numbers; `none` takes one back."""
    from buckram.core.tenants.quotas import NAMES

    found: dict[str, int | None] = {}
    for key, text in pairs("--quota", given).items():
        if key not in NAMES:
            raise InvalidArgument(f"--quota {key}: no such quota; known: {', '.join(NAMES)}")
        found[key] = None if text.lower() == NONE else size(f"--quota {key}", text)
    return found


def _setting(key: str, text: str, default: object) -> Any:
    if text.lower() == NONE and (key in ("placement", "offload_to", "backup_to") or not isinstance(default, str)):
        return None
    if key.endswith("_s"):
        return duration(f"--set {key}", text)
    if key.endswith("_bytes"):
        return size(f"--set {key}", text)
    if isinstance(default, bool):
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in known:
            raise InvalidArgument(f"--set {key}={text}: needs yes or no")
        return known[text.lower()]
    if isinstance(default, int):
        return size(f"--set {key}", text)
    return text


def shown_policy(settings: Mapping[str, Any]) -> str:
    return "  ".join(f"{key}={shown_setting(key, value)}" for key, value in settings.items())


def shown_setting(key: str, value: object) -> str:
    """Return a setting in the form in which it is typed: 1GiB, 1d, yes, none."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and key.endswith("_s"):
        return _largest(value, _DURATIONS, "s")
    if isinstance(value, int) and key.endswith("_bytes"):
        return _largest(value, _SIZES, "")
    return str(value)


_SIZES = {"TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}
_DURATIONS = {"d": 86_400, "h": 3600, "m": 60}


def _largest(value: float, units: Mapping[str, int], rest: str) -> str:
    """Format a value in the largest unit of which it is a whole multiple."""
    for unit, size in units.items():
        if value and value % size == 0:
            return f"{int(value // size)}{unit}"
    return f"{int(value) if value == int(value) else repr(value)}{rest}"
