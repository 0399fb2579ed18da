"""Is a history of calls linearizable? A search as of Wing, Gong and Lowe, as Porcupine does it.

Each call takes effect at one moment between its beginning and its end. A model says what a call does to a state; the
search looks for an order of the calls that respects time and gives every result. Keys that do not touch each other are
searched one by one (a history is linearizable if that of each object is), which keeps the search short.

Not here: transactions over several keys (`checkers/serializability.py`), collecting calls (each subject's own).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN = object()
"""The result of a call that was never answered. It took effect at any time after it began, or never."""
_MOST_STEPS = 500_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client: `operation` is what the model understands. `ended` is None for UNKNOWN results."""

    client: str
    key: str
    operation: tuple[Any, ...]
    result: Any
    began: float
    ended: float | None

    def __str__(self) -> str:
        end, result = ("?", "?") if self.ended is None else (f"{self.ended:.6f}", repr(self.result))
        return f"{self.client} {self.key} {self.operation} -> {result} [{self.began:.6f}, {end}]"


Step = Callable[[Hashable, tuple[Any, ...]], tuple[Hashable, Any]]
"""Applies an operation to a state; returns the state afterwards, and the result."""


class Undecided(Exception):
    """The search was given up: too many calls at once whose results say little."""


def register_step(state: Hashable, operation: tuple[Any, ...]) -> tuple[Hashable, Any]:
    """Apply an operation to a register: ("read",), ("write", VALUE), or ("cas", OLD, NEW), which returns success."""
    match operation:
        case ("read",):
            return state, state
        case ("write", value):
            return value, None
        case ("cas", old, new):
            return (new, True) if state == old else (state, False)
    raise ValueError(f"{operation!r} is no operation of a register")


def list_step(state: Hashable, operation: tuple[Any, ...]) -> tuple[Hashable, Any]:
    """Apply an operation to an append-only list: ("read",) returns a tuple, ("append", VALUE) the length afterwards."""
    held: tuple[Any, ...] = state if isinstance(state, tuple) else ()
    match operation:
        case ("read",):
            return held, held
        case ("append", value):
            return (*held, value), len(held) + 1
    raise ValueError(f"{operation!r} is no operation of a list")


def not_linearizable(calls: Iterable[Call], step: Step, empty: Hashable = None) -> str:
    """Return why the calls are not linearizable, beginning with `empty` under each key, or "". Raises Undecided."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.ended is not None or call.operation != ("read",):
            by_key[call.key].append(call)
    for key in sorted(by_key):
        if why := _Search(sorted(by_key[key], key=lambda call: call.began), step, empty).run():
            return f"{key}: {why}"
    return ""


class _Search:
    """The search over the calls of one key, in the order in which they began."""

    def __init__(self, calls: Sequence[Call], step: Step, empty: Hashable) -> None:
        self._calls, self._step, self._empty = calls, step, empty
        self._certain = sum(1 << at for at, call in enumerate(calls) if call.ended is not None)
        self._furthest: tuple[int, Hashable] = (0, empty)

    def run(self) -> str:
        seen: set[tuple[int, Hashable]] = {(0, self._empty)}
        stack: list[tuple[int, Hashable]] = [(0, self._empty)]
        while stack:
            done, state = stack.pop()
            if done & self._certain == self._certain:
                return ""
            if (done & self._certain).bit_count() > (self._furthest[0] & self._certain).bit_count():
                self._furthest = done, state
            # The call that began first is tried first: it lies on top of the stack.
            for after in reversed(self._next(done, state)):
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > _MOST_STEPS:
                raise Undecided(f"{len(self._calls)} calls of {self._calls[0].key}")
        return self._explanation()

    def _next(self, done: int, state: Hashable) -> list[tuple[int, Hashable]]:
        """Return the steps that may follow after the calls in `done`, as (calls done, state afterwards).

        A call may follow if it began before the end of every other call that is not done yet, and its result fits.
        """
        found: list[tuple[int, Hashable]] = []
        for at in self._open(done):
            call = self._calls[at]
            after, result = self._step(state, call.operation)
            if call.ended is None or result == call.result:
                found.append((done | 1 << at, after))
        return found

    def _open(self, done: int) -> list[int]:
        first_end, candidates = float("inf"), []
        at = (~done & (done + 1)).bit_length() - 1  # all before it are done
        for place in range(at, len(self._calls)):
            call = self._calls[place]
            if call.began > first_end:
                break
            if not done >> place & 1:
                candidates.append(place)
                if call.ended is not None:
                    first_end = min(first_end, call.ended)
        return [place for place in candidates if self._calls[place].began <= first_end]

    def _explanation(self) -> str:
        done, state = self._furthest
        waiting = "; ".join(str(self._calls[at]) for at in self._open(done))
        count = (done & self._certain).bit_count()
        return f"after {count} calls the state is {state!r}, and none of these fits: {waiting}"


__all__ = ["UNKNOWN", "Call", "Step", "Undecided", "list_step", "not_linearizable", "register_step"]
