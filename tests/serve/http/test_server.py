"""Serving on a given socket, and stopping: what is being served gets its answer, nothing new is taken."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.errors import ConfigError
from buckram.serve.http.application import application
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.problems import json_answer
from buckram.serve.http.server import HttpServer, bind, url_of


class Gate:
    """A handler that answers when the test says so."""

    def __init__(self) -> None:
        self.open, self.inside = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        self.inside.set()
        await self.open.wait()
        return json_answer(request, {"answered": True})


def gated(gate: Gate) -> list[Route]:
    async def wait(request: Request) -> Response:
        return await gate(request)

    return [Route("/", wait)]


async def test_a_server_that_stops_answers_what_it_has_begun_and_closes_idle_connections() -> None:
    gate = Gate()
    server = HttpServer(application(gated(gate)), bind("127.0.0.1", 0))
    await server.start()
    busy, idle = await Raw.to(server.url), await Raw.to(server.url)
    await busy.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await gate.inside.wait()
    closing = asyncio.ensure_future(server.close())
    assert await idle.ended()
    with pytest.raises(ConnectionRefusedError):
        await Raw.to(server.url)
    assert not closing.done()
    gate.open.set()
    answer = await busy.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await closing
    await server.close()  # idempotent
    assert server.connections == 0


async def test_requests_that_do_not_end_are_cut_after_the_time_for_draining() -> None:
    gate = Gate()
    server = HttpServer(application(gated(gate)), bind("127.0.0.1", 0), HttpLimits(drain_s=0))
    await server.start()
    busy = await Raw.to(server.url)
    await busy.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await gate.inside.wait()
    await server.close()
    # No answer: a 500 would say that it failed, and nobody knows what it has done.
    assert await busy.ended()
    await until(lambda: server.connections == 0)


async def test_the_socket_is_the_callers_choice() -> None:
    listening = bind("127.0.0.1", 0)
    assert url_of(listening) == f"http://127.0.0.1:{listening.address[1]}"
    with pytest.raises(ConfigError, match=r"--port 127\.0\.0\.1:\d+: the port is in use; choose another"):
        bind("127.0.0.1", listening.address[1], "--port")
    with pytest.raises(ConfigError, match=r"the address 192\.0\.2\.1:0: .*; choose an address of this host"):
        bind("192.0.2.1", 0)
    listening.close()
    with bind("::1", 0) as six:
        assert url_of(six).startswith("http://[::1]:")


async def test_every_address_of_a_name_is_listened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with an address of each family, and one of them twice, as many hosts files have it."""
    real = socket.getaddrinfo

    def resolved(host: object, *rest: object, **more: object) -> object:
        if host != "both.test":
            return real(host, *rest, **more)  # type: ignore[arg-type]
        return [found for one in ("127.0.0.1", "::1", "127.0.0.1") for found in real(one, *rest, **more)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    listening = bind("both.test", 0)
    assert [one.getsockname()[0] for one in listening.sockets] == ["127.0.0.1", "::1"]
    assert len({one.getsockname()[1] for one in listening.sockets}) == 1
    port = listening.address[1]
    async with HttpServer(application([]), listening) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /none HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404"), host
            writer.close()
    for host in ("127.0.0.1", "::1"):
        with pytest.raises(OSError, match=r"refused|failed"):
            await asyncio.open_connection(host, port)
