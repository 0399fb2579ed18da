"""Bodies: as a whole within limits of size and time, in pieces without; the end of a connection ends the work."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.serve.http.kit import Raw, served
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.serve.http.body import ClientGone, body_pieces, read_body, while_connected
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.problems import json_answer

LIMITS = HttpLimits(body_bytes=100_000, patience_s=1.0)
LESS = "send less at once (limit: `--limit body_bytes=` of the server)"


async def size(request: Request) -> Response:
    return json_answer(request, {"size": len(await read_body(request, LIMITS))})


ROUTES = [Route("/size", size, methods=["POST"])]


async def test_a_whole_body_and_one_in_chunks() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("POST /size", b"x" * 100_000)).value == {"size": 100_000}
        await raw.send(b"POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await raw.answer()).value == {"size": 5}
        assert (await raw.ask("POST /size")).value == {"size": 0}


async def test_a_body_over_the_limit_is_refused_by_its_declared_length() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST /size HTTP/1.1\r\nContent-Length: 100001\r\n\r\n")
        answer = await raw.answer()
        assert answer.status == 413
        assert answer.value == {
            "message": f"the body has 100001 bytes, the limit is 100000 bytes: {LESS}",
            "code": "TOO_LARGE",
            "value": 100001,
            "limit": 100000,
            "do": LESS,
        }


async def test_a_body_over_the_limit_in_chunks_is_refused_when_it_gets_there() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            await raw.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        answer = await raw.answer()
        assert (answer.status, answer.value["limit"], answer.value["value"]) == (413, 100_000, None)


async def test_a_body_below_a_kilobyte_a_second_is_given_up() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST /size HTTP/1.1\r\nContent-Length: 50000\r\n\r\n")
        answer = asyncio.ensure_future(raw.answer())
        for _ in range(60):
            await raw.send(b"x" * 50)
            await pass_time(0.1)
            if answer.done():
                break
        assert (await answer).status == 408
        assert (await answer).value["code"] == "BODY_TOO_SLOW"
        assert (await answer).value["limit"] == 1024


async def test_a_body_of_two_kilobytes_a_second_is_waited_for() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"POST /size HTTP/1.1\r\nContent-Length: 6000\r\n\r\n")
        for _ in range(30):
            await raw.send(b"x" * 200)
            await pass_time(0.1)
        assert (await raw.answer()).value == {"size": 6000}


async def test_pieces_come_as_long_as_the_client_sends_and_a_cut_body_is_no_body() -> None:
    whole: list[bytes] = []
    cut: list[int] = []

    async def upload(request: Request) -> Response:
        found = b""
        try:
            async for piece in body_pieces(request):
                found += piece
        except ClientGone:
            cut.append(len(found))
            raise
        whole.append(found)
        return json_answer(request, {"size": len(found)})

    async with served([Route("/upload", upload, methods=["PUT"])]) as server:
        raw = await Raw.to(server.url)
        await raw.send(b"PUT /upload HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            await raw.send(b"1\r\nx\r\n")
            await pass_time(1)
        await raw.send(b"0\r\n\r\n")
        assert (await raw.answer()).value == {"size": 5}
        assert whole == [b"xxxxx"]

        await raw.send(b"PUT /upload HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await raw.close()
        await until(lambda: bool(cut))
        raw = await Raw.to(server.url)
        await raw.send(b"PUT /upload HTTP/1.1\r\nContent-Length: 10\r\n\r\nabcde")
        await raw.close()
        await until(lambda: len(cut) == 2)
        assert len(whole) == 1


async def test_work_is_cancelled_when_the_client_goes() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def endless(request: Request) -> Response:
        await read_body(request, LIMITS)
        await while_connected(request, work())
        return json_answer(request, {})

    async def quick(request: Request) -> Response:
        await read_body(request, LIMITS)

        async def give() -> int:
            return 7

        return json_answer(request, await while_connected(request, give()))

    routes = [Route("/endless", endless, methods=["POST"]), Route("/quick", quick, methods=["POST"])]
    async with served(routes) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("POST /quick", b"body")).value == 7
        assert (await raw.ask("POST /quick", b"body")).value == 7
        await raw.send(b"POST /endless HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
        async with asyncio.timeout(20):
            await begun.wait()
            await raw.close()
            await cancelled.wait()
