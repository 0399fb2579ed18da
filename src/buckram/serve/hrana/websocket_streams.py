"""Lane: one stream on a WebSocket. Its statements are executed here, or by the leader, where this replica follows.

At the leader a lane is a stream over HTTP, whose baton is kept here. Not here: messages (`serve/hrana/websockets.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, NamedTuple

from buckram.serve.hrana.databases import Databases
from buckram.serve.hrana.error_replies import EXPECTED, StreamRefusal, error_of
from buckram.serve.hrana.forwarding import Forwarder, rights_sent
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.pipeline import Pipeline, SendOn
from buckram.serve.hrana.protocol.requests import Sizes, parse_batch, parse_request
from buckram.serve.hrana.streams import Stream, Streams, session_of
from buckram.serve.hrana.targets import Reading
from buckram.serve.http.application import Principal
from buckram.sql.session import SqlSession
from buckram.state.db.commits.write_queue import CALLER
from buckram.state.db.database import Database
from buckram.state.db.opening import Use

_LOST = ("STREAM_EXPIRED", "BATON_INVALID")
_KEPT = (b"pragma", b"buckram_")
"""Texts of statements with effects on the session that outlast a transaction."""


class Places(NamedTuple):
    """The parts of a server that execute statements."""

    databases: Databases
    streams: Streams
    forwarder: Forwarder
    limits: HranaLimits
    sizes: Sizes
    refused: Callable[[str, str], None] = lambda principal, kind: None
    """Called when a statement is refused, with the name of its principal and the error's code."""

    def session(self, database: Database, reading: Reading, principal: Principal, may_write: bool) -> SqlSession:
        """Return a session for a principal."""
        on_refused = partial(self.refused, principal.name, "SQLITE_READONLY")
        return session_of(database, reading, may_write, on_refused)


class Rights(NamedTuple):
    """The principal of a request and whether it may write, checked anew for each request."""

    principal: Principal
    may_write: bool


class Lane:
    """One stream, and one request at a time. `open`, then `ask` and `entries`, then `close`."""

    def __init__(self, places: Places, reading: Reading) -> None:
        self._places, self._reading = places, reading
        self._stream: Stream | None = None
        self._rights: Rights
        """Rights of the last request that went to the leader."""
        self._use: Use | None = None
        self._untouched = True
        """True if no statement has been executed on this stream here."""
        self._baton: str | None = None
        self._in_transaction = self._remembers = False
        """State of the stream at the leader: in a transaction, and holding settings that would be lost with it."""
        self._lost: StreamRefusal | None = None

    async def open(self, rights: Rights) -> None:
        """Open the stream. Raises HttpProblem if there are too many streams or no such database."""
        streams, reading = self._places.streams, self._reading
        streams.check_room(rights.principal)
        self._use = await self._places.databases.take(reading.database)
        session = self._places.session(self._use.database, reading, rights.principal, rights.may_write)
        key = reading.key(rights.may_write)
        self._stream, self._rights = streams.open(session, key, rights.principal, self._use), rights

    async def ask(self, raw: dict[str, Any], rights: Rights) -> dict[str, Any]:
        """The result or the error of a request, as of a pipeline. Raises EXPECTED, HttpProblem."""
        stream = self._opened()
        request = parse_request(raw, "request", self._places.sizes)
        if self._is_elsewhere(stream):
            return await self._ask_leader(stream, raw, rights)
        work = self._work(stream, rights)
        try:
            (result,) = await work.run((request,))
        except SendOn:
            return await self._ask_leader(stream, raw, rights)
        self._untouched = work.untouched
        return result

    async def entries(self, raw: Any, rights: Rights) -> AsyncGenerator[dict[str, Any]]:
        """The entries of a cursor over a batch."""
        stream = self._opened()
        batch = parse_batch(raw, "batch", self._places.sizes)
        if not self._is_elsewhere(stream):
            work = self._work(stream, rights)
            try:
                async for entry in work.entries(batch):
                    self._untouched = work.untouched
                    yield entry
                return
            except SendOn:
                pass
            except EXPECTED as error:
                yield {"type": "error", "error": error_of(error)}
                return
        given = await self._ask_leader(stream, {"type": "batch", "batch": raw}, rights)
        if given["type"] == "error":
            yield given
            return
        for entry in _entries_of(given["response"]["result"]):
            yield entry

    async def close(self) -> None:
        """Close the stream and roll back its open transaction. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            # What is open at the leader ends with its time, or with this.
            baton, self._baton = self._baton, None
            try:
                if baton is not None and self._in_transaction:
                    await self._send(stream, {"baton": baton, "requests": [{"type": "close"}]})
            except Exception as error:
                del error
            finally:
                await self._places.streams.drop(stream)

    def _opened(self) -> Stream:
        if self._lost is not None:
            raise self._lost
        if self._stream is None:
            raise StreamRefusal("STREAM_CLOSED", "the stream is closed: open a new one")
        return self._stream

    def _is_elsewhere(self, stream: Stream) -> bool:
        if self._baton is not None:
            return True
        follows = self._reading.consistency != "stale" and stream.session.database.role != "leader"
        return follows and self._untouched

    def _work(self, stream: Stream, rights: Rights) -> Pipeline:
        CALLER.set(str(rights.principal))
        stream.session.may_write = rights.may_write
        return Pipeline(stream, self._places.limits, fresh=self._untouched)

    # -- at the leader ------------------------------------------------------------------------------------

    async def _ask_leader(self, stream: Stream, raw: dict[str, Any], rights: Rights) -> dict[str, Any]:
        body = {"baton": self._baton, "requests": [raw, {"type": "get_autocommit"}]}
        self._rights = rights
        sent = await self._send(stream, body)
        if sent is None:
            return await self._begin_again(StreamRefusal("STREAM_EXPIRED", _GONE), raw, rights)
        status, answer = sent
        if status != 200:
            refusal = StreamRefusal(str(answer.get("code", "UNKNOWN")), str(answer.get("message", "")))
            if self._baton is not None and refusal.code in _LOST:
                return await self._begin_again(refusal, raw, rights)
            raise refusal
        self._baton = answer["baton"]
        result, autocommit = answer["results"]
        self._in_transaction = autocommit.get("response", {}).get("is_autocommit") is False
        self._remembers = self._remembers or any(word in json.dumps(raw).lower().encode() for word in _KEPT)
        return dict(result)

    async def _begin_again(self, refusal: StreamRefusal, raw: dict[str, Any], rights: Rights) -> dict[str, Any]:
        """Repeat the request on a new stream, as the one at the leader is gone and nothing of the request was done.
        Raises the refusal if a transaction or settings were lost with the stream.
        """
        if self._baton is not None and (self._in_transaction or self._remembers):
            # What comes next was not meant to be executed alone.
            self._lost = refusal
            raise refusal
        self._baton = None
        return await self.ask(raw, rights)

    async def _send(self, stream: Stream, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """The leader's status and answer; None if this replica leads."""
        path, rights = f"/{self._reading.address}/v3/pipeline", self._rights
        raw = json.dumps(body, ensure_ascii=False).encode()
        headers = rights_sent(rights.may_write)
        sent = await self._places.forwarder.send(stream.session.database, path, headers, raw, rights.principal)
        return None if sent is None else (sent.status, json.loads(sent.body))


_GONE = "the leader of the stream is gone, and its transaction with it: open a new stream"


def _entries_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of a batch as entries of a cursor."""
    found: list[dict[str, Any]] = []
    for at, (given, error) in enumerate(zip(result["step_results"], result["step_errors"], strict=True)):
        if given is not None:
            counts = {key: given[key] for key in ("affected_row_count", "last_insert_rowid")}
            found.append({"type": "step_begin", "step": at, "cols": given["cols"]})
            found += ({"type": "row", "row": row} for row in given["rows"])
            found.append({"type": "step_end", **counts})
        elif error is not None:
            found.append({"type": "step_error", "step": at, "error": error})
    return found
