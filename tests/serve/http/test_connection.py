"""What a client may send before a handler looks at it: heads, connections, bodies that nobody reads."""

from __future__ import annotations

import asyncio

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.serve.http.kit import Raw, served
from tests.support.clock import pass_time
from tests.support.polling import until
from uvicorn.server import ServerState

from buckram.serve.http.application import application
from buckram.serve.http.connection import limited
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.problems import json_answer


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def hello(request: Request) -> Response:
    return json_answer(request, {"path": request.url.path})


ROUTES = [
    Route("/echo", echo, methods=["POST"]),
    Route("/{path:path}", hello, methods=["GET", "POST"]),
]


async def test_a_head_over_the_limit_is_refused_with_its_size() -> None:
    async with served(ROUTES, HttpLimits(head_bytes=4096)) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /fits", X_Long="x" * 3000)).status == 200
        answer = await raw.ask("GET /too-long", X_Long="x" * 5000)
        assert answer.status == 431
        assert answer.value["code"] == "TOO_LARGE"
        assert answer.value["limit"] == 4096 < answer.value["value"]
        assert answer.value["do"].startswith("send fewer or shorter headers")
        assert await raw.ended()


async def test_a_head_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    async with served(ROUTES, HttpLimits(head_bytes=4096)) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"GET / HTTP/1.1\r\nX-Long: ")
        for _ in range(100):
            await raw.send(b"x" * 1000)
        assert (await raw.answer()).status == 431


async def test_a_slow_head_is_given_up() -> None:
    async with served(ROUTES, HttpLimits(patience_s=2.0)) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"GET / HTTP/1.1\r\nX-Slow: ")
        await until(lambda: server.connections == 1)
        for _ in range(11):
            await raw.send(b"x")
            await pass_time(0.2)
        answer = await raw.answer()
        assert (answer.status, answer.value["code"], answer.value["limit"]) == (408, "HEAD_TOO_SLOW", 2.0)


async def test_a_connection_without_a_request_is_closed() -> None:
    async with served(ROUTES, HttpLimits(patience_s=1.0)) as server:
        raw = await Raw.to(server.url)
        await until(lambda: server.connections == 1)
        await pass_time(1.1)
        assert await raw.ended()


async def test_an_idle_connection_stays_for_the_next_request_and_then_goes() -> None:
    async with served(ROUTES, HttpLimits(idle_s=3)) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /1")).status == 200
        await pass_time(2)
        assert (await raw.ask("GET /2")).status == 200
        await pass_time(3.1)
        assert await raw.ended()


async def test_connections_over_the_limit_are_told_so() -> None:
    async with served(ROUTES, HttpLimits(connections=2)) as server:
        first, second = [await Raw.to(server.url) for _ in range(2)]
        for raw in (first, second):  # whoever has asked nothing yet would make room
            assert (await raw.ask("GET /")).status == 200
        third = await Raw.to(server.url)
        answer = await third.answer()
        assert (answer.status, answer.value["code"], answer.value["limit"]) == (503, "TOO_MANY_CONNECTIONS", 2)
        assert await third.ended()
        assert (await second.ask("GET /")).status == 200
        await first.close()
        await until(lambda: server.connections == 1)
        assert (await (await Raw.to(server.url)).ask("GET /")).status == 200


async def test_what_is_no_http_is_answered_in_json() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"\x16\x03\x01\x02\x00\x01\x00 something else\r\n\r\n")
        answer = await raw.answer()
        assert (answer.status, answer.value["code"]) == (400, "NOT_HTTP")
        assert await raw.ended()


async def test_the_rest_of_a_body_after_the_answer_is_dropped_up_to_a_limit() -> None:
    async with served(ROUTES, HttpLimits(discarded_bytes=300_000)) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST /1 HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 1000)
        assert (await raw.answer()).status == 200
        await raw.send(b"x" * 199_000)
        assert (await raw.ask("GET /2")).status == 200
        await raw.send(b"POST /3 HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        assert (await raw.answer()).status == 200
        await raw.send(b"x" * 400_000)
        assert await raw.ended()


async def test_a_body_that_nobody_reads_must_end_in_time() -> None:
    async with served(ROUTES, HttpLimits(patience_s=1.0)) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        assert (await raw.answer()).status == 200
        for _ in range(11):
            await raw.send(b"x")
            await pass_time(0.1)
        assert await raw.ended()


async def test_pipelined_requests_keep_their_bytes() -> None:
    body = "é\n".encode() * 3
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        head = b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        await raw.send(head + body + head)
        assert (await raw.answer()).body == body
        await raw.send(body)
        assert (await raw.answer()).body == body


class Written(asyncio.Transport):
    """A transport that remembers what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        """Nothing was paused."""


async def asked(head: bytes) -> Written:
    """The answer to a request, written and not sent."""
    config = uvicorn.Config(application(ROUTES), http=limited(HttpLimits()), lifespan="off", log_config=None)
    config.load()
    written = Written()
    connection = limited(HttpLimits())(
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    connection.connection_made(written)
    connection.data_received(head)
    await until(lambda: connection.cycle.response_complete)
    connection.connection_lost(None)
    return written


async def test_an_answer_is_one_write() -> None:
    written = await asked(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(written.writes) == 1
    assert written.writes[0].endswith(b'\r\n\r\n{"path":"/x"}')


async def test_a_connection_that_ends_ends_after_its_answer() -> None:
    written = await asked(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert len(written.writes) == 1
    assert written.closed


async def test_an_answer_without_a_body_has_its_head() -> None:
    written = await asked(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert written.writes[0].startswith(b"HTTP/1.1 200")
    assert written.writes[0].endswith(b"\r\n\r\n")
