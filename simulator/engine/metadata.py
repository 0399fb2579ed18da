"""A simulated metadata store with faults: delays, losses before and after a change, expiry, late and spurious watches.

`MetadataFaults` has the faults of any metadata store, `MetadataServer` is a store in memory (one per life), `SimKeys`
is the session of one process. A request that was sent is carried out even if its process is paused or dead by then.

Not here: ZooKeeper (`zookeeper.py`, `zk_server.py`), which keys belong to ledgers (`buckram/metadata/tree/layout.py`).
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.errors import MetadataUnavailable
from buckram.metadata.tree.memory import MemoryTree, _Node
from buckram.seams import Notify
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue
from simulator.engine.loop import Process
from simulator.engine.network import Fabric

HOST = "meta"
"""The host of a life's metadata store; a second cluster's is another one (`MetadataFaults.host`)."""


class MetadataObserver(Protocol):
    """Gets what happens in the metadata store. `who` is the process whose request it was."""

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        """Observe a change that was applied."""
        ...

    def key_conflict(self, who: str, key: str) -> None: ...
    def reply_lost(self, who: str, key: str) -> None: ...
    def unread_version(self, who: str, key: str, version: int) -> None:
        """Observe a change with an expected version that its process never read from the store."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a metadata store. `keys` are its keys, `kept` what the store itself needs to restore it."""

    keys: dict[str, KeyValue]
    kept: object


class MetadataFaults(ABC):
    """The faults of a metadata store. Chances are per request, and are set by the faults of a life."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.host = HOST
        self.observers: list[MetadataObserver] = []
        self.lose_before = self.lose_after = 0.0
        self.late_chance = self.late_s = 0.0
        self.down = False
        self.writer_gave_up = False
        """True if the sender of the request that is being carried out has stopped waiting for it."""
        self.asked_at = 0.0
        """Time at which the request that is being carried out was sent, seconds since the life began."""
        self.spurious_watches = 0.02
        self.late_watch_s = 0.05
        self.timeout_s = 4.0
        self.session_timeout_s = 3.0
        self._values: dict[str, KeyValue] = {}
        self._script: list[tuple[str, str, str]] = []
        self._taken: tuple[str, str, str] | None = None

    def lose_next(self, when: str, who: str, part_of_key: str) -> None:
        """Plan one loss: "before" or "after" the next change by `who` of a key that contains the text."""
        self._script.append((when, who, part_of_key))

    @property
    def scripted(self) -> int:
        """Return the number of planned losses that have not happened yet."""
        return len(self._script)

    def choose_loss(self, who: str, keys: Sequence[str]) -> str:
        """Return whether a request is lost "before" or "after" it is carried out, or "none". It changes `keys`."""
        self._taken = None
        for at, (when, name, part) in enumerate(self._script):
            if name == who and any(part in key for key in keys):
                self._taken = self._script.pop(at)
                return when
        if self.down:
            return "before"
        if self.lose_before or self.lose_after:
            roll = self.rng.random()
            if roll < self.lose_before:
                return "before"
            if roll < self.lose_before + self.lose_after:
                return "after"
        return "none"

    def extra_delay_s(self) -> float:
        """Return by how many seconds the next message from or to the store is late."""
        return self.rng.random() * self.late_s if self.late_s and self.rng.random() < self.late_chance else 0.0

    def keep_scripted_loss(self) -> None:
        """Keep a planned loss for the next request, because the request of the last choose_loss() failed."""
        if self._taken is not None:
            self._script.insert(0, self._taken)
            self._taken = None

    def changed(self, who: str, key: str) -> None:
        """Report a key that may have changed to the observers."""
        new = self.peek(key)
        old = self._values.get(key)
        if new is None:
            self._values.pop(key, None)
        else:
            self._values[key] = new
        if old != new:
            for observer in self.observers:
                observer.key_changed(who, key, old, new)

    @abstractmethod
    def peek(self, key: str) -> KeyValue | None:
        """Return what the newest state of the store has under the key."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return what a backup made now contains: all keys that are not bound to a session."""

    @abstractmethod
    def _replace_by(self, snapshot: Snapshot) -> None:
        """End all sessions and replace all keys by those of the snapshot."""

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the store by an older state. Sessions end, as they do with a server that starts from a backup.

        Observers are not called, because no client changed a key. `World.restore_metadata` informs the judge.
        """
        self._replace_by(snapshot)
        self._values = dict(snapshot.keys)


class MetadataServer(MetadataFaults):
    """The metadata store of a cluster, in memory."""

    def __init__(self, fabric: Fabric, rng: random.Random) -> None:
        super().__init__(rng)
        self.fabric, self.loop = fabric, fabric.loop
        self.tree = MemoryTree()

    def peek(self, key: str) -> KeyValue | None:
        node = self.tree._nodes.get(key)
        return None if node is None else KeyValue(node.value, node.version)

    def snapshot(self) -> Snapshot:
        keys = {
            key: KeyValue(node.value, node.version) for key, node in self.tree._nodes.items() if node.session is None
        }
        return Snapshot(keys, None)

    def _replace_by(self, snapshot: Snapshot) -> None:
        self.loop.trace.note(self.host, "goes back to an older state")
        tree = self.tree
        for session in list(tree._sessions):
            tree.expire(session)
        tree._nodes.clear()
        tree._children = {"/": []}
        for key, kept in sorted(snapshot.keys.items()):
            tree._insert(key, _Node(kept.value, None, kept.version))
        tree._fired.clear()


class SimKeys:
    """A seams.KeyStore. Sessions end when the process dies (after a while) or by `expire()`."""

    def __init__(self, server: MetadataServer, process: Process) -> None:
        self._server, self._process = server, process
        self._lost: list[Notify] = []
        self._closed = False
        self._known: dict[str, int] = {}
        self.session = server.tree.open_session(self._deliver, self._expired)
        process.on_death(self._process_died)

    async def prepare(self) -> None:
        """Do nothing: the simulated store needs no setup."""

    def expire(self) -> None:
        """End the session on the store; the process learns of it later."""
        self._server.loop.trace.note(self._server.host, f"session of {self._process.name} expires")
        self._server.tree.expire(self.session)

    # seams.KeyStore

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        version: int = await self._mutate([Create(key, value, ephemeral)])
        return version

    async def set(self, key: str, value: bytes, version: int) -> int:
        new: int = await self._mutate([SetValue(key, value, version)])
        return new

    async def delete(self, key: str, version: int) -> None:
        await self._mutate([Delete(key, version)])

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        await self._mutate(list(ops), multi=True)

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        watch = self._watch_to_set(watch)
        found: KeyValue = await self._request([], lambda: self._server.tree.get(key, self.session, watch))
        self._knows(key, found.version)
        return found

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        watch = self._watch_to_set(watch)
        names: list[str] = await self._request(
            [], lambda: self._server.tree.children(parent, self.session, after, limit, watch)
        )
        return names

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        found: list[tuple[str, KeyValue]] = await self._request(
            [], lambda: self._server.tree.children_with_values(parent, self.session, after, limit)
        )
        above = "" if parent == "/" else parent
        for name, one in found:
            self._knows(f"{above}/{name}", one.version)
        return found

    async def sync(self) -> None:
        await self._request([], lambda: None)

    async def lasting(self) -> list[tuple[str, int, bytes]]:
        """Return every key that is bound to no session, with version and value, as of one moment."""
        found: dict[str, KeyValue] = await self._request([], self._server.tree.lasting)
        for key, one in found.items():
            self._knows(key, one.version)
        return [(key, one.version, one.value) for key, one in found.items()]

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if not self._closed and not self._process.dead:
            self._closed = True
            self._server.tree.close_session(self.session)

    # requests

    async def _mutate(self, ops: list[KeyOp], multi: bool = False) -> Any:
        for op in ops:
            version = -1 if isinstance(op, Create) else op.version
            # The version may be older than the newest one that the process has read through another handle.
            if version >= 0 and self._known.get(op.key, -1) < version:
                for observer in self._server.observers:
                    observer.unread_version(self._process.name, op.key, version)

        def apply() -> Any:
            tree = self._server.tree
            try:
                return tree.apply_all(ops, self.session) if multi else tree.apply(ops[0], self.session)
            except Exception as error:
                if not isinstance(error, MetadataUnavailable):
                    for observer in self._server.observers:
                        observer.key_conflict(self._process.name, ops[0].key)
                raise
            finally:
                for op in ops:
                    if not isinstance(op, CheckVersion):
                        self._server.changed(self._process.name, op.key)

        version = await self._request(ops, apply)
        for op in ops:
            if isinstance(op, Create):
                self._knows(op.key, 0)
            elif isinstance(op, SetValue):
                self._knows(op.key, op.version + 1)
        return version

    def _knows(self, key: str, version: int) -> None:
        """Remember a version that a reply contained.

        Another task of the process may have read or made a later one while this reply was on its way.
        """
        self._known[key] = max(version, self._known.get(key, -1))

    async def _request(self, ops: Sequence[KeyOp], apply: Callable[[], Any]) -> Any:
        """Send a request and await its reply. Either may be lost, and the sender cannot know which."""
        server, loop, fabric, process = self._server, self._server.loop, self._server.fabric, self._process
        process.check_alive()
        if self._closed:
            raise MetadataUnavailable("this metadata store was closed")
        answer: asyncio.Future[Any] = loop.create_future()
        asked_at = loop.time()
        fate = server.choose_loss(process.name, [op.key for op in ops])

        def resolve(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def arrive() -> None:
            if fate == "before":
                reply(None, MetadataUnavailable("connection to the metadata store lost"))
                return
            result, error = None, None
            server.writer_gave_up, server.asked_at = answer.done(), asked_at
            try:
                result = apply()
            except Exception as caught:
                error = caught
            if fate == "after" and error is None:
                for op in ops:
                    for observer in server.observers:
                        observer.reply_lost(process.name, op.key)
                error = MetadataUnavailable("connection to the metadata store lost")
            reply(result, error)

        def reply(result: Any, error: Exception | None) -> None:
            def back() -> None:
                fabric.when_open(
                    server.host, process.name, lambda: loop.call_soon(resolve, result, error, context=process.context)
                )

            loop.call_later(
                fabric.delay(server.host, process.name) + server.extra_delay_s(), back, context=loop.world.context
            )

        loop.call_later(
            fabric.delay(process.name, server.host) + server.extra_delay_s(),
            lambda: fabric.when_open(process.name, server.host, arrive),
            context=loop.world.context,
        )
        silent = MetadataUnavailable("the metadata store does not answer")
        timer = loop.call_later(server.timeout_s, resolve, None, silent)
        try:
            return await answer
        finally:
            timer.cancel()

    # notifications

    def _watch_to_set(self, watch: Notify | None) -> Notify | None:
        """Return the watch to set. Sometimes there is none, and the watch fires once without a change."""
        server = self._server
        if watch is None or server.rng.random() >= server.spurious_watches:
            return watch
        server.loop.call_later(server.rng.random() * 0.2, watch, context=self._process.context)
        return None

    def _deliver(self, notify: Notify) -> None:
        server, process = self._server, self._process
        delay = server.fabric.delay(server.host, process.name) + server.extra_delay_s()
        if server.rng.random() < 0.2:
            delay += server.rng.random() * server.late_watch_s

        def go() -> None:
            server.fabric.when_open(
                server.host, process.name, lambda: server.loop.call_soon(notify, context=process.context)
            )

        server.loop.call_later(delay, go, context=server.loop.world.context)

    def _expired(self) -> None:
        if self._closed or self._process.dead:
            return
        self.session = self._server.tree.open_session(self._deliver, self._expired)
        for notify in self._lost:
            notify()

    def _process_died(self) -> None:
        server = self._server
        if not self._closed:
            delay = server.rng.choice((0.0, server.rng.random() * server.session_timeout_s))
            server.loop.call_later(delay, server.tree.expire, self.session, context=server.loop.world.context)
