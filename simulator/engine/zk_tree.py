"""The tree of a simulated ZooKeeper server: nodes, sessions, sequence numbers, multi, one-shot watches.

Each method is one atomic step.

Not here: connections with their faults, and clients (`zookeeper.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from buckram.errors import (
    AccessRefused,
    BuckramError,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import split
from buckram.metadata.zookeeper.session import ANY_VERSION, Change, ZkStat
from buckram.types import Create, Delete, KeyOp, KeyValue, SetValue


class ReportChange(Protocol):
    """Gets each change of a node that a session watches."""

    def __call__(self, path: str, change: Change, /) -> None: ...


@dataclass(slots=True)
class _Node:
    value: bytes = b""
    owner: int = 0
    ctime_ms: int = 0
    version: int = 0
    children_created: int = 0
    children: dict[str, None] = field(default_factory=dict)


class ZkTree:
    """The nodes and watches of one server. `refused` are nodes whose access list allows no session."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.refused: dict[str, None] = {}
        self._now_ms = now_ms
        self._nodes: dict[str, _Node] = {"/": _Node()}
        self._sessions: dict[int, ReportChange] = {}
        self._opened = 0
        self._value_watches: dict[str, dict[int, None]] = {}
        self._child_watches: dict[str, dict[int, None]] = {}
        self._changed: list[tuple[str, Change]] = []

    # sessions

    def open_session(self, report: ReportChange) -> int:
        self._opened += 1
        session = 0x1000_0000_0000_0000 + self._opened  # ids of real servers do not fit into 32 bits either
        self._sessions[session] = report
        return session

    def end_session(self, session: int) -> list[str]:
        """Delete the ephemeral nodes of a session, and return their paths. Watches of other sessions fire."""
        if self._sessions.pop(session, None) is None:
            return []
        owned = [path for path, node in self._nodes.items() if node.owner == session]
        for path in owned:
            self._remove(path)
        self._fire()
        return owned

    def alive(self, session: int) -> bool:
        return session in self._sessions

    # reads

    def get(self, path: str, session: int, *, watch: bool = False) -> tuple[bytes, ZkStat]:
        node = self._node(path)
        if watch:
            self._value_watches.setdefault(path, {})[session] = None
        return node.value, _stat(node)

    def exists(self, path: str, session: int, *, watch: bool = False) -> ZkStat | None:
        node = self._nodes.get(path)
        if watch:
            self._value_watches.setdefault(path, {})[session] = None
        return None if node is None else _stat(node)

    def children(self, path: str, session: int, *, watch: bool = False) -> list[str]:
        node = self._node(path)
        if watch:
            self._child_watches.setdefault(path, {})[session] = None
        return list(node.children)

    def peek(self, path: str) -> KeyValue | None:
        """Return the value of a node without a session, for checkers and tests."""
        node = self._nodes.get(path)
        return None if node is None else KeyValue(node.value, node.version)

    def copy_from(self, other: ZkTree) -> None:
        """Copy all nodes and numbers of another tree, but no sessions and no watches."""
        self._nodes, self._opened = copy.deepcopy(other._nodes), max(self._opened, other._opened)

    def without_sessions(self) -> ZkTree:
        """Return a copy with the nodes that no session owns."""
        copied = ZkTree(self._now_ms)
        copied.copy_from(self)
        for path in [path for path, node in copied._nodes.items() if node.owner]:
            copied._remove(path)
        copied._changed.clear()
        return copied

    def values(self) -> dict[str, KeyValue]:
        return {path: KeyValue(node.value, node.version) for path, node in self._nodes.items()}

    def snapshot(self) -> dict[str, bytes]:
        """Return the value of each node, in the order of the paths."""
        return {path: node.value for path, node in sorted(self._nodes.items())}

    # mutations

    def create(self, path: str, value: bytes, session: int, *, ephemeral: bool = False, sequence: bool = False) -> str:
        made = self._create(path, value, session if ephemeral else 0, sequence)
        self._fire()
        return made

    def set(self, path: str, value: bytes, version: int) -> int:
        new = self._set(path, value, version)
        self._fire()
        return new

    def delete(self, path: str, version: int) -> None:
        self._delete(path, version)
        self._fire()

    def multi(self, ops: Sequence[KeyOp], session: int) -> None:
        touched = {path: None for op in ops for path in (op.key, split(op.key)[0])}
        before = {path: copy.deepcopy(self._nodes.get(path)) for path in touched}
        try:
            for op in ops:
                self._apply(op, session)
        except BuckramError:
            self._changed.clear()
            for path, node in before.items():
                if node is None:
                    self._nodes.pop(path, None)
                else:
                    self._nodes[path] = node
            raise
        self._fire()

    def set_sequence(self, path: str, number: int) -> None:
        """Set the number of the next sequence node below `path`, as after that many creations of children."""
        self._node(path).children_created = number

    def _apply(self, op: KeyOp, session: int) -> None:
        if isinstance(op, Create):
            self._create(op.key, op.value, session if op.ephemeral else 0, sequence=False)
        elif isinstance(op, SetValue):
            self._set(op.key, op.value, op.version)
        elif isinstance(op, Delete):
            self._delete(op.key, op.version)
        else:
            self._current(op.key, op.version)

    def _create(self, path: str, value: bytes, owner: int, sequence: bool) -> str:
        parent_path, _ = split(path)
        parent = self._node(parent_path)
        if sequence:
            path = f"{path}{parent.children_created:010d}"
        if path in self._nodes:
            raise KeyExists(path)
        if parent.owner:
            raise InvalidArgument(f"key {path}: {parent_path} is bound to a session and cannot have children")
        self._nodes[path] = _Node(bytes(value), owner, self._now_ms())
        parent.children[split(path)[1]] = None
        parent.children_created = _int32(parent.children_created + 1)
        self._changed += ((path, Change.CREATED), (parent_path, Change.CHILD))
        return path

    def _set(self, path: str, value: bytes, version: int) -> int:
        node = self._current(path, version)
        node.value, node.version = bytes(value), node.version + 1
        self._changed.append((path, Change.CHANGED))
        return node.version

    def _delete(self, path: str, version: int) -> None:
        if self._current(path, version).children:
            raise KeyNotEmpty(path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        parent_path, name = split(path)
        del self._nodes[path]
        del self._nodes[parent_path].children[name]
        self._changed += ((path, Change.DELETED), (parent_path, Change.CHILD))

    def _node(self, path: str) -> _Node:
        if path in self.refused:
            raise AccessRefused(path, "the access list does not allow this session to use it")
        node = self._nodes.get(path)
        if node is None:
            raise NoSuchKey(path)
        return node

    def _current(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise VersionConflict(path, version)
        return node

    def _fire(self) -> None:
        changed = list(dict.fromkeys(self._changed))
        self._changed.clear()
        for path, change in changed:
            sessions: dict[int, None] = {}
            if change is not Change.CHILD:
                sessions |= self._value_watches.pop(path, {})
            if change in (Change.CHILD, Change.DELETED):
                sessions |= self._child_watches.pop(path, {})
            for session in sessions:
                report = self._sessions.get(session)
                if report is not None:
                    report(path, change)


def _stat(node: _Node) -> ZkStat:
    # Sequence numbers count created children only; the child version counts deletions, too.
    changes = _int32(2 * node.children_created - len(node.children))
    return ZkStat(node.version, node.ctime_ms, node.owner, len(node.children), changes)


def _int32(number: int) -> int:
    """Return the number as a 32-bit integer of Java, which wraps to negative numbers."""
    return (number + 2**31) % 2**32 - 2**31
