"""Answers in pieces, against the messages of ASGI: clients that go, bytes that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from buckram.errors import ReadFailed
from buckram.serve.http.connection import ABORT
from buckram.serve.http.streamed_answers import PiecesAnswer, begun


class Exchange:
    """One request: what was sent, and whether the connection was cut."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.cut = False
        self.ended = 0

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await asyncio.sleep(0)

    def _abort(self) -> None:
        self.cut = True

    def _end(self) -> None:
        self.ended += 1

    async def serve(self, pieces: AsyncGenerator[bytes, None], size: int | None = None) -> None:
        answer = PiecesAnswer(pieces, size=size, media=None, stuck_s=30, ended=self._end)
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], ABORT: self._abort}
        async with asyncio.timeout(20):
            await answer(scope, self.receive, self.send)


async def test_a_client_that_goes_ends_the_reading() -> None:
    exchange, closed = Exchange(), []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
                if len(exchange.sent) == 5:
                    exchange.gone.set()
        finally:
            closed.append(True)

    await exchange.serve(endless())
    assert (closed, exchange.ended) == ([True], 1)


async def test_bytes_that_cannot_be_read_cut_the_connection() -> None:
    exchange = Exchange()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise ReadFailed(7, "no bookie answers")

    await exchange.serve(pieces(), 100)
    assert (exchange.cut, exchange.ended) == (True, 1)
    assert not any(one.get("more_body") is False for one in exchange.sent)


async def test_what_fails_before_the_first_piece_is_an_answer_of_its_own() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        raise ReadFailed(7, "no bookie answers")
        yield b""

    with pytest.raises(ReadFailed):
        await begun(pieces())


async def test_all_pieces_come_in_order() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield b"%d" % number

    exchange = Exchange()
    await exchange.serve(await begun(pieces()), 3)
    assert b"".join(one.get("body", b"") for one in exchange.sent) == b"012"
    assert (exchange.cut, exchange.ended) == (False, 1)


async def test_the_last_piece_waits_for_what_is_found_at_the_end() -> None:
    exchange = Exchange()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        yield b"last"
        raise ReadFailed(7, "the digest is another one")

    await exchange.serve(pieces(), 9)
    assert b"".join(one.get("body", b"") for one in exchange.sent) == b"first"
    assert exchange.cut
