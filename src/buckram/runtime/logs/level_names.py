"""Levels of logs as people write them: `info`, or `info buckram.net=debug` for one room of its own."""

from __future__ import annotations

import re
from typing import NamedTuple

from buckram.errors import ConfigError

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
