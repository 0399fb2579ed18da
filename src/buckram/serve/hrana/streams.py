"""Streams, as Hrana calls a connection to a database. Between requests a stream waits here under its baton, for a time.

A baton identifies a client's stream to the server, is a new one after each request, and cannot be forged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import struct
from collections.abc import Callable

from buckram.core.tenants.fair_share import FairShare, holder_of
from buckram.runtime.process.tasks import TaskScope
from buckram.serve.hrana.error_replies import StreamRefusal
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.targets import Reading
from buckram.serve.http.application import Principal
from buckram.serve.http.limits import option_of
from buckram.serve.http.problems import HttpProblem, full
from buckram.sql.session import SqlSession
from buckram.state.db.database import Database
from buckram.state.db.opening import Use

_PLACE = struct.Struct(">QQ")
_MAC = 32


def encode_baton(key: bytes, stream_id: int, sequence: int) -> str:
    """The baton for the next request of a stream; `key` is this server's alone."""
    place = _PLACE.pack(stream_id, sequence)
    return base64.urlsafe_b64encode(place + hmac.digest(key, place, "sha256")).decode()


def decode_baton(key: bytes, baton: str) -> tuple[int, int] | None:
    """Stream and sequence of a baton; None for one that was not made with this key."""
    if len(baton) > 2 * (_PLACE.size + _MAC):
        return None
    try:
        data = base64.b64decode(baton, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    place, mac = data[: _PLACE.size], data[_PLACE.size :]
    if len(place) < _PLACE.size or not hmac.compare_digest(mac, hmac.digest(key, place, "sha256")):
        return None
    stream_id, sequence = _PLACE.unpack(place)
    return stream_id, sequence


class Texts:
    """Stored SQL texts, of one stream, or of one WebSocket."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._bytes = 0

    def store(self, sql_id: int, sql: str, limits: HranaLimits) -> None:
        if sql_id in self._texts:
            raise StreamRefusal("SQL_STORE_EXISTS", f"SQL text {sql_id} is stored already: close it, or use another id")
        if len(self._texts) >= limits.stored_texts or self._bytes + len(sql) > limits.stored_bytes:
            raise StreamRefusal(
                "SQL_STORE_TOO_LARGE",
                f"{len(self._texts)} texts of {self._bytes} characters are stored already, the limits are "
                f"{limits.stored_texts} and {limits.stored_bytes}: close some ({option_of('stored_texts')}, "
                "stored_bytes)",
            )
        self._texts[sql_id] = sql
        self._bytes += len(sql)

    def forget(self, sql_id: int) -> None:
        self._bytes -= len(self._texts.pop(sql_id, ""))

    def text(self, sql_id: int) -> str:
        if sql_id not in self._texts:
            raise StreamRefusal("SQL_NOT_FOUND", f"there is no stored SQL text {sql_id}: store it first")
        return self._texts[sql_id]


class Stream:
    """One stream: a session with the texts that its client stored. One request at a time."""

    def __init__(
        self, stream_id: int, session: SqlSession, database: str, principal: Principal, use: Use | None = None
    ) -> None:
        self.id, self.session, self.database, self.principal = stream_id, session, database, principal
        self.use = use
        """Keeps the database open between requests."""
        self.sequence = 0
        self.busy = True
        self.closed = False
        self.idle_since = 0.0
        self.texts = Texts()


class Streams:
    """All open streams of a server. `close` rolls back what they have open."""

    def __init__(self, limits: HranaLimits) -> None:
        self._limits = limits
        self._key = secrets.token_bytes(32)
        self._streams: dict[int, Stream] = {}
        self._idle: dict[int, Stream] = {}
        """Idle streams by id, in the order in which they expire."""
        self._share = FairShare(limits.streams)
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._scope = TaskScope("hrana streams")

    def __len__(self) -> int:
        return len(self._streams)

    def check_room(self, principal: Principal) -> None:
        """Check that a principal may open another stream. Raises HttpProblem if too many are open."""
        limit, holder = self._limits.streams, holder_of(principal.name)
        if not self._share.has_room(holder):
            count, do = len(self._streams), "close streams that are not needed"
            what = self._share.said(holder, "streams are open")
            raise full("TOO_MANY_STREAMS", what, count, limit, option="streams", do=do, retry_after_s=1)

    def open(self, session: SqlSession, database: str, principal: Principal, use: Use) -> Stream:
        """A new stream, which is busy; `use` ends with it."""
        self._last_id += 1
        stream = Stream(self._last_id, session, database, principal, use)
        self._streams[stream.id] = stream
        self._share.take(holder_of(principal.name))
        return stream

    def knows(self, baton: str) -> bool:
        """Return whether this server made the baton, since its start."""
        return decode_baton(self._key, baton) is not None

    def take(self, baton: str, database: str, principal: Principal) -> Stream:
        """The stream of a baton, which is busy now. Raises HttpProblem."""
        place = decode_baton(self._key, baton)
        if place is None:
            raise _refused("BATON_INVALID", "this server did not make the baton, or made it before it was restarted")
        stream = self._streams.get(place[0])
        if stream is None:
            raise _refused(
                "STREAM_EXPIRED",
                f"the stream is closed; one without a request for {self._limits.stream_idle_s:g} s is closed by itself "
                f"({option_of('stream_idle_s')})",
            )
        if (stream.database, stream.principal) != (database, principal):
            raise _refused("BATON_INVALID", f"the baton is not of a stream of database {database}, or of another user")
        if stream.busy or stream.sequence != place[1]:
            raise _refused("BATON_REUSED", "the baton was used before; a stream takes one request after the other")
        stream.busy = True
        self._idle.pop(stream.id)
        return stream

    def baton(self, stream: Stream) -> str | None:
        """Return the baton for the client's next request; None for a closed stream. Call it once for each request."""
        if stream.closed:
            return None
        stream.sequence += 1
        return encode_baton(self._key, stream.id, stream.sequence)

    async def release(self, stream: Stream) -> None:
        """End a request: the stream waits for the next one, or is dropped if it was closed."""
        if stream.closed:
            await self.drop(stream)
            return
        stream.busy, stream.idle_since = False, asyncio.get_running_loop().time()
        self._idle[stream.id] = stream
        if self._timer is None:
            self._arm()

    def finish(self, stream: Stream, *, closed: bool) -> None:
        """As `release`, or `drop` if it is `closed`, without waiting."""
        stream.closed = stream.closed or closed
        self._scope.spawn(self.release(stream), f"end of a request on stream {stream.id}")

    async def drop(self, stream: Stream) -> None:
        """Close a stream now, as its client has closed it or disconnected."""
        stream.closed = True
        if self._streams.pop(stream.id, None) is not None:
            self._share.give(holder_of(stream.principal.name))
        self._idle.pop(stream.id, None)
        try:
            await stream.session.close()
        finally:
            if stream.use is not None:
                stream.use.give()

    async def close_idle(self) -> None:
        """Close the streams that wait for their next request, which a server that stops will not take."""
        for stream in list(self._idle.values()):
            await self.drop(stream)

    async def close(self) -> None:
        """Close all."""
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.close()
        for stream in list(self._streams.values()):
            await self.drop(stream)

    def _arm(self) -> None:
        """One timer for all: until the stream that waits longest expires."""
        first = next(iter(self._idle.values()), None)
        if first is None:
            self._timer = None
            return
        when = first.idle_since + self._limits.stream_idle_s
        self._timer = asyncio.get_running_loop().call_at(when, self._expire)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for stream in list(self._idle.values()):
            if stream.idle_since + self._limits.stream_idle_s > now:
                break
            self._idle.pop(stream.id)
            self._scope.spawn(self.drop(stream), f"expiry of stream {stream.id}")
        self._arm()


def session_of(
    database: Database, reading: Reading, may_write: bool, on_refused: Callable[[], None] | None = None
) -> SqlSession:
    """A session whose reads are served so."""
    return SqlSession(
        database,
        consistency=reading.consistency,
        at_most_s=reading.at_most_s,
        may_write=may_write,
        on_refused=on_refused,
    )


def _refused(code: str, message: str) -> HttpProblem:
    return HttpProblem(400, code, f"{message}: open a new stream")
