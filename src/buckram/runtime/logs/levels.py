"""Levels in force in this process, and their change while it runs."""

from __future__ import annotations

import logging

from buckram.runtime.logs.level_names import Levels, parse_levels

_rooms: dict[str, int] = {}
"""The loggers that were given levels of their own."""


def set_levels(text: str, what: str = "level") -> Levels:
    """Put levels such as `info buckram.net=debug` into force, for all threads. ConfigError changes nothing."""
    wanted = parse_levels(text, what)
    logging.getLogger().setLevel(wanted.base)
    for name in _rooms.keys() - wanted.rooms.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.rooms.items():
        logging.getLogger(name).setLevel(level)
    _rooms.clear()
    _rooms.update(wanted.rooms)
    return wanted


def levels() -> Levels:
    """Return the levels in force; a level without a name is rounded down to the next named one."""
    base = logging.getLogger().level
    return Levels(max(10, min(40, base // 10 * 10)), dict(_rooms))
