"""Planting bugs in production classes, and removing them again.

Not here: the bugs (`simulator/ledgers/mutants`, `simulator/streams/mutants`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

Patches = Callable[[], AbstractContextManager[None]]
"""Plants a bug: returns a context in which production code has it."""


class StaleEdit(Exception):
    """The code has changed since the bug was written."""


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes of classes or modules, each (owner, name, value), and restore them at the end."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            original = owner.__dict__[name]
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, value)
        yield


def plant(*changes: tuple[Any, str, Any]) -> Patches:
    """Return a mutant's `apply` for changes without a state of their own.

    Planting fails if a function takes other arguments than the one whose place it takes.
    """
    return lambda: _planted(changes)


@contextmanager
def _planted(changes: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    for owner, name, value in changes:
        original = owner.__dict__.get(name)
        if isinstance(original, FunctionType) and isinstance(value, FunctionType):
            given = list(inspect.signature(original).parameters.values())
            placed = [one for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
            try:
                inspect.signature(value).bind(
                    *placed, **{one.name: one for one in given if one.kind is one.KEYWORD_ONLY}
                )
            except TypeError as error:
                raise StaleEdit(f"{owner.__name__}.{name}: what takes its place does not fit: {error}") from error
    with patched(*changes):
        yield


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing. This replaces a check."""
