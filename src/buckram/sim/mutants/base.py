"""What a mutant is, and how it gets into production classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from buckram.sim.plan import Plan

Patches = Callable[[], AbstractContextManager[None]]


def anything(plan: Plan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rows`: the traps and invariants of docs/reference/protocol.md that it stands for. `scenarios` are played
    first, then lives whose plan passes `lives`, at most `seeds` of them."""

    name: str
    rows: str
    bug: str
    apply: Patches
    scenarios: tuple[str, ...] = ()
    lives: Callable[[Plan], bool] = anything
    seeds: int = 200


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes of classes or modules: (owner, name, value); everything is put back at the end."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            original = owner.__dict__[name]
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, value)
        yield


def plant(*changes: tuple[Any, str, Any]) -> Patches:
    """A mutant's `apply` for changes that need no state of their own."""
    return lambda: patched(*changes)


def nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a check."""
