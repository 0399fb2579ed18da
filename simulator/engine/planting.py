"""Planting bugs in production classes, and removing them again.

Not here: the bugs (`simulator/ledgers/mutants`, `simulator/streams/mutants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

Patches = Callable[[], AbstractContextManager[None]]
"""Plants a bug: returns a context in which production code has it."""


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
    """Return a mutant's `apply` for changes without a state of their own."""
    return lambda: patched(*changes)


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing. This replaces a check."""
