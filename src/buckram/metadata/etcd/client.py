"""`EtcdClient`: requests to whichever member of an etcd cluster answers, each with a deadline.

All of a client's traffic goes to one member at a time. When that one fails, streams move on with the requests, so
nothing waits on a member that others found dead. A mutation is sent twice only if the first never left. etcd's refusals
become Buckram's errors by which of its answers prove that nothing happened, and by what helps.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

from buckram.core.backoff import STORE_CALL, Delays
from buckram.errors import (
    AccessRefused,
    ConfigError,
    ForkedClient,
    InvalidArgument,
    MetadataError,
    MetadataUnavailable,
    ValueTooLarge,
)
from buckram.runtime.net.http_client import BadAnswer, HttpConnection

# -- refusals of etcd -----------------------------------------------------------------------------------------

# gRPC's codes, as the gateway's JSON has them.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, EXHAUSTED, OUT_OF_RANGE, UNAUTHENTICATED = 3, 5, 7, 8, 11, 16

UNAVAILABLE = 14

REQUEST_LIMIT = 1_572_864
"""etcd's default of --max-request-bytes."""

OPS_LIMIT = 128
"""etcd's default of --max-txn-ops; conditions count like operations."""

_STALE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")

_TRANSIENT = (2, 4, 13, UNAVAILABLE)
"""gRPC codes unknown, deadline exceeded, internal, unavailable: it is open whether the change happened."""


class EtcdRefused(Exception):
    """An error that etcd answered. `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def stale_token(self) -> bool:
        """Return whether the token must be fetched (anew); nothing happened then."""
        return any(words in self.message for words in _STALE_TOKEN)

    @property
    def transient(self) -> bool:
        return self.code in _TRANSIENT

    @property
    def overloaded(self) -> bool:
        """Return whether the server takes no more requests just now; nothing happened then."""
        return "too many requests" in self.message

    @property
    def no_lease(self) -> bool:
        return self.code == NOT_FOUND and "lease" in self.message

    @property
    def compacted(self) -> bool:
        return self.code == OUT_OF_RANGE


def translate(
    refused: EtcdRefused, what: str, hosts: str, size: int = 0
) -> MetadataError | ConfigError | InvalidArgument:
    """Return the error for callers. `what` names the key, `size` is the request's."""
    said = f"etcd at {hosts} says {refused.message!r}"
    if refused.code in (PERMISSION_DENIED, UNAUTHENTICATED) or "authentication" in refused.message:
        return AccessRefused(what, f"{said}: give user and password in the URI or in BUCKRAM_ETCD_AUTH")
    if refused.stale_token:
        return AccessRefused(
            what, f"{said}: it needs a user and a password: give them in the URI or in BUCKRAM_ETCD_AUTH"
        )
    if "too large" in refused.message:
        return ValueTooLarge(f"{what} ({said}; its --max-request-bytes can be raised)", size, REQUEST_LIMIT)
    if "too many operations" in refused.message:
        return InvalidArgument(
            f"{what}: {said}: conditions and operations of one multi are limited to {OPS_LIMIT} each unless the "
            "servers' --max-txn-ops says otherwise; do less in one multi"
        )
    if refused.code == EXHAUSTED and "space" in refused.message:
        return MetadataUnavailable(
            f"{what}: {said}: compact and defragment its database, or raise --quota-backend-bytes, then "
            "`etcdctl alarm disarm`; until then nothing can be written"
        )
    if refused.code == NOT_FOUND and refused.message == "Not Found":
        return ConfigError(f"{said}: it is no etcd 3.5 or later, or runs with --enable-grpc-gateway=false")
    if refused.transient or refused.overloaded:
        return MetadataUnavailable(f"{what}: {said}; whether it happened is not known")
    return MetadataError(f"{what}: {said}")


# -- the client -----------------------------------------------------------------------------------------------

_log = logging.getLogger("buckram.etcd")

Answer = dict[str, Any]

_CONNECT_S = 2.0

_ANSWER_S = 3.0
"""Seconds after which a read is asked again, of the next member."""

_MAX_CONNECTIONS = 16

_MAX_WAITING = 10_000

_MAX_TOKENS = 2

CLOSED = "this metadata store was closed"


class EtcdClient:
    """Client of one etcd cluster. `hosts` are host:port each; `credentials` user and password.

    Close it on the loop it was made on. Every call ends within `timeout_s`: with the answer, with Refused, or with
    MetadataUnavailable, which names the hosts and how the last one failed.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.hosts = ",".join(hosts)
        self.timeout_s = timeout_s
        self._all, self._credentials, self._tls = hosts, credentials, tls
        self._at = random.randrange(len(hosts))  # many clients shall not all ask the first
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._idle: list[HttpConnection] = []
        self._busy: dict[HttpConnection, None] = {}
        self._streams: dict[HttpConnection, None] = {}
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._waiting = 0
        self._token = ""
        self._signing_in = asyncio.Lock()
        self._closed = False

    @property
    def forked(self) -> bool:
        """Return whether this is the copy of a child process: connections and session are the parent's."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        if self.forked:
            raise ForkedClient(f"the session with {self.hosts} was opened before a fork: connect again in the child")
        if self._closed:
            raise MetadataUnavailable(CLOSED)

    async def call(self, path: str, body: Mapping[str, Any], what: str, *, repeat: bool) -> Answer:
        """Make one request. `what` names it in errors. `repeat`: it may be sent again when its answer is lost.

        Refused is raised as it is; `translate` makes it an error for callers.
        """
        self.check_usable()
        if self._waiting >= _MAX_WAITING:
            raise MetadataUnavailable(f"{self._waiting} operations wait for {self.hosts}, the limit; try again later")
        self._waiting += 1
        attempt = _Attempt(path, json.dumps(body).encode(), what, repeat)
        try:
            async with asyncio.timeout(self.timeout_s), self._slots:
                return await self._try(attempt)
        except TimeoutError:
            self.leave(attempt.at)
            why = attempt.why or f"no answer within {self.timeout_s:g} s"
            raise MetadataUnavailable(
                f"{what}: etcd is out of reach at {self.hosts} ({why}); gave up after {self.timeout_s:g} s"
            ) from None
        finally:
            self._waiting -= 1

    async def call_translated(self, path: str, body: Mapping[str, Any], what: str, *, repeat: bool) -> Answer:
        """Make one request like `call`, with what etcd refuses as an error for callers."""
        try:
            return await self.call(path, body, what, repeat=repeat)
        except EtcdRefused as refused:
            raise translate(refused, what, self.hosts) from None

    async def _try(self, attempt: _Attempt) -> Answer:
        delays = Delays(STORE_CALL, random)
        tokens = 0
        while True:
            at = attempt.at = self._at
            try:
                return await self._once(attempt)
            except EtcdRefused as refused:
                if refused.stale_token and self._credentials is not None and tokens < _MAX_TOKENS:
                    tokens += 1
                    self._token = ""
                    continue
                if not (refused.overloaded or (refused.transient and attempt.repeat)):
                    if refused.transient:
                        self.leave(at)
                    raise
                attempt.why = f"{self._all[at]} says {refused.message!r}"
            except (OSError, TimeoutError, ValueError) as error:
                self.check_usable()
                attempt.why = f"{self._all[at]}: {error or 'no answer'}"
                if attempt.sent and not attempt.repeat:
                    self.leave(at)
                    raise MetadataUnavailable(
                        f"{attempt.what}: {attempt.why}; whether it happened is not known"
                    ) from None
            self.leave(at)
            await asyncio.sleep(delays.take() if self._at <= at else 0)

    async def _once(self, attempt: _Attempt) -> Answer:
        attempt.sent = False
        headers = await self._headers()
        connection = await self._connection()
        self._busy[connection] = None
        try:
            attempt.sent = True
            async with asyncio.timeout(_ANSWER_S if attempt.repeat else None):
                status, answer = await connection.ask(f"/v3/{attempt.path}", headers, attempt.body)
        finally:
            del self._busy[connection]
        if connection.usable and not self._closed and connection.host == self._all[self._at]:
            self._idle.append(connection)
        else:
            connection.close()
        return _parsed(status, answer)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Answer]:
        """Yield answers as they come, from the current member; ends when the client leaves that member.

        OSError, TimeoutError and Refused are the caller's to deal with.
        """
        self.check_usable()
        headers = await self._headers()
        connection = await self._connection(reuse=False)
        self._streams[connection] = None
        try:
            async for line in connection.lines(f"/v3/{path}", headers, json.dumps(body).encode()):
                if line.strip():
                    yield _result(line)
        except EtcdRefused as refused:
            if refused.stale_token:
                self._token = ""
            raise
        finally:
            self._streams.pop(connection, None)

    async def _headers(self) -> dict[str, str]:
        # Without it a member that has lost its leader keeps a stream open and silent.
        headers = {"Grpc-Metadata-hasleader": "true"}
        if self._credentials is not None:
            headers["Authorization"] = self._token or await self._sign_in()
        return headers

    async def _sign_in(self) -> str:
        assert self._credentials is not None
        async with self._signing_in:
            if self._token:
                return self._token
            name, password = self._credentials
            connection = await self._connection()
            self._busy[connection] = None
            try:
                async with asyncio.timeout(_ANSWER_S):
                    body = json.dumps({"name": name, "password": password}).encode()
                    answer = _parsed(*await connection.ask("/v3/auth/authenticate", {}, body))
                self._token = str(answer["token"])
            except EtcdRefused as refused:
                if "not enabled" not in refused.message:
                    raise
                self._token = "none"  # this etcd has no authentication
            except KeyError:
                raise BadAnswer("no token in the answer to user and password") from None
            finally:
                del self._busy[connection]
            self._idle.append(connection)
            return self._token

    async def _connection(self, *, reuse: bool = True) -> HttpConnection:
        while reuse and self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        host = self._all[self._at]
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await HttpConnection.open(host, self._tls)
        except TimeoutError:
            raise ConnectionError(f"no connection within {_CONNECT_S:g} s") from None
        if self._closed:
            connection.close()
            self.check_usable()
        return connection

    @property
    def at(self) -> int:
        """Return the number of the current member.

        `leave` takes it as proof that no other call has left that member meanwhile.
        """
        return self._at

    def leave(self, at: int) -> None:
        """Leave a member that failed, and ask the next one."""
        if at != self._at:
            return
        self._at = (at + 1) % len(self._all)
        left = [*self._idle, *self._streams]
        self._idle.clear()
        for connection in left:
            connection.close()

    def close(self) -> None:
        """Close all connections; everything that waits fails. Idempotent."""
        self._closed = True
        for connection in (*self._idle, *self._busy, *self._streams):
            connection.close()
        self._idle.clear()


class _Attempt:
    """One call on its way: its content, whether it has left, and why it is not answered yet."""

    __slots__ = ("at", "body", "path", "repeat", "sent", "what", "why")

    def __init__(self, path: str, body: bytes, what: str, repeat: bool) -> None:
        self.path, self.body, self.what, self.repeat = path, body, what, repeat
        self.sent = False
        self.at = -1
        self.why = ""


def _parsed(status: int, answer: bytes) -> Answer:
    if status == 404 and not answer.startswith(b"{"):
        raise EtcdRefused(NOT_FOUND, "Not Found")  # whoever answers there has no gateway
    found = _json(answer)
    if status != 200:
        raise EtcdRefused(int(found.get("code", 2)), str(found.get("message", found.get("error", status))))
    # The gateway answers a request that is a stream in gRPC (keep-alives) as a stream of one line.
    inner = found.get("result")
    return inner if isinstance(inner, dict) else found


def _result(line: bytes) -> Answer:
    found = _json(line)
    error = found.get("error")
    if isinstance(error, dict):
        raise EtcdRefused(int(error.get("grpc_code") or error.get("code") or 2), str(error.get("message", "")))
    if "result" not in found:
        raise EtcdRefused(int(found.get("code", 2)), str(found.get("message", error)))
    result: Answer = found["result"]
    return result


def _json(text: bytes) -> Answer:
    try:
        found = json.loads(text)
    except ValueError:
        raise BadAnswer(f"{text[:80]!r} is no answer of etcd's") from None
    if not isinstance(found, dict):
        raise BadAnswer(f"{text[:80]!r} is no answer of etcd's")
    return found
