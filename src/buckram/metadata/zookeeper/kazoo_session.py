"""`KazooSession`: a ZkSession on real servers. kazoo's thread ends here; results cross to the loop in batches.

Requests wait here, not in kazoo, while there is no connection: so nothing is sent after its caller got an error, and
every wait ends in time. How kazoo's thread does its work is kazoo_handler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from buckram.errors import (
    AccessRefused,
    ConfigError,
    ForkedClient,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchKey,
)
from buckram.metadata.zookeeper.access_lists import access_list, others_may
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
from buckram.types import CheckVersion, Create, Delete, KeyOp, SetValue

_log = logging.getLogger("buckram.zookeeper")
_SWEEP_S = 0.25
_CLOSE_S = 5.0
_END_S = 5.0
_MAX_WAITING = 10_000
_BATCH = 500
_CLOSED = "this metadata store was closed"
Start = Callable[[Any], Any]
"""A function that hands one request to a kazoo client and returns its asynchronous result."""


class _Request:
    """One operation on its way. `result` is kazoo's, `key` and `version` are for errors."""

    __slots__ = ("deadline", "future", "key", "kind", "result", "session", "settled", "start", "version", "watch")

    def __init__(
        self,
        kind: str,
        key: str,
        version: int,
        start: Start,
        watch: Notify | None,
        session: int,
        future: asyncio.Future[Any],
        deadline: float,
    ) -> None:
        self.kind, self.key, self.version, self.start, self.watch = kind, key, version, start, watch
        self.session = session
        self.future, self.deadline = future, deadline
        self.result: Any = None
        self.settled = False


class KazooSession:
    """A ZkSession. It connects by itself, from its construction on; close it on the loop it was made on.

    `hosts` is host:port[,host:port]. `acl` "creator" gives new nodes to whoever is authenticated as this session is,
    which needs `auth`: pairs of scheme and credential, such as ("digest", "user:password"), or "sasl" for a login by
    SASL DIGEST-MD5. `tls` gives the context of a new connection; None: no TLS. `shared_root`: with "creator", the
    ledgers root whose nodes Apache's software may use with a login of its own (`access_lists.py`). An operation that is
    not answered within `operation_timeout_s` fails with MetadataUnavailable; at most 10,000 wait at the same time.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float = 10.0,
        operation_timeout_s: float = 10.0,
        acl: Literal["open", "creator"] = "open",
        auth: Sequence[tuple[str, str]] = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
        shared_root: str = "",
    ) -> None:
        if acl == "creator" and not auth:
            raise ConfigError("ZooKeeper nodes of their creator only need credentials: give a scheme and user:password")
        from kazoo import security  # not before somebody has metadata on ZooKeeper

        from buckram.metadata.zookeeper import kazoo_link as kazoo_errors
        from buckram.metadata.zookeeper.kazoo_link import KazooLink, notify_safely

        self.hosts = hosts
        self.operations = OperationCount()
        self._session_timeout_s, self._timeout_s = session_timeout_s, operation_timeout_s
        self._translate, self._first_failure = kazoo_errors.translate, kazoo_errors.first_failure
        self._unanswered_error, self._notify = kazoo_errors.unanswered, notify_safely
        self._connection_errors = kazoo_errors.CONNECTION_ERRORS
        self._open_acl = security.OPEN_ACL_UNSAFE
        self._acl = security.CREATOR_ALL_ACL if acl == "creator" else security.OPEN_ACL_UNSAFE
        self._shared_root = shared_root
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._watches = WatchTable()
        self._lost: list[Notify] = []
        self._waiting: deque[_Request] = deque()
        self._again: list[_Request] = []
        self._unanswered: deque[_Request] = deque()
        self._count = 0
        self._flushing: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._session = 0
        self._connected = False
        self._away_since = self._loop.time()
        self._refused = ""
        self._closing: asyncio.Future[None] | None = None
        self._link = KazooLink(
            hosts, session_timeout_s, auth, on_state=self._state_changed, on_change=self._node_changed, tls=tls
        )

    # the ZkSession face

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def ticket(self) -> str:
        return self._link.ticket if self._session else ""

    async def end_other(self, ticket: str) -> None:
        self._check_usable()
        await self._link.end_other(ticket, min(self._timeout_s, _END_S))

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

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
            def start(client: Any) -> Any:
                acl = self._acl_of(wanted, world_open)
                if wanted != path:
                    return client.create_async(wanted, b"", acl)
                return client.create_async(wanted, value, acl, ephemeral=ephemeral, sequence=sequence)

            made: str = await self._ask("create", wanted, start)
            return made

        return await (create_with_parents(path, create_one) if parents else create_one(path)), 0

    def _acl_of(self, path: str, world_open: bool = False) -> Any:
        if self._shared_root:
            return access_list(others_may(self._shared_root, path))
        return self._open_acl if world_open else self._acl

    async def get(self, path: str, watch: Notify | None = None) -> tuple[bytes, ZkStat]:
        event = self._link.event if watch is not None else None
        value, stat = await self._ask("get", path, lambda client: client.get_async(path, event), watch)
        return value or b"", _stat(stat)

    async def set(self, path: str, value: bytes, version: int, *, session: int = 0) -> int:
        check_size([SetValue(path, value, version)])
        check_version(path, version)

        def start(client: Any) -> Any:
            return client.set_async(path, value, version)

        stat = await self._ask("set", path, start, version=version, session=session)
        made: int = stat.version
        return made

    async def delete(self, path: str, version: int, *, session: int = 0) -> None:
        check_version(path, version)

        def start(client: Any) -> Any:
            return client.delete_async(path, version)

        await self._ask("delete", path, start, version=version, session=session)

    async def exists(self, path: str, watch: Notify | None = None) -> ZkStat | None:
        event = self._link.event if watch is not None else None
        stat = await self._ask("exists", path, lambda client: client.exists_async(path, event), watch)
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Notify | None = None) -> list[str]:
        event = self._link.event if watch is not None else None
        names = await self._ask("children", path, lambda client: client.get_children_async(path, event), watch)
        return sorted(names)

    async def multi(self, ops: Sequence[KeyOp], *, session: int = 0) -> None:
        check_size(ops)
        for op in ops:
            if not isinstance(op, Create):
                check_version(op.key, op.version)

        def start(client: Any) -> Any:
            transaction = client.transaction()
            for op in ops:
                match op:
                    case Create():
                        transaction.create(op.key, op.value, self._acl_of(op.key), op.ephemeral)
                    case SetValue():
                        transaction.set_data(op.key, op.value, op.version)
                    case Delete():
                        transaction.delete(op.key, op.version)
                    case CheckVersion():
                        transaction.check(op.key, op.version)
            return transaction.commit_async()

        if not ops:
            self._check_usable()
            return
        failure = self._first_failure(ops, await self._ask("multi", ops[0].key, start, session=session), self.hosts)
        if failure is not None:
            raise failure

    async def sync(self, path: str) -> None:
        await self._ask("sync", path, lambda client: client.sync_async(path))

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if os.getpid() != self._pid:
            return  # the connection and the session are the parent's
        if self._closing is None:
            self._closing = self._loop.create_future()
            for handle in (self._flushing, self._sweeper):
                if handle is not None:
                    handle.cancel()
            self._watches.take_all()
            for request in (*self._again, *self._waiting, *self._unanswered):
                self._fail(request, MetadataUnavailable(_CLOSED))
            try:
                await self._link.stop(_CLOSE_S)
            finally:
                self._closing.set_result(None)
        await asyncio.shield(self._closing)

    # requests, on the loop

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClient(f"the session with {self.hosts} was opened before a fork: connect again in the child")
        if self._closing is not None:
            raise MetadataUnavailable(_CLOSED)
        if self._refused:
            raise AccessRefused(self.hosts, self._refused)
        if self._count >= _MAX_WAITING:
            raise MetadataUnavailable(f"{self._count} operations wait for {self.hosts}, the limit; try again later")

    async def _ask(
        self, kind: str, key: str, start: Start, watch: Notify | None = None, version: int = 0, session: int = 0
    ) -> Any:
        self._check_usable()
        deadline = self._loop.time() + self._timeout_s
        request = _Request(kind, key, version, start, watch, session, self._loop.create_future(), deadline)
        self._count += 1
        self._waiting.append(request)
        self._unanswered.append(request)
        self._flush_soon()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        return await request.future

    def _flush_soon(self) -> None:
        if self._flushing is None and self._connected and self._closing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        for _ in range(_BATCH):
            # kazoo's thread notices a lost connection first; a request handed to it now would be sent some time later.
            if not self._waiting or not self._connected or not self._link.client.connected:
                return
            self._send(self._waiting.popleft())
        self._flush_soon()

    def _send(self, request: _Request) -> None:
        if request.future.done():  # given up or out of time before it was sent
            self._settled(request)
            return
        if request.session and request.session != (self._link.client.client_id or (0,))[0]:
            self._fail(request, NoSuchKey(request.key))
            return
        if request.kind == "sync":
            self.operations.syncs += 1
        elif request.kind in READS:
            self.operations.reads += 1
        else:
            self.operations.writes += 1
        try:
            request.result = request.start(self._link.client)
        except (TypeError, ValueError) as error:
            self._fail(request, InvalidArgument(f"{request.key}: {error}"))
            return
        self._link.follow(request.result, partial(self._answered, request))

    def _settled(self, request: _Request) -> bool:
        """Mark the request as settled; return False if it was before."""
        first = not request.settled
        request.settled = True
        self._count -= first
        return first

    def _fail(self, request: _Request, error: Exception) -> None:
        if self._settled(request) and not request.future.done():
            request.future.set_exception(error)

    def _answered(self, request: _Request, result: Any) -> None:
        error = result.exception
        if request.settled or result is not request.result:
            return
        if error is None:
            if request.watch is not None:
                self._watches.add(request.key, request.watch, children=request.kind == "children")
            self._settled(request)
            if not request.future.done():
                request.future.set_result(result.value)
        elif isinstance(error, self._connection_errors):
            self._cut_off(request, type(error).__name__)
        else:
            self._fail(request, self._translate(error, request.kind, request.key, request.version, self.hosts))

    def _cut_off(self, request: _Request, why: str) -> None:
        """Handle the end of the connection before an answer: reads are sent again, on the next one."""
        if request.settled:
            return
        request.result = None
        if request.kind in READS and not request.future.done():
            self._again.append(request)
            return
        self._fail(request, self._unanswered_error(request.kind, request.key, self.hosts, why))

    def _sweep(self) -> None:
        """Fail requests that ran out of time; one timer for all, as they do so in the order in which they came."""
        now, unanswered = self._loop.time(), self._unanswered
        while unanswered and (unanswered[0].settled or unanswered[0].deadline <= now):
            request = unanswered.popleft()
            self._fail(request, MetadataUnavailable(f"{request.key}: {self._why_silent(now)}"))
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if unanswered else None

    def _why_silent(self, now: float) -> str:
        if self._connected:
            return f"no answer from ZooKeeper at {self.hosts} within {self._timeout_s:g} s"
        away = now - self._away_since
        return f"ZooKeeper has been out of reach for {away:.1f} s; waiting for a server at {self.hosts}"

    # the connection

    def _state_changed(self, state: str, session: int) -> None:
        if state == "CONNECTED":
            self._reconnected(session)
            return
        if self._connected:
            self._connected, self._away_since = False, self._loop.time()
            _log.warning("connection to ZooKeeper at %s lost; waiting for a server", self.hosts)
        if state == "AUTH_FAILED":
            self._refused = "the servers refuse this session's credentials"
            for request in (*self._again, *self._waiting):
                self._fail(request, AccessRefused(self.hosts, self._refused))
        elif state == "CLOSED":
            for request in [request for request in self._unanswered if request.result is not None]:
                self._cut_off(request, "the connection ended")

    def _reconnected(self, session: int) -> None:
        before, self._session = self._session, session
        self._connected, self._refused = True, ""
        # A server may lag behind, and what was sent before may still be on its way to the leader by another one. After
        # a sync, reads are not older than this connection, and show for good whether those happened.
        self.operations.syncs += 1
        self._link.client.sync_async("/")
        self._waiting.extendleft(reversed(self._again))
        self._again.clear()
        self._flush_soon()
        if before and before != session:
            _log.warning("session with ZooKeeper at %s was lost; a new one serves", self.hosts)
            for notify in list(self._lost):
                self._notify(self._loop, notify)
        for notify in self._watches.take_all():  # kazoo does not set them again on the new connection
            self._notify(self._loop, notify)

    def _node_changed(self, path: str, change: Change) -> None:
        for notify in self._watches.take(path, change):
            self._notify(self._loop, notify)


def _stat(stat: Any) -> ZkStat:
    return ZkStat(stat.version, stat.ctime, stat.ephemeralOwner, stat.numChildren, stat.cversion)
