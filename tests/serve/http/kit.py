"""A raw HTTP connection, so that tests say byte for byte what a client sends; and a server with a small application."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

from buckram.serve.http.application import application
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.server import HttpServer, bind


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Raw:
    """One connection; `send` bytes, `answer` reads one answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, url: str, tls: ssl.SSLContext | None = None) -> Raw:
        host, _, port = url.partition("://")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(20):
            first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
            status = int(first.split()[1])
            if not has_body or status == 304:
                body = b""
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b""
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readuntil(b"\r\n")
            return Answer(status, headers, body)

    async def ask(self, head: str, body: bytes = b"", **headers: str) -> Answer:
        """`head` is METHOD PATH."""
        lines = [
            f"{head} HTTP/1.1",
            f"Host: {headers.pop('Host', 'localhost')}",
            *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
        ]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)
        return await self.answer(has_body=not head.startswith("HEAD "))

    async def ended(self) -> bool:
        """Wait for the end of the connection."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def served(routes: Sequence[BaseRoute], limits: HttpLimits | None = None) -> AsyncIterator[HttpServer]:
    async with HttpServer(application(routes), bind("127.0.0.1", 0), limits) as server:
        yield server
