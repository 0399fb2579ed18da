"""A small HTTP/1.1 server: one request on each connection, bounded in size, time and number.

Not here: the served content (`bookie/pages/status_pages.py`, `serve/admin/`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from buckram.runtime.logs.process_log import about_request
from buckram.seams import Listener, Network
from buckram.types import BookieAddress

log = logging.getLogger("buckram.http")
LONGEST_HEAD, LONGEST_BODY = 8192, 64 * 1024
REQUEST_S = 10.0
"""Deadline in seconds for a complete request."""
WRITE_S = 30.0
"""Seconds after which a peer that takes nothing of the answer is disconnected."""
MOST_CONNECTIONS = 64
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
REQUEST_ID = "X-Request-Id"
"""A request may bring one; the answer and the lines of the log have it, or one of our own."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a peer. `method` is in capitals, HEAD is taken as GET; of repeated parameters the last one applies."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """Headers by name in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """`pieces`, where there are any, come after `content`; the length is not known then."""

    content: bytes
    status: int = 200
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    pieces: AsyncIterator[bytes] | None = None


def text_answer(text: str, status: int = 200) -> Answer:
    return Answer(text.encode(), status)


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> Answer:
    return Answer(json.dumps(value, indent=2).encode(), status, JSON, headers)


class Handler(Protocol):
    """Answers one request. What it raises is logged and answered with 500."""

    async def __call__(self, request: Request, /) -> Answer: ...


class BadRequest(Exception):
    """Error of a request that cannot be parsed; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def serve_http(network: Network, address: BookieAddress, handler: Handler) -> Listener:
    """Serve at `address` until the listener is closed. Raises OSError if the port is in use."""
    server = _Server(handler)

    def protocol() -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=LONGEST_HEAD)
        return asyncio.StreamReaderProtocol(reader, server.connected)

    return await network.listen(address.host, address.port, protocol)


class _Server:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._open = 0
        self._reading: dict[asyncio.StreamWriter, None] = {}
        """Those whose request is not there yet, the oldest first."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self._reading[writer] = None
        try:
            await self._exchange(reader, writer)
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._open -= 1
            self._reading.pop(writer, None)
            writer.close()

    def _make_room(self, writer: asyncio.StreamWriter) -> bool:
        """Abort the oldest connection that has not sent its request yet, so that idle connections do not keep probes
        out. Returns False if that is `writer` itself."""
        oldest = next(iter(self._reading))
        if oldest is writer:
            return False
        del self._reading[oldest]
        oldest.transport.abort()
        return True

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_body = True
        try:
            if self._open > MOST_CONNECTIONS and not self._make_room(writer):
                raise BadRequest(503, f"{MOST_CONNECTIONS} connections are open, which is the limit: try again later")
            async with asyncio.timeout(REQUEST_S):
                request, with_body = await _read(reader)
            self._reading.pop(writer, None)
            answer = await self._answer(request)
        except BadRequest as error:
            answer = text_answer(f"{error}\n", error.status)
        except asyncio.IncompleteReadError:
            return
        except TimeoutError:
            answer = text_answer(f"the request was not complete within {REQUEST_S:g} s\n", 408)
        await _write(writer, answer, with_body)

    async def _answer(self, request: Request) -> Answer:
        with about_request(request.headers.get(REQUEST_ID.lower(), "")) as name:
            try:
                found = await self._handler(request)
            except Exception:
                log.exception("%s %s", request.method, request.path)
                found = text_answer("Internal Server Error: the log says why\n", 500)
        return replace(found, headers={**found.headers, REQUEST_ID: name})


async def _read(reader: asyncio.StreamReader) -> tuple[Request, bool]:
    """Read a request; return it, and whether its answer has a body. Raises BadRequest, IncompleteReadError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(431, f"the head of the request is longer than {LONGEST_HEAD} bytes") from None
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise BadRequest(400, f"{first[:80]!r} is no request: needs METHOD /PATH HTTP/1.1")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await _body(reader, headers)
    path, _, query = words[1].partition("?")
    method = "GET" if words[0] == "HEAD" else words[0]
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    return Request(method, unquote(path), parameters, headers, body), words[0] != "HEAD"


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send the body with a Content-Length, not in chunks")
    said = headers.get("content-length", "0")
    if not (said.isascii() and said.isdigit()):
        raise BadRequest(400, f"Content-Length: {said[:40]!r} is no number of bytes")
    if int(said[:12]) > LONGEST_BODY:
        raise BadRequest(413, f"a body of {said[:12]} bytes is over the limit of {LONGEST_BODY}")
    return await reader.readexactly(int(said))


async def _write(writer: asyncio.StreamWriter, answer: Answer, with_body: bool) -> None:
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    if answer.pieces is None:
        lines.append(f"Content-Length: {len(answer.content)}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if with_body:
        writer.write(answer.content)
        await _drained(writer)
        if answer.pieces is not None:
            async for piece in answer.pieces:
                writer.write(piece)
                await _drained(writer)
    await _drained(writer)


async def _drained(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(WRITE_S):
        await writer.drain()
