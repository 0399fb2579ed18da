"""The option --limit NAME=VALUE of servers: all their limits, which the errors of a server name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import Any, TypeVar

import click

from buckram.bounds import is_duration
from buckram.cli.shared import values
from buckram.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_BYTES = ("bytes", "bytes_per_s")


def limit_option(*kinds: type) -> Callable[[F], F]:
    """Return the option for the fields of these dataclasses."""
    names = sorted(field.name for kind in kinds for field in fields(kind))

    def complete(_context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        return [f"{name}=" for name in names if name.startswith(begun)]

    return click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=complete,
        help=f"A limit, as errors name it; repeatable. Names: {', '.join(names)}. Durations as 10s, sizes as 64MiB.",
    )


class ChosenLimits:
    """Values given with --limit. Raises InvalidArgument for one that is malformed or given twice."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given: dict[str, str] = {}
        for one in given:
            name, equals, text = one.partition("=")
            if not equals or not text:
                raise InvalidArgument(f"--limit {one!r}: needs NAME=VALUE, such as result_bytes=128MiB")
            if name in self._given:
                raise InvalidArgument(f"--limit {name}: is given twice; give it once")
            self._given[name] = text

    def of(self, *limits: T) -> list[T]:
        """Return these limits with the given values applied. Raises InvalidArgument for a name that none of them
        has."""
        known = {field.name: field for one in limits for field in fields(one)}  # type: ignore[arg-type]
        for name in self._given:
            if name not in known:
                raise InvalidArgument(f"--limit {name}: there is no such limit; there are {', '.join(sorted(known))}")
        return [self._changed(one) for one in limits]

    def _changed(self, limits: T) -> T:
        found: Mapping[str, Any] = {
            field.name: _value(field, self._given[field.name])
            for field in fields(limits)  # type: ignore[arg-type]
            if field.name in self._given
        }
        try:
            return replace(limits, **found)  # type: ignore[type-var]
        except InvalidArgument as error:
            raise InvalidArgument(f"--limit {error}") from None


def _value(field: Field[Any], text: str) -> float:
    what = f"--limit {field.name}"
    if is_duration(field):
        seconds = values.duration(what, text)
        return seconds if isinstance(field.default, float) or seconds != int(seconds) else int(seconds)
    if field.name.endswith(_BYTES):
        return values.size(what, text)
    if not text.isascii() or not text.isdecimal():
        raise InvalidArgument(f"{what} {text!r}: needs a whole number")
    return int(text)


__all__ = ["ChosenLimits", "limit_option"]
