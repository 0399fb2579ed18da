"""The reference key store: a tree in memory with sessions, and a thin async face on it.

`MemoryTree` is synchronous and deterministic; the simulator puts its faults in front of it (connection loss before
or after `apply`, `expire`, late watches through `deliver`). `MemoryKeys` is the KeyStore of one session. Not here: what
ledgers and bookies make of keys (`metadata/tree/store.py`).
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from buckram.errors import (
    BuckramError,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import check_key, check_multi, check_op, check_parent, split
from buckram.seams import MAX_PAGE_BYTES, Deliver, Notify
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue


@dataclass(slots=True)
class _Node:
    value: bytes
    session: int | None
    version: int = 0


@dataclass(slots=True)
class _Session:
    deliver: Deliver
    lost: Notify
    ephemerals: dict[str, None] = field(default_factory=dict)


class MemoryTree:
    """Keys, sessions and watches of one cluster. Every method is one atomic step; threads may share a tree.

    Sessions are numbered from 1. An operation of a session that was closed or expired raises MetadataUnavailable.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._children: dict[str, list[str]] = {"/": []}
        self._sessions: dict[int, _Session] = {}
        self._opened = 0
        self._watches: dict[tuple[str, str], dict[tuple[int, Notify], None]] = {}
        self._fired: list[tuple[str, str]] = []
        self._lock = threading.RLock()

    def open_session(self, deliver: Deliver, lost: Notify) -> int:
        """Open a new session. `lost` is delivered when it expires (not when it is closed)."""
        with self._lock:
            self._opened += 1
            self._sessions[self._opened] = _Session(deliver, lost)
            return self._opened

    def close_session(self, session: int) -> None:
        """Close a session: its ephemeral keys are removed; its watches never fire."""
        with self._lock:
            self._end_session(session)

    def expire(self, session: int) -> None:
        """Expire a session from the store's side: its keys are removed, its watches fire and `lost` is delivered."""
        with self._lock:
            ended = self._sessions.get(session)
            mine = [notify for waiting in self._watches.values() for owner, notify in waiting if owner == session]
            self._end_session(session)
            if ended is not None:
                for notify in (ended.lost, *dict.fromkeys(mine)):
                    ended.deliver(notify)

    def alive(self, session: int) -> bool:
        return session in self._sessions

    def apply(self, op: KeyOp, session: int) -> int:
        """Apply one mutation (or check); return the key's version after it, for a Delete the one it had."""
        check_op(op)
        with self._lock:
            self._require(session)
            version, _ = self._apply(op, session)
            self._fire()
            return version

    def apply_all(self, ops: Sequence[KeyOp], session: int) -> None:
        """Apply all operations in order, or none."""
        check_multi(ops)
        with self._lock:
            self._require(session)
            undo: list[Callable[[], None]] = []
            try:
                for op in ops:
                    undo.append(self._apply(op, session)[1])
            except BuckramError:
                for step in reversed(undo):
                    step()
                self._fired.clear()
                raise
            self._fire()

    def get(self, key: str, session: int, watch: Notify | None = None) -> KeyValue:
        check_key(key)
        with self._lock:
            self._require(session)
            self._watch("value", key, session, watch)
            node = self._nodes.get(key)
            if node is None:
                raise NoSuchKey(key)
            return KeyValue(node.value, node.version, node.session == session)

    def children(
        self, parent: str, session: int, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        check_parent(parent, limit)
        with self._lock:
            self._require(session)
            self._watch("children", parent, session, watch)
            names = self._children.get(parent, [])
            start = bisect_right(names, after)
            return names[start : start + limit]

    def children_with_values(
        self, parent: str, session: int, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        above = "" if parent == "/" else parent
        found: list[tuple[str, KeyValue]] = []
        size = 0
        for name in self.children(parent, session, after, limit):
            node = self._nodes[f"{above}/{name}"]
            found.append((name, KeyValue(node.value, node.version, node.session == session)))
            size += len(node.value)
            if size >= MAX_PAGE_BYTES:
                break
        return found

    def peek(self, key: str) -> KeyValue | None:
        """Return the value without a session and without an error; for checkers and tests."""
        node = self._nodes.get(key)
        return None if node is None else KeyValue(node.value, node.version)

    def snapshot(self) -> dict[str, KeyValue]:
        """Return every key with its value, in order of the keys; for checkers and tests."""
        with self._lock:
            return {key: KeyValue(node.value, node.version) for key, node in sorted(self._nodes.items())}

    def lasting(self) -> dict[str, KeyValue]:
        """Return a snapshot without keys that are bound to sessions, as a copy of a store would be."""
        with self._lock:
            return {
                key: KeyValue(node.value, node.version)
                for key, node in sorted(self._nodes.items())
                if node.session is None
            }

    def put_back(self, copy: dict[str, KeyValue]) -> None:
        """Restore what `lasting` returned earlier, as a store that is restored by hand does; all sessions are lost."""
        for session in list(self._sessions):
            self.expire(session)
        with self._lock:
            places = [("value", key) for key in self._nodes.keys() | copy.keys()]
            places += [("children", parent) for parent in self._children]
            self._nodes.clear()
            self._children.clear()
            for key, found in sorted(copy.items()):
                node = _Node(found.value, None)
                node.version = found.version
                self._insert(key, node)
            self._fired += sorted(places)
            self._fire()

    def _require(self, session: int) -> None:
        if session not in self._sessions:
            raise MetadataUnavailable(f"metadata session {session} has ended; open a new one")

    def _end_session(self, session: int) -> None:
        ended = self._sessions.pop(session, None)
        if ended is None:
            return
        for place, waiting in list(self._watches.items()):
            rest = {entry: None for entry in waiting if entry[0] != session}
            if rest:
                self._watches[place] = rest
            else:
                del self._watches[place]
        for key in ended.ephemerals:
            self._remove(key)
        self._fire()

    # Mutations: each gives the resulting version and the step that takes it back.

    def _apply(self, op: KeyOp, session: int) -> tuple[int, Callable[[], None]]:
        if isinstance(op, Create):
            return 0, self._create(op, session)
        node = self._nodes.get(op.key)
        if node is None:
            raise NoSuchKey(op.key)
        if node.version != op.version:
            raise VersionConflict(op.key, op.version)
        if isinstance(op, CheckVersion):
            return node.version, lambda: None
        if isinstance(op, Delete):
            if self._children.get(op.key):
                raise KeyNotEmpty(op.key)
            self._forget_ephemeral(op.key, node)
            self._remove(op.key)
            return node.version, lambda: self._insert(op.key, node)
        return self._set(op, node)

    def _set(self, op: SetValue, node: _Node) -> tuple[int, Callable[[], None]]:
        old = node.value

        def undo() -> None:
            node.value, node.version = old, op.version

        node.value, node.version = bytes(op.value), op.version + 1
        self._fired.append(("value", op.key))
        return node.version, undo

    def _create(self, op: Create, session: int) -> Callable[[], None]:
        if op.key in self._nodes:
            raise KeyExists(op.key)
        added: list[str] = []
        parent, _ = split(op.key)
        while parent != "/" and parent not in self._nodes:
            added.append(parent)
            parent, _ = split(parent)
        if parent != "/" and self._nodes[parent].session is not None:
            raise InvalidArgument(f"key {op.key}: {parent} is bound to a session and cannot have children")
        for missing in reversed(added):
            self._insert(missing, _Node(b"", None))
        self._insert(op.key, _Node(bytes(op.value), session if op.ephemeral else None))

        def undo() -> None:
            for key in (op.key, *added):
                self._forget_ephemeral(key, self._nodes[key])
                self._remove(key)

        return undo

    def _insert(self, key: str, node: _Node) -> None:
        parent, name = split(key)
        self._nodes[key] = node
        insort(self._children.setdefault(parent, []), name)
        if node.session is not None:
            self._sessions[node.session].ephemerals[key] = None
        self._fired += (("value", key), ("children", parent))

    def _remove(self, key: str) -> None:
        parent, name = split(key)
        del self._nodes[key]
        siblings = self._children[parent]
        del siblings[bisect_right(siblings, name) - 1]
        if not siblings and parent != "/":
            del self._children[parent]
        self._fired += (("value", key), ("children", parent))

    def _forget_ephemeral(self, key: str, node: _Node) -> None:
        owner = self._sessions.get(node.session) if node.session is not None else None
        if owner is not None:
            owner.ephemerals.pop(key, None)

    def _watch(self, kind: str, key: str, session: int, watch: Notify | None) -> None:
        if watch is not None:
            self._watches.setdefault((kind, key), {})[session, watch] = None

    def _fire(self) -> None:
        places = list(dict.fromkeys(self._fired))
        self._fired.clear()
        for place in places:
            for session, notify in self._watches.pop(place, ()):
                owner = self._sessions.get(session)
                if owner is not None:
                    owner.deliver(notify)


class MemoryKeys:
    """A KeyStore: one session on a tree. After an expiry it goes on with a new session."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self._loop = asyncio.get_running_loop()
        self._lost: list[Notify] = []
        self._closed = False
        self.session = tree.open_session(self._deliver, self._expired)

    async def prepare(self) -> None:
        """Do nothing; there is nothing to set up."""

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._apply(Create(key, value, ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._apply(SetValue(key, value, version))

    async def delete(self, key: str, version: int) -> None:
        await self._apply(Delete(key, version))

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        await self._yield_once()
        self.tree.apply_all(ops, self.session)

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        await self._yield_once()
        return self.tree.get(key, self.session, watch)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        await self._yield_once()
        return self.tree.children(parent, self.session, after, limit, watch)

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        await self._yield_once()
        return self.tree.children_with_values(parent, self.session, after, limit)

    async def sync(self) -> None:
        """Yield once: there is one copy, and every read sees it as it is."""
        await self._yield_once()

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        self._closed = True
        self.tree.close_session(self.session)

    async def _apply(self, op: KeyOp) -> int:
        await self._yield_once()
        return self.tree.apply(op, self.session)

    async def _yield_once(self) -> None:
        # One turn of the loop, so that nobody comes to rely on a store that answers at once.
        await asyncio.sleep(0)
        if self._closed:
            raise MetadataUnavailable("this metadata store was closed")

    def _deliver(self, notify: Notify) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run, notify)

    def _run(self, notify: Notify) -> None:
        if not self._closed:
            notify()

    def _expired(self) -> None:
        self.session = self.tree.open_session(self._deliver, self._expired)
        for notify in self._lost:
            notify()
