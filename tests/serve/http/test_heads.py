"""What may be sent before anybody knows who it is: half heads and idle connections, with what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.serve.http.kit import Raw, served
from tests.serve.http.test_connection import Written
from tests.support.polling import eventually, until
from uvicorn.server import ServerState

from buckram.config import TlsConfig
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.http.application import application
from buckram.serve.http.connection import limited
from buckram.serve.http.limits import MIB, HttpLimits
from buckram.serve.http.server import HttpServer, bind

HALF_HEADS = 1000
SERVER = """
import asyncio
from starlette.responses import Response
from starlette.routing import Route
from buckram.serve.http.application import application
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.server import HttpServer, bind

async def main():
    routes = [Route("/", lambda request: Response(b"hello"))]
    async with HttpServer(application(routes), bind("127.0.0.1", 0), HttpLimits(patience_s=3.0)) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def hello(request: Request) -> Response:
    return Response(b"hello")


ROUTES = [Route("/", hello, methods=["GET", "POST"])]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@asynccontextmanager
async def server_process() -> AsyncIterator[tuple[int, str]]:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        yield child.pid, (await child.stdout.readline()).decode().strip()
    finally:
        child.kill()
        await child.wait()


async def half_head(url: str, head: bytes, into: contextlib.ExitStack) -> socket.socket:
    loop, sock = asyncio.get_running_loop(), into.enter_context(socket.socket())
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", int(url.rpartition(":")[2])))
    with contextlib.suppress(ConnectionError):  # the oldest are cut off
        await loop.sock_sendall(sock, head)
    return sock


@pytest.mark.parametrize("headers", [b"X: " + b"x" * 64_000, b"ab:\r\n" * 12_000], ids=["one-large", "many-small"])
async def test_a_thousand_half_heads_cost_little_and_nothing_afterwards(headers: bytes) -> None:
    """At most 24 MB more while they are there and once their time is over; others are served."""
    async with server_process() as (pid, url):
        async with asyncio.timeout(10):
            assert (await (await Raw.to(url)).ask("GET /")).body == b"hello"
        before = resident_bytes(pid)
        with contextlib.ExitStack() as opened:
            highest = 0
            for _ in range(HALF_HEADS):
                await half_head(url, b"GET / HTTP/1.1\r\n" + headers, opened)
                highest = max(highest, resident_bytes(pid))
            async with asyncio.timeout(2.0):
                assert (await (await Raw.to(url)).ask("GET /")).body == b"hello"
            assert highest - before <= 24 * MIB, f"{(highest - before) >> 20} MB more than before"

            async def given_up() -> bool:
                return open_files(pid) < 50

            await eventually(given_up)
            assert resident_bytes(pid) - before <= 24 * MIB


async def test_half_heads_are_bounded_in_bytes_of_all_and_the_oldest_goes() -> None:
    limits = HttpLimits(head_bytes=16_384, half_head_bytes=65_536)
    async with served(ROUTES, limits) as server:
        with contextlib.ExitStack() as opened:
            for _ in range(20):
                await half_head(server.url, b"GET / HTTP/1.1\r\nX: " + b"x" * 15_000, opened)
            await until(lambda: server.connections <= 5, seconds=4.0)
            assert (await (await Raw.to(server.url)).ask("GET /")).body == b"hello"


async def test_connections_that_owe_a_head_are_bounded_in_number_and_idle_ones_are_not_among_them() -> None:
    async with served(ROUTES, HttpLimits(half_heads=4)) as server:
        idle = list[Raw]()
        for _ in range(8):
            idle.append(await Raw.to(server.url))
            assert (await idle[-1].ask("GET /")).status == 200
        silent = [await Raw.to(server.url) for _ in range(10)]
        assert await silent[0].ended()
        await until(lambda: server.connections == 12)
        for raw in idle:
            assert (await raw.ask("GET /")).status == 200
        await idle[0].send(b"GET / HTTP/1.1\r\n")
        await until(lambda: server.connections == 11)


async def test_silent_connections_keep_nobody_out_of_a_server_that_is_full() -> None:
    async with served(ROUTES, HttpLimits(connections=20)) as server:
        silent = [await Raw.to(server.url) for _ in range(20)]
        await until(lambda: server.connections == 20)
        async with asyncio.timeout(5):
            assert (await (await Raw.to(server.url)).ask("GET /")).body == b"hello"
        assert await silent[0].ended()


async def test_a_head_in_pieces_counts_once() -> None:
    async with served(ROUTES, HttpLimits(head_bytes=16_384)) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"GET / HTTP/1.1\r\n")
        for number in range(12):
            await raw.send(b"X-%d: %s\r\n" % (number, b"x" * 1000))
            await until(lambda: server.connections == 1)
        await raw.send(b"\r\n")
        assert (await raw.answer()).status == 200


async def test_headers_are_bounded_in_number() -> None:
    async with served(ROUTES, HttpLimits(headers=16)) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /", **{f"X-{number}": "x" for number in range(15)})).status == 200
        answer = await raw.ask("GET /", **{f"X-{number}": "x" for number in range(16)})
        assert (answer.status, answer.value["code"], answer.value["limit"]) == (431, "TOO_MANY_HEADERS", 16)
        assert await raw.ended()


async def test_the_unread_part_of_a_body_is_forgotten_with_its_answer() -> None:
    config = uvicorn.Config(application(ROUTES), http=limited(HttpLimits()), lifespan="off", log_config=None)
    config.load()
    connection = limited(HttpLimits())(
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    connection.connection_made(Written())
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
    assert len(connection.cycle.body) == 50_000
    await until(lambda: connection.cycle.response_complete)
    assert connection.cycle.body == b""
    connection.connection_lost(None)


@asynccontextmanager
async def secured(directory: Path, limits: HttpLimits) -> AsyncIterator[tuple[HttpServer, ssl.SSLContext]]:
    authority = Authority(directory)
    pair = authority.bookie("server", ["127.0.0.1"])
    tls = TlsFiles(TlsConfig("required", "", str(pair.certificate), str(pair.key)), server_side=True)
    client = TlsFiles(TlsConfig("required", str(authority.certificate)), server_side=False).context()
    async with HttpServer(application(ROUTES), bind("127.0.0.1", 0), limits, tls) as server:
        yield server, client


async def test_a_handshake_of_tls_has_to_come_in_time(tmp_path: Path) -> None:
    async with secured(tmp_path, HttpLimits(patience_s=0.5)) as (server, _):
        for first in (b"", b"\x16\x03\x01"):
            raw = await Raw.to(server.url)
            await raw.send(first)
            assert await raw.ended()


async def test_connections_without_a_handshake_keep_nobody_out(tmp_path: Path) -> None:
    async with secured(tmp_path, HttpLimits(half_heads=20)) as (server, client):
        kept = await Raw.to(server.url, client)
        assert (await kept.ask("GET /")).body == b"hello"
        silent = [await Raw.to(server.url) for _ in range(40)]
        async with asyncio.timeout(5):
            assert (await (await Raw.to(server.url, client)).ask("GET /")).body == b"hello"
            assert await silent[0].ended()
        nonsense = await Raw.to(server.url)
        await nonsense.send(b"GET / HTTP/1.1\r\n\r\n")
        assert (await kept.ask("GET /")).body == b"hello"


async def test_a_server_that_ends_does_not_wait_for_handshakes(tmp_path: Path) -> None:
    async with asyncio.timeout(8):
        async with secured(tmp_path, HttpLimits()) as (server, _):
            raw = await Raw.to(server.url)
        assert await raw.ended()
