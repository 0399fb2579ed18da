"""HTTP/1.1 as etcd's gateway speaks it: one request at a time on a connection, answers whole or line by line.

Only what that gateway needs: POST with a body of JSON, answers with a length or in chunks. Which server is asked, and
how often, is `client.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping

from buckram.addresses import host_port

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000))


class BadAnswer(OSError):
    """An answer that is not HTTP as etcd's gateway speaks it."""


class HttpConnection:
    """A connection to one server. After any error or cancellation it is closed, because its bytes are out of step."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.host = host
        self._reader, self._writer = reader, writer
        self.answered: Mapping[str, str] = {}
        """Headers of the last answer to `ask`, by their names in lower case."""

    @classmethod
    async def open(cls, host: str, tls: ssl.SSLContext | None) -> HttpConnection:
        name, port = host_port(host, f"server {host!r}")
        reader, writer = await asyncio.open_connection(name, port, limit=MAX_HEAD_BYTES, ssl=tls)
        _keep_alive(writer.get_extra_info("socket"))
        return cls(host, reader, writer)

    @property
    def usable(self) -> bool:
        """Return whether the connection is open as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Abort the connection at once; whoever reads from it gets an error."""
        self._writer.transport.abort()

    async def ask(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the whole body of the answer."""
        try:
            await self._send(path, headers, body)
            status, found = await self._head()
            self.answered = found
            answer = bytearray()
            async for piece in self._body(found):
                answer += piece
                if len(answer) > MAX_BODY_BYTES:
                    raise BadAnswer(f"an answer of more than {MAX_BODY_BYTES} bytes")
        except BaseException:
            self.close()
            raise
        if found.get("connection", "").lower() == "close":
            self.close()
        return status, bytes(answer)

    async def lines(self, path: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[bytes]:
        """Yield the answer's lines as they come. When the server ends it, the connection is closed."""
        try:
            await self._send(path, headers, body)
            _, found = await self._head()
            rest = b""
            async for piece in self._body(found):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line
            if rest:
                yield rest
        finally:
            self.close()

    async def _send(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._writer.write("\r\n".join(lines).encode() + body)
        await self._writer.drain()

    async def _head(self) -> tuple[int, dict[str, str]]:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadAnswer(f"an answer whose head has more than {MAX_HEAD_BYTES} bytes") from None
        except asyncio.IncompleteReadError as error:
            raise _cut(error) from None
        first, *rest = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise BadAnswer(f"{first[:80]!r} is not the beginning of an HTTP answer")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
        return int(status[:3]), found

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        try:
            if "chunked" not in headers.get("transfer-encoding", ""):
                length = headers.get("content-length", "")
                if not length.isdigit() or int(length) > MAX_BODY_BYTES:
                    raise BadAnswer(f"content-length {length!r}: needs 0 to {MAX_BODY_BYTES}")
                yield await self._reader.readexactly(int(length))
                return
            while size := _chunk_size(await self._reader.readuntil(b"\r\n")):
                piece = await self._reader.readexactly(size + 2)
                yield piece[:-2]
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        except asyncio.LimitOverrunError:
            raise BadAnswer("a chunk without a size") from None
        except asyncio.IncompleteReadError as error:
            raise _cut(error) from None


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        raise BadAnswer(f"{line[:40]!r} is not the size of a chunk") from None
    if not 0 <= size <= MAX_BODY_BYTES:
        raise BadAnswer(f"a chunk of {size} bytes, the limit is {MAX_BODY_BYTES}")
    return size


def _cut(error: asyncio.IncompleteReadError) -> OSError:
    return ConnectionResetError("the connection ended" if error.partial else "the server closed the connection")


def _keep_alive(connection: socket.socket) -> None:
    """Set keep-alive probes, so that a dead server is noticed within some ten seconds, also if nothing is sent."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
