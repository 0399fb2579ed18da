"""Is a history of transactions on append-only lists strictly serializable? The order is inferred, as Elle does it.

Every appended value is unique, so a read of a list tells in which order the transactions before it appended. From that
follow the edges of a graph: who wrote before whom (ww), who read whose value (wr), who read before whom (rw), and who
had ended before whom began (rt). A cycle means that no order of the transactions explains what they saw. Registers can
be judged by it as well, if each is kept as the list of its values.

A finding begins with the name that Adya and Elle give the anomaly: G1a (aborted read), G1b (intermediate read), G0 (a
cycle of writes), G1c (of writes and reads), G-single (with one read that is too old; a lost update is one), G2 (with
several); "realtime" if only the order of time closes the cycle.

Not here: single calls with arbitrary models (`checkers/linearizability.py`), what weaker reads promise
(`checkers/promises.py`), collecting transactions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
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
_Edges = dict[_Node, dict[_Node, dict[str, str]]]
"""From node to node: the kinds of edges (ww, wr, rw, rt) between them, each with its reason."""
_CLASSES = (
    ("G0", {"ww"}, 0),
    ("G1c", {"ww", "wr"}, 0),
    ("G-single", {"ww", "wr"}, 1),
    ("G2", {"ww", "wr", "rw"}, 0),
    ("G0-realtime", {"ww", "rt"}, 0),
    ("G1c-realtime", {"ww", "wr", "rt"}, 0),
    ("G-single-realtime", {"ww", "wr", "rt"}, 1),
    ("G2-realtime", {"ww", "wr", "rw", "rt"}, 0),
)
"""Names of cycles, from the worst on: the kinds of their edges, and how many edges of kind rw they have beside them."""


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
                    name, _, text = why.partition(": ")
                    return f"{name}: {one.name} reads {operation.key} = {operation.values}: {text}"
        return ""

    def _bad_read(self, read: Read, own: list[Hashable]) -> str:
        if own and list(read.values[-len(own) :]) != own:
            return f"internal: its own appends {own} are not at the end"
        if len(set(read.values)) != len(read.values):
            return "duplicate elements: a value is there twice"
        for value in read.values:
            number = self._writer.get((read.key, value))
            if number is None:
                return f"garbage read: nobody appended {value!r}"
            if self._history[number].outcome == "aborted":
                return f"G1a: {value!r} is of {self._history[number].name}, which was aborted"
        last = read.values[-1 - len(own)] if len(read.values) > len(own) else None
        if last is not None:
            writer = self._history[self._writer[read.key, last]]
            later = [one.value for one in writer.operations if isinstance(one, Append) and one.key == read.key]
            if later[-1] != last:
                return f"G1b: it has {last!r} of {writer.name} and not {later[-1]!r}"
        return ""

    def bad_order(self) -> str:
        """Return two reads of a list of which neither is a prefix of the other, or ""."""
        for number, key, values in self._reads():
            longest = self._versions[key]
            if longest[: len(values)] != values:
                name = self._history[number].name
                return f"incompatible order: {name} reads {key} = {values}, and another reads {longest}"
        return ""

    # -- the graph ----------------------------------------------------------------------------------------

    def cycle(self) -> str:
        """Return a cycle of transactions each of which must come before the next, or ""."""
        edges: _Edges = defaultdict(lambda: defaultdict(dict))
        for key, values in self._versions.items():
            for before, after in pairwise(values):
                self._edge(edges, self._writer[key, before], self._writer[key, after], "ww", key)
        for number, key, values in self._reads():
            longest = self._versions[key]
            if values:
                self._edge(edges, self._writer[key, values[-1]], number, "wr", key)
            if len(values) < len(longest):
                self._edge(edges, number, self._writer[key, longest[len(values)]], "rw", key)
            known = set(longest)
            for writer in self._appends[key]:
                appended = (one for one in self._history[writer].operations if isinstance(one, Append))
                if writer in self._committed and any(one.key == key and one.value not in known for one in appended):
                    self._edge(edges, number, writer, "rw", key)
        if self._strict:
            self._add_time(edges)
        return self._describe(edges) if _find_cycle(edges) else ""

    def _edge(self, edges: _Edges, before: int, after: int, kind: str, key: str) -> None:
        if before != after:
            edges["t", before]["t", after].setdefault(kind, f"{kind} {key}")

    def _add_time(self, edges: _Edges) -> None:
        """Add edges of real time: ends form a chain in time, which each transaction enters and leaves once."""
        timed = [number for number in sorted(self._committed) if self._history[number].ended is not None]
        ends = sorted({self._history[number].ended or 0.0 for number in timed})
        place = {end: at for at, end in enumerate(ends)}
        for number in timed:
            edges["t", number]["e", place[self._history[number].ended or 0.0]]["rt"] = "rt"
        for at in range(1, len(ends)):
            edges["e", at - 1]["e", at]["rt"] = "rt"
        for number in sorted(self._committed):
            before = bisect_left(ends, self._history[number].began)
            if before:
                edges["e", before - 1]["t", number]["rt"] = "rt"

    # -- names --------------------------------------------------------------------------------------------

    def _describe(self, edges: _Edges) -> str:
        """Return the worst cycle with its name."""
        for name, kinds, single in _CLASSES:
            if nodes := _single(edges, kinds) if single else _find_cycle(_only(edges, kinds)):
                return f"{self._lost_update(name)}{name}: no order explains it: {self._path(nodes, edges, kinds)}"
        raise AssertionError("every cycle is of the last class")

    def _path(self, nodes: Sequence[_Node], edges: _Edges, kinds: set[str]) -> str:
        start = next(at for at, node in enumerate(nodes) if node[0] == "t")
        turned = [*nodes[start:], *nodes[:start], nodes[start]]
        text = self._history[turned[0][1]].name
        for before, after in pairwise(turned):
            if after[0] == "t":
                found = edges[before][after]
                why = next((found[kind] for kind in (*sorted(kinds), "rw") if kind in found), "")
                text += f" -[{why}]-> {self._history[after[1]].name}"
        return text

    def _lost_update(self, name: str) -> str:
        """Return "lost update, " if two transactions read the same version of a list, and both appended to it."""
        if "G-single" not in name:
            return ""
        updated: set[tuple[str, tuple[Hashable, ...]]] = set()
        for number, key, values in self._reads():
            appended = any(isinstance(one, Append) and one.key == key for one in self._history[number].operations)
            if appended and number in self._committed:
                if (key, values) in updated:
                    return "lost update, "
                updated.add((key, values))
        return ""


def _only(edges: _Edges, kinds: set[str]) -> _Edges:
    """Return the edges of these kinds."""
    return {
        before: {after: found for after, found in afters.items() if kinds & found.keys()}
        for before, afters in edges.items()
    }


def _single(edges: _Edges, kinds: set[str]) -> list[_Node]:
    """Return a cycle of one edge of kind rw and others of these kinds; empty if there is none."""
    others = _only(edges, kinds)
    for before in sorted(edges):
        for after in sorted(edges[before]):
            if "rw" in edges[before][after] and (path := _find_path(others, after, before)):
                return path
    return []


def _find_path(edges: _Edges, first: _Node, last: _Node) -> list[_Node]:
    """Return the nodes of a shortest path; empty if there is none."""
    came: dict[_Node, _Node | None] = {first: None}
    waiting = deque([first])
    while waiting:
        node: _Node | None = waiting.popleft()
        if node == last:
            path: list[_Node] = []
            while node is not None:
                path.append(node)
                node = came[node]
            return path[::-1]
        assert node is not None
        for after in sorted(edges.get(node, ())):
            if after not in came:
                came[after] = node
                waiting.append(after)
    return []


def _find_cycle(edges: _Edges) -> list[_Node]:
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
