"""Is a history of transactions on append-only lists strictly serializable? The order is inferred, as Elle does it.

Every appended value is unique, so a read of a list tells in which order the transactions before it appended. From that
follow the edges of a graph: who wrote before whom (ww), who read whose value (wr), who read before whom (rw), and who
had ended before whom began (rt). A cycle means that no order of the transactions explains what they saw. Registers can
be judged by it as well, if each is kept as the list of its values.

Not here: single calls with arbitrary models (`checkers/linearizability.py`), collecting transactions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

Outcome = Literal["ok", "aborted", "unknown"]


class Append(NamedTuple):
    """An append of a value, unique in the history, to the list `key`."""

    key: str
    value: Hashable


class Read(NamedTuple):
    """A read of the whole list `key`."""

    key: str
    values: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """The operations that a client executed in one step.

    `ended` None: the time at which it took effect is not known. Outcome "unknown": it may not have taken effect at all.
    """

    name: str
    operations: tuple[Append | Read, ...]
    began: float
    ended: float | None
    outcome: Outcome = "ok"


_Node = tuple[str, int]
"""("t", number of a transaction) or ("e", number of a moment at which some ended)."""


def not_serializable(history: Iterable[Transaction], *, strict: bool = True) -> str:
    """Return why no serial order explains the history, or "". `strict`: the order respects time as well."""
    judge = _Judge([one for one in history if one.operations], strict)
    return judge.bad_reads() or judge.bad_order() or judge.cycle()


class _Judge:
    def __init__(self, history: Sequence[Transaction], strict: bool) -> None:
        self._history, self._strict = history, strict
        self._writer: dict[tuple[str, Hashable], int] = {}
        self._appends: dict[str, list[int]] = defaultdict(list)
        self._versions: dict[str, tuple[Hashable, ...]] = defaultdict(tuple)
        """The longest list that was read under each key."""
        for number, one in enumerate(history):
            for operation in one.operations:
                if isinstance(operation, Append):
                    self._writer[operation.key, operation.value] = number
                    self._appends[operation.key].append(number)
        for _, key, values in self._reads():
            if len(values) > len(self._versions[key]):
                self._versions[key] = values
        seen = {(key, value) for key, values in self._versions.items() for value in values}
        self._committed = {
            number
            for number, one in enumerate(history)
            if one.outcome == "ok"
            or any(isinstance(operation, Append) and tuple(operation) in seen for operation in one.operations)
        }

    def _reads(self) -> Iterable[tuple[int, str, tuple[Hashable, ...]]]:
        """Yield what each committed transaction read of others: (number, key, the list before its own appends)."""
        for number, one in enumerate(self._history):
            if one.outcome != "ok":
                continue
            own: dict[str, list[Hashable]] = defaultdict(list)
            for operation in one.operations:
                if isinstance(operation, Append):
                    own[operation.key].append(operation.value)
                else:
                    before = len(operation.values) - len(own[operation.key])
                    yield number, operation.key, operation.values[: max(before, 0)]

    # -- reads by themselves ------------------------------------------------------------------------------

    def bad_reads(self) -> str:
        """Return a read without its own appends, with a value twice, or with one that was not committed; or ""."""
        for one in self._history:
            own: dict[str, list[Hashable]] = defaultdict(list)
            for operation in one.operations:
                if isinstance(operation, Append):
                    own[operation.key].append(operation.value)
                elif one.outcome == "ok" and (why := self._bad_read(operation, own[operation.key])):
                    return f"{one.name} reads {operation.key} = {operation.values}: {why}"
        return ""

    def _bad_read(self, read: Read, own: list[Hashable]) -> str:
        if own and list(read.values[-len(own) :]) != own:
            return f"its own appends {own} are not at the end"
        if len(set(read.values)) != len(read.values):
            return "a value is there twice"
        for value in read.values:
            number = self._writer.get((read.key, value))
            if number is None:
                return f"nobody appended {value!r}"
            if self._history[number].outcome == "aborted":
                return f"{value!r} is of {self._history[number].name}, which was aborted"
        last = read.values[-1 - len(own)] if len(read.values) > len(own) else None
        if last is not None:
            writer = self._history[self._writer[read.key, last]]
            later = [one.value for one in writer.operations if isinstance(one, Append) and one.key == read.key]
            if later[-1] != last:
                return f"it has {last!r} of {writer.name} and not {later[-1]!r}"
        return ""

    def bad_order(self) -> str:
        """Return two reads of a list of which neither is a prefix of the other, or ""."""
        for number, key, values in self._reads():
            longest = self._versions[key]
            if longest[: len(values)] != values:
                return f"{self._history[number].name} reads {key} = {values}, and another reads {longest}"
        return ""

    # -- the graph ----------------------------------------------------------------------------------------

    def cycle(self) -> str:
        """Return a cycle of transactions each of which must come before the next, or ""."""
        edges: dict[_Node, dict[_Node, str]] = defaultdict(dict)
        for key, values in self._versions.items():
            for before, after in pairwise(values):
                self._edge(edges, self._writer[key, before], self._writer[key, after], f"ww {key}")
        for number, key, values in self._reads():
            longest = self._versions[key]
            if values:
                self._edge(edges, self._writer[key, values[-1]], number, f"wr {key}")
            if len(values) < len(longest):
                self._edge(edges, number, self._writer[key, longest[len(values)]], f"rw {key}")
            known = set(longest)
            for writer in self._appends[key]:
                appended = (one for one in self._history[writer].operations if isinstance(one, Append))
                if writer in self._committed and any(one.key == key and one.value not in known for one in appended):
                    self._edge(edges, number, writer, f"rw {key}")
        if self._strict:
            self._add_time(edges)
        return self._describe(_find_cycle(edges), edges)

    def _edge(self, edges: dict[_Node, dict[_Node, str]], before: int, after: int, why: str) -> None:
        if before != after:
            edges["t", before].setdefault(("t", after), why)

    def _add_time(self, edges: dict[_Node, dict[_Node, str]]) -> None:
        """Add edges of real time: ends form a chain in time, which each transaction enters and leaves once."""
        timed = [number for number in sorted(self._committed) if self._history[number].ended is not None]
        ends = sorted({self._history[number].ended or 0.0 for number in timed})
        place = {end: at for at, end in enumerate(ends)}
        for number in timed:
            edges["t", number]["e", place[self._history[number].ended or 0.0]] = "rt"
        for at in range(1, len(ends)):
            edges["e", at - 1]["e", at] = "rt"
        for number in sorted(self._committed):
            before = bisect_left(ends, self._history[number].began)
            if before:
                edges["e", before - 1]["t", number] = "rt"

    def _describe(self, nodes: Sequence[_Node], edges: dict[_Node, dict[_Node, str]]) -> str:
        if not nodes:
            return ""
        start = next(at for at, node in enumerate(nodes) if node[0] == "t")
        turned = [*nodes[start:], *nodes[:start], nodes[start]]
        text = self._history[turned[0][1]].name
        for before, after in pairwise(turned):
            if after[0] == "t":
                text += f" -[{edges[before][after]}]-> {self._history[after[1]].name}"
        return f"no order explains it: {text}"


def _find_cycle(edges: dict[_Node, dict[_Node, str]]) -> list[_Node]:
    """Return a cycle, by a depth-first search that remembers its path; empty if there is none."""
    done: set[_Node] = set()
    for root in sorted(edges):
        path: dict[_Node, None] = {}
        stack: list[tuple[_Node, bool]] = [(root, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                path.pop(node)
                done.add(node)
            elif node in path:
                nodes = list(path)
                return nodes[nodes.index(node) :]
            elif node not in done:
                path[node] = None
                stack.append((node, True))
                stack += [(after, False) for after in edges.get(node, ()) if after not in done]
    return []


__all__ = ["Append", "Outcome", "Read", "Transaction", "not_serializable"]
