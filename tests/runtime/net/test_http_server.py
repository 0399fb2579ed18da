"""The HTTP server: what it refuses, and answers in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from buckram.runtime.net.http_server import (
    LONGEST_BODY,
    LONGEST_HEAD,
    MOST_CONNECTIONS,
    Answer,
    Request,
    serve_http,
    text_answer,
)
from buckram.runtime.net.tcp import TcpNetwork
from buckram.types import BookieAddress


async def handler(request: Request) -> Answer:
    if request.path == "/bug":
        raise ValueError("a bug")
    if request.path == "/pieces":
        return Answer(b"first ", pieces=_pieces())
    return text_answer(f"{request.method} {request.path} {dict(request.query)} {request.body.decode()}")


async def _pieces() -> AsyncIterator[bytes]:
    for piece in (b"second ", b"third"):
        yield piece


@asynccontextmanager
async def port() -> AsyncIterator[int]:
    listener = await serve_http(TcpNetwork(), BookieAddress("127.0.0.1", 0), handler)
    try:
        yield listener.port
    finally:
        await listener.close()


async def said(raw: bytes) -> tuple[int, str]:
    """The status and the body of the answer to these bytes."""
    async with port() as number:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(raw)
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_a_request_is_taken_apart() -> None:
    got = await said(b"PUT /a%20b?x=1&y= HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
    assert got == (200, "PUT /a b {'x': '1', 'y': ''} body")


async def test_head_has_no_body() -> None:
    assert await said(b"HEAD /a HTTP/1.1\r\n\r\n") == (200, "")


async def test_pieces_follow_the_content() -> None:
    assert await said(b"GET /pieces HTTP/1.1\r\n\r\n") == (200, "first second third")


async def test_a_bug_is_no_traceback() -> None:
    status, body = await said(b"GET /bug HTTP/1.1\r\n\r\n")
    assert (status, "ValueError" in body) == (500, False)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * (LONGEST_HEAD + 1) + b" HTTP/1.1\r\n\r\n", 431),
        (b"PUT /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LONGEST_BODY + 1), 413),
        (b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
    ],
)
async def test_what_is_no_request_is_refused(raw: bytes, status: int) -> None:
    assert (await said(raw))[0] == status


async def test_idle_connections_keep_no_probe_out() -> None:
    async with port() as number:
        idle = [await asyncio.open_connection("127.0.0.1", number) for _ in range(MOST_CONNECTIONS + 20)]
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for _, one in idle:
            one.transport.abort()
