"""A simulated ZooKeeper as its clients see it: `SimZkSession` is the ZkSession of one process.

Requests and replies of a connection keep their order. A connection that breaks loses what is in flight; the session
then reconnects, and requests sent before can no longer take effect. Other faults are expiry, an unavailable server, and
late and spurious watches.

Not here: the server (`simulator/engine/zk_server.py`), its tree (`simulator/engine/zk_tree.py`), the connection between
two hosts (`simulator/engine/zk_connection.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey
from buckram.metadata.zookeeper.session import (
    READS,
    Change,
    OperationCount,
    WatchTable,
    ZkStat,
    check_size,
    check_version,
    create_with_parents,
)
from buckram.seams import Notify
from buckram.types import CheckVersion, Create, KeyOp, SetValue
from simulator.engine.zk_connection import ZkConnection
from simulator.engine.zk_server import SimZooKeeper
from simulator.engine.zk_tree import ZkTree

_MAX_WAITING = 10_000
_CLOSED = "this metadata store was closed"


class _Request:
    """One request. `keys` are the paths that it changes, `path` is the one that its errors name."""

    __slots__ = ("apply", "asked_at", "future", "keys", "kind", "path", "session", "watch")

    def __init__(
        self,
        kind: str,
        keys: Sequence[str],
        apply: Callable[[ZkTree], Any],
        watch: Notify | None,
        path: str,
        session: int,
        future: asyncio.Future[Any],
    ) -> None:
        self.kind, self.keys, self.apply, self.watch, self.path = kind, keys, apply, watch, path
        self.session, self.future = session, future
        self.asked_at = future.get_loop().time()


class SimZkSession:
    """A ZkSession of one process."""

    def __init__(self, server: SimZooKeeper, connection: ZkConnection) -> None:
        self.hosts = "sim:2181"
        self.operations = OperationCount()
        self._server, self._connection = server, connection
        self._lagging = server.follower is not None and server.rng.random() < 0.5
        self._watches = WatchTable()
        self._lost: list[Notify] = []
        self._known: dict[str, int] = {}
        self._waiting: deque[_Request] = deque()
        self._sent: dict[_Request, None] = {}
        self._to_server: deque[Callable[[], None]] = deque()
        self._to_client: deque[Callable[[], None]] = deque()
        self._closed = self._connected = self._silent = False
        self._session = self._epoch = 0
        # The server's view: the session, its present connection, and a connection whose answers are lost.
        self._at_server = self._attached = self._muted = 0
        connection.on_death(self._notice_s, lambda: server.end_session(self._at_server))
        server.sessions.append(self)
        self._connect()

    # ZkSession

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def ticket(self) -> str:
        return str(self._session) if self._session else ""

    async def end_other(self, ticket: str) -> None:
        session = int(ticket)
        await self._request("sync", [f"/session {session}"], lambda _: self._server.end_session(session))

    @property
    def session_timeout_s(self) -> float:
        return self._server.session_timeout_s

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
        world_open: bool = False,
    ) -> tuple[str, int]:
        check_size([Create(path, value)])

        async def create_one(wanted: str) -> str:
            is_target = wanted == path

            def apply(_: ZkTree) -> str:
                owner = self._at_server
                made = self._server.commit(
                    lambda tree: tree.create(
                        wanted,
                        value if is_target else b"",
                        owner,
                        ephemeral=is_target and ephemeral,
                        sequence=is_target and sequence,
                    )
                )
                self._server.changed(self._connection.name, made)
                return made

            made: str = await self._request("create", [wanted], apply)
            self._knows(made, 0)
            return made

        return await (create_with_parents(path, create_one) if parents else create_one(path)), 0

    async def get(self, path: str, watch: Notify | None = None) -> tuple[bytes, ZkStat]:
        value, stat = await self._request(
            "get", [path], lambda tree: tree.get(path, self._at_server, watch=watch is not None), watch
        )
        self._knows(path, stat.version)
        return value, stat

    async def set(self, path: str, value: bytes, version: int, *, session: int = 0) -> int:
        check_size([SetValue(path, value, version)])
        check_version(path, version)
        self._check_known(path, version)
        new: int = await self._request(
            "set", [path], lambda _: self._server.commit(lambda tree: tree.set(path, value, version)), session=session
        )
        self._knows(path, new)
        return new

    async def delete(self, path: str, version: int, *, session: int = 0) -> None:
        check_version(path, version)
        self._check_known(path, version)
        await self._request(
            "delete", [path], lambda _: self._server.commit(lambda tree: tree.delete(path, version)), session=session
        )

    async def exists(self, path: str, watch: Notify | None = None) -> ZkStat | None:
        stat: ZkStat | None = await self._request(
            "exists", [path], lambda tree: tree.exists(path, self._at_server, watch=watch is not None), watch
        )
        if stat is not None:
            self._knows(path, stat.version)
        return stat

    async def children(self, path: str, watch: Notify | None = None) -> list[str]:
        names: list[str] = await self._request(
            "children", [path], lambda tree: tree.children(path, self._at_server, watch=watch is not None), watch
        )
        return sorted(names)

    async def multi(self, ops: Sequence[KeyOp], *, session: int = 0) -> None:
        check_size(ops)
        if not ops:
            self._check_usable()
            return
        made: dict[str, None] = {}
        for op in ops:
            if isinstance(op, Create):
                made[op.key] = None
            else:
                check_version(op.key, op.version)
                if op.key not in made:
                    self._check_known(op.key, op.version)
        changed = [op.key for op in ops if not isinstance(op, CheckVersion)]

        def apply(_: ZkTree) -> None:
            owner = self._at_server
            self._server.commit(lambda tree: tree.multi(ops, owner))

        await self._request("multi", changed, apply, session=session)
        for op in ops:
            if isinstance(op, Create):
                self._knows(op.key, 0)
            elif isinstance(op, SetValue):
                self._knows(op.key, op.version + 1)

    async def sync(self, path: str) -> None:
        await self._request("sync", [path], lambda _: None)

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if self._closed:
            return
        self._connection.check_alive()
        self._closed = True
        self._server.end_session(self._at_server)
        for request in (*self._sent, *self._waiting):
            _fail(request, _CLOSED)
        self._watches.take_all()

    def expire(self) -> None:
        """End the session on the server; the process learns of it later."""
        self._server.end_session(self._at_server)
        self._answer(partial(self._lose_connection, self._epoch))

    # requests, at the client

    def _check_usable(self) -> None:
        self._connection.check_alive()
        if self._closed:
            raise MetadataUnavailable(_CLOSED)
        if len(self._waiting) + len(self._sent) >= _MAX_WAITING:
            raise MetadataUnavailable(f"{_MAX_WAITING} operations wait for {self.hosts}, the limit; try again later")

    def _knows(self, path: str, version: int) -> None:
        """Remember a version that a reply contained.

        Another task of the process may have read or made a later one while this reply was on its way.
        """
        self._known[path] = max(version, self._known.get(path, -1))

    def _check_known(self, path: str, version: int) -> None:
        # The version may be older than the newest one that the process has read through another handle.
        if version >= 0 and self._known.get(path, -1) < version:
            for observer in self._server.observers:
                observer.unread_version(self._connection.name, path, version)

    async def _request(
        self, kind: str, keys: list[str], apply: Callable[[ZkTree], Any], watch: Notify | None = None, session: int = 0
    ) -> Any:
        self._check_usable()
        future = asyncio.get_running_loop().create_future()
        request = _Request(kind, [] if kind in READS else keys, apply, watch, keys[0] if keys else "", session, future)
        self._waiting.append(request)
        self._pump()
        timer = self._connection.later(self._server.timeout_s, partial(self._time_out, request))
        try:
            return await future
        finally:
            timer.cancel()

    def _pump(self) -> None:
        while self._connected and self._waiting:
            request = self._waiting.popleft()
            if request.future.done():
                continue
            if request.session and request.session != self._session:
                request.future.set_exception(NoSuchKey(request.path))
                continue
            if request.kind == "sync":
                self.operations.syncs += 1
            elif request.kind in READS:
                self.operations.reads += 1
            else:
                self.operations.writes += 1
            self._sent[request] = None
            self._send(partial(self._arrive, self._epoch, request))

    def _time_out(self, request: _Request) -> None:
        if not request.future.done():
            _fail(request, f"no answer from ZooKeeper at {self.hosts} within {self._server.timeout_s:g} s")
            self._silent = True
            self._lose_connection(self._epoch)

    def _answered(self, epoch: int, request: _Request, result: Any, error: BuckramError | None) -> None:
        if epoch != self._epoch or request not in self._sent:
            return
        del self._sent[request]
        if request.future.done():
            return
        if error is not None:
            request.future.set_exception(error)
            return
        if request.watch is not None:
            self._set_watch(request.path, request.watch, children=request.kind == "children")
        request.future.set_result(result)

    # the connection, at the client

    def _connect(self) -> None:
        if not self._closed:
            self._epoch += 1
            self._send(partial(self._attach, self._epoch, self._silent))
            self._connection.later(1.0 + 2 * self._server.late_s, partial(self._connect_again, self._epoch))

    def _connect_again(self, epoch: int) -> None:
        if epoch == self._epoch and not self._connected:
            self._connect()

    def _attached_as(self, epoch: int, session: int) -> None:
        if epoch != self._epoch or self._closed:
            return
        before, self._session = self._session, session
        self._connected, self._silent = True, False
        self.operations.syncs += 1
        if before and before != session:
            for notify in list(self._lost):
                notify()
        for notify in self._watches.take_all():
            notify()
        self._pump()

    def _lose_connection(self, epoch: int) -> None:
        if epoch != self._epoch or not self._connected or self._closed:
            return
        self._connected = False
        repeated = [request for request in self._sent if request.kind in READS and not request.future.done()]
        for request in self._sent:
            if request.kind not in READS:
                _fail(request, f"the connection to ZooKeeper at {self.hosts} was lost")
        self._sent.clear()
        self._waiting.extendleft(reversed(repeated))
        self._connection.later(self._server.rng.random() * 0.1, self._connect)

    # watches, at the client

    def _set_watch(self, path: str, notify: Notify, *, children: bool) -> None:
        rng = self._server.rng
        if rng.random() < self._server.spurious_watches:  # it fires once without a change
            self._connection.later(rng.random() * 0.2, partial(self._fire, notify))
        else:
            self._watches.add(path, notify, children=children)

    def _node_changed(self, path: str, change: Change) -> None:
        rng = self._server.rng
        for notify in self._watches.take(path, change):
            if self._server.late_watch_s and rng.random() < 0.2:
                self._connection.later(rng.random() * self._server.late_watch_s, partial(self._fire, notify))
            else:
                self._fire(notify)

    def _fire(self, notify: Notify) -> None:
        if not self._closed:
            notify()

    # at the server

    def _attach(self, epoch: int, silent: bool) -> None:
        server = self._server
        if server.down or self._closed:
            return
        if silent and server.rng.random() < server.expire_after_silence:
            server.end_session(self._at_server)
        if not server.tree.alive(self._at_server):
            self._at_server = server.open_session(self._report, lagging=self._lagging)
        if self._lagging and server.follower is not None:
            server.follower.catch_up()  # a server does not serve a client that has read a newer state
        self._attached = epoch
        self._answer(partial(self._attached_as, epoch, self._at_server))

    def _arrive(self, epoch: int, request: _Request) -> None:
        server, name = self._server, self._connection.name
        if epoch != self._attached or not server.tree.alive(self._at_server):
            self._answer(partial(self._lose_connection, epoch))
            return
        fate = server.choose_loss(name, request.keys)
        if server.down or fate == "before":
            self._attached = 0
            self._answer(partial(self._lose_connection, epoch))
            return
        result, error = None, None
        server.writer_gave_up, server.asked_at = request.future.done(), request.asked_at
        try:
            result = request.apply(self._reads)
        except BuckramError as caught:
            error = caught
            for key in request.keys[:1]:
                for observer in server.observers:
                    observer.key_conflict(name, key)
        if self._lagging and server.follower is not None:
            if request.kind == "sync" or request.kind not in READS:
                server.follower.catch_up()
            elif server.follower.tree.peek(request.path) != server.peek(request.path):
                server.stale_read()
        for key in request.keys:
            server.changed(name, key)
        if fate == "after" and error is not None:
            server.keep_scripted_loss()
        if fate == "after" and error is None:
            for key in request.keys:
                for observer in server.observers:
                    observer.reply_lost(name, key)
            self._muted = epoch  # later requests are carried out, too, and their answers are lost as well
            self._answer(partial(self._lose_connection, epoch))
        elif epoch != self._muted:
            self._answer(partial(self._answered, epoch, request, result, error))

    @property
    def _reads(self) -> ZkTree:
        follower = self._server.follower
        return follower.tree if follower is not None and self._lagging else self._server.tree

    def _report(self, path: str, change: Change) -> None:
        self._answer(partial(self._node_changed, path, change))

    def _notice_s(self) -> float:
        rng = self._server.rng
        return rng.choice((0.0, rng.random() * self._server.session_timeout_s))

    # Messages keep their order: each arrival takes the oldest one.

    def _send(self, item: Callable[[], None]) -> None:
        self._to_server.append(item)
        self._connection.send(lambda: self._to_server.popleft()())

    def _answer(self, item: Callable[[], None]) -> None:
        self._to_client.append(item)
        self._connection.answer(lambda: self._to_client.popleft()())


def _fail(request: _Request, why: str) -> None:
    if not request.future.done():
        unsure = "" if request.kind in READS else "; whether it happened is not known"
        request.future.set_exception(MetadataUnavailable(f"{request.path}: {request.kind}: {why}{unsure}"))


__all__ = ["SimZkSession", "SimZooKeeper"]
