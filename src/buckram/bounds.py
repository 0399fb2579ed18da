"""Bounds of the values in a dataclass of limits, so that a wrong one is refused where it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from buckram.errors import InvalidArgument

_SECONDS = "_s"
"""Suffix of the names of durations; a limit with a float as its default takes fractions."""
_BOUNDS: dict[bool, tuple[float, float]] = {True: (0.05, 366 * 86_400.0), False: (1, 2**40)}
"""Inclusive bounds of durations (True), in seconds, and of other limits (False), unless narrower ones are given."""


def is_duration(field: Field[Any]) -> bool:
    """Return whether a limit is a number of seconds."""
    return field.name.endswith(_SECONDS) and not field.name.endswith("_per_s")


def check_bounds(limits: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise InvalidArgument for a value of the dataclass `limits` that is outside its bounds, or no number."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        least, most = bounds.get(field.name, _BOUNDS[is_duration(field)])
        whole = not isinstance(field.default, float)
        good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not good or not least <= value <= most:
            kind = "a number of seconds" if not whole else "a whole number"
            raise InvalidArgument(f"{field.name} = {value!r}: needs {kind} from {least:g} to {most:g}")
