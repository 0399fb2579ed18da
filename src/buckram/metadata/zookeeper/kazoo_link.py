"""`KazooLink`: a kazoo client, and the way from its thread to the loop.

States, changes of nodes and results come over in one queue, in the order in which the thread saw them, many with one
wake-up. kazoo's exceptions become errors of the operation that met them.

Not here: what the states and changes mean (`metadata/zookeeper/kazoo_session.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler

from buckram.errors import (
    AccessRefused,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import split
from buckram.metadata.zookeeper.kazoo_handler import OneThreadHandler, OnResult, Result
from buckram.metadata.zookeeper.session import READS, Change
from buckram.types import Create, KeyOp

_log = logging.getLogger("buckram.zookeeper")

_kazoo_log = logging.getLogger("buckram.zookeeper.kazoo")

_kazoo_log.setLevel(logging.ERROR)  # it repeats warnings that kazoo_session logs once

_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.4}

_RESTART_S = 0.25

_REFUSED_S = 5.0

_BATCH = 500

SASL = "sasl"
"""The scheme of credentials that log in by SASL DIGEST-MD5, for servers that ask for that."""

_CHANGES = {change.name: change for change in Change}


class OnState(Protocol):
    def __call__(self, state: str, session: int, /) -> None:
        """Take note of a state, by kazoo's name, and of the session's id (0 without a session)."""
        ...


class OnNodeChange(Protocol):
    def __call__(self, path: str, change: Change, /) -> None:
        """Take note of what happened to a watched node."""
        ...


class KazooLink:
    """Calls `on_state` and `on_change` on the loop. It connects again by itself, whatever happened."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        auth: Sequence[tuple[str, str]],
        *,
        on_state: OnState,
        on_change: OnNodeChange,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._hosts, self._session_timeout_s, self._tls = hosts, session_timeout_s, tls
        self._auth = [(scheme, credential) for scheme, credential in auth if scheme != SASL]
        self._sasl = next((credential.partition(":")[::2] for scheme, credential in auth if scheme == SASL), None)
        self._on_state, self._on_change = on_state, on_change
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Callable[[], None]] = deque()
        self._woken = self._closed = self._refused = False
        self.client = self._start()

    def follow(self, result: Result, done: OnResult) -> None:
        """Have `done(result)` called on the loop. Call this in the same turn of the loop as the request was made.

        The result comes over from kazoo's thread whether or not it has a follower yet. Linked here, one that was
        settled meanwhile would come over behind the next change of the node: a watch set by it would wait for ever.
        """
        result.follower = done

    def event(self, event: Any) -> None:
        """Handle an event as kazoo's watcher, the same for all nodes."""
        if event.type in _CHANGES:
            self._arrive(partial(self._on_change, event.path, _CHANGES[event.type]))

    @property
    def ticket(self) -> str:
        session, password = self.client.client_id or (0, b"")
        return f"{session:x}-{password.hex()}"

    async def end_other(self, ticket: str, wait_s: float) -> None:
        """Take another session over and close it."""
        session, _, password = ticket.partition("-")
        try:
            identity = (int(session, 16), bytes.fromhex(password))
        except ValueError:
            raise InvalidArgument(f"{ticket[:40]!r} is no ticket of a ZooKeeper session") from None
        client = KazooClient(
            hosts=self._hosts.replace(";", ","),
            client_id=identity,
            timeout=self._session_timeout_s,
            handler=ThreadingHandler(self._tls),
            logger=_kazoo_log,
        )
        try:
            await asyncio.to_thread(client.start, wait_s)
        except (client.handler.timeout_exception, KazooException, OSError) as error:
            raise MetadataUnavailable(f"{self._hosts}: an earlier session could not be ended: {error!r}") from error
        finally:
            await asyncio.to_thread(_stop, client)

    async def stop(self, wait_s: float) -> None:
        """End the session. A server that takes connections and is silent may keep the thread for longer."""
        self._closed = True
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(_stop, self.client))], timeout=wait_s)

    def _start(self) -> Any:
        hosts = self._hosts.replace(";", ",")
        # As Apache's client has it: after silence there is time left to try every server before the session ends.
        handler = OneThreadHandler(
            self._session_timeout_s / (hosts.count(",") + 1),
            self._session_timeout_s * 2 / 3,
            on_result=lambda result: self._arrive(partial(_hand_over, result)),
            on_end=lambda: self._arrive(partial(self._ended, client)),
            tls=self._tls,
        )
        client = KazooClient(
            hosts=hosts,
            timeout=self._session_timeout_s,
            handler=handler,
            auth_data=list(self._auth),
            sasl_options=None if self._sasl is None else sasl_options(*self._sasl),
            connection_retry=dict(_RECONNECT),
            logger=_kazoo_log,
        )
        client.add_listener(partial(self._state, client))
        client.start_async()
        return client

    def _restart(self) -> None:
        if self._closed:
            return
        try:
            self.client = self._start()
        except (OSError, RuntimeError) as error:  # no file descriptors, no threads: perhaps later
            _log.error("the connection to ZooKeeper cannot be restored: %s", error)
            self._loop.call_later(_RESTART_S, self._restart)

    def _state(self, client: Any, _: str) -> None:
        session = client.client_id[0] if client.client_id else 0
        self._arrive(partial(self._state_changed, client, str(client.client_state), session))

    def _state_changed(self, client: Any, state: str, session: int) -> None:
        if client is self.client:
            self._refused = state == "AUTH_FAILED" or (self._refused and state == "CLOSED")
            self._on_state(state, session)

    def _ended(self, client: Any) -> None:
        """Note that kazoo's thread gave up, which it does on answers that it does not understand, and on refused
        credentials.
        """
        if client is self.client:
            self._on_state("CLOSED", 0)
            _stop(client)
            # A refused login may succeed later: the server is reconfigured, or the user is made meanwhile.
            self._loop.call_later(_REFUSED_S if self._refused else _RESTART_S, self._restart)

    def _arrive(self, item: Callable[[], None]) -> None:
        """Queue a function to run on the loop. May be called from any thread."""
        self._arrived.append(item)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed without closing this link
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False
        for _ in range(_BATCH):
            if self._closed or not self._arrived:
                return
            notify_safely(self._loop, self._arrived.popleft())
        if self._arrived and not self._woken:
            self._woken = True
            self._loop.call_soon(self._drain)


def _hand_over(result: Result) -> None:
    if result.follower is not None:  # kazoo has results of its own
        result.follower(result)


def notify_safely(loop: asyncio.AbstractEventLoop, notify: Callable[[], None]) -> None:
    """Call it; an exception goes to the loop, as with any callback, and does not keep others from being notified."""
    try:
        notify()
    except Exception as error:
        loop.call_exception_handler({"message": "a ZooKeeper session's callback failed", "exception": error})


def _stop(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # kazoo raises plain Exceptions for a thread that is still in a system call
        _log.info("the connection to ZooKeeper is still closing: %s", error)


class ThreadingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's own handler, with the TLS of this session."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, *given: Any, **named: Any) -> Any:
        sock = super().create_connection(*given, **named)
        if self._tls is None:
            return sock
        name = named.get("hostname") or named["address"][0]
        sock.setblocking(True)
        return self._tls().wrap_socket(sock, server_hostname=name.strip("[]"))


def sasl_options(user: str, password: str) -> dict[str, str]:
    """Return kazoo's options for a login by SASL DIGEST-MD5."""
    return {"mechanism": "DIGEST-MD5", "username": user, "password": password}


# -- kazoo's exceptions ---------------------------------------------------------------------------------------

CONNECTION_ERRORS = (
    kazoo.ConnectionLoss,
    kazoo.ConnectionClosedError,
    kazoo.OperationTimeoutError,
    kazoo.SessionExpiredError,
    kazoo.SessionMovedError,
)


def translate(error: Exception, kind: str, key: str, version: int, hosts: str) -> Exception:
    """Return the error of Buckram's tree for an operation `kind` on `key` that named `version`."""
    match error:
        case kazoo.NoNodeError():
            return NoSuchKey(split(key)[0] if kind == "create" else key)
        case kazoo.NodeExistsError():
            return KeyExists(key)
        case kazoo.BadVersionError():
            return VersionConflict(key, version)
        case kazoo.NotEmptyError():
            return KeyNotEmpty(key)
        case kazoo.NoAuthError():
            where = key if kind in READS or kind == "set" else f"{key} or its parent"
            return AccessRefused(where, f"the access list does not allow this session to {_VERBS.get(kind, kind)} it")
        case kazoo.InvalidACLError():
            return AccessRefused(key, "the servers do not know the credentials that its access list needs")
        case kazoo.NoChildrenForEphemeralsError():
            return InvalidArgument(f"key {key}: {split(key)[0]} is bound to a session and cannot have children")
        case kazoo.BadArgumentsError():
            return InvalidArgument(f"key {key}: ZooKeeper does not take it")
        case kazoo.AuthFailedError():
            return AccessRefused(hosts, "the servers refuse this session's credentials")
    return unanswered(kind, key, hosts, type(error).__name__)


def unanswered(kind: str, key: str, hosts: str, why: str) -> MetadataUnavailable:
    unsure = "" if kind in READS else "; whether it happened is not known"
    return MetadataUnavailable(f"{key}: {kind} at ZooKeeper {hosts}: {why}{unsure}")


def first_failure(ops: Sequence[KeyOp], results: Sequence[Any], hosts: str) -> Exception | None:
    """Return why a multi did not happen, None if it did; kazoo gives a result or an exception for each operation."""
    failures = [(op, result) for op, result in zip(ops, results, strict=False) if isinstance(result, Exception)]
    for op, failure in failures:
        # Operations around the failed one only report that they were rolled back or not tried.
        if not isinstance(failure, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            if isinstance(op, Create):
                return translate(failure, "create", op.key, -1, hosts)
            return translate(failure, "multi", op.key, op.version, hosts)
    if failures or len(results) != len(ops):
        return unanswered("multi", ops[0].key, hosts, "an answer that names no reason")
    return None


_VERBS = {"get": "read", "exists": "read", "children": "list", "set": "change", "multi": "change"}
