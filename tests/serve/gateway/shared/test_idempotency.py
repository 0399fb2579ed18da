"""Repeats with an Idempotency-Key: which requests are told apart, and when they cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.responses import Response

from buckram.serve.gateway.shared.idempotency import Fingerprint, Repeats
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.problems import HttpProblem


@pytest.fixture
async def repeats() -> AsyncIterator[Repeats]:
    made = Repeats(GatewayLimits())
    yield made
    await made.close()


class Streamed:
    """A request whose body is read by its work, of which only `read` arrives."""

    def __init__(self, body: bytes, read: bytes | None = None) -> None:
        self.fingerprint, self._body, self._read = Fingerprint("PUT", "/x"), body, read
        self.goes_on = asyncio.Event()

    async def work(self) -> Response:
        await self.goes_on.wait()
        self.fingerprint.add(self._body if self._read is None else self._read)
        if self._read is not None:
            return Response(b"cut", 400)
        return Response(self._body, 201)

    async def rest(self) -> None:
        self.fingerprint.add(self._body)


async def ask(repeats: Repeats, request: Streamed) -> Response:
    return await repeats.once("alice", "k", request.fingerprint, request.work(), request.rest)


async def while_one_waits(repeats: Repeats, first: Streamed, second: Streamed, end: Callable[[], None]) -> Response:
    begun = asyncio.create_task(ask(repeats, first))
    await asyncio.sleep(0)
    repetition = asyncio.create_task(ask(repeats, second))
    await asyncio.sleep(0)
    end()
    await asyncio.wait((begun,))
    return await repetition


async def test_a_repetition_of_a_request_whose_body_was_cut_is_sent_again(repeats: Repeats) -> None:
    first, second = Streamed(b"whole", read=b"wh"), Streamed(b"whole")
    with pytest.raises(HttpProblem) as caught:
        await while_one_waits(repeats, first, second, first.goes_on.set)
    assert (caught.value.status, caught.value.content()["code"]) == (503, "REQUEST_UNFINISHED")
    assert caught.value.content()["retryable"]
    again = Streamed(b"whole")
    again.goes_on.set()
    assert (await ask(repeats, again)).status_code == 201


async def test_another_request_with_the_key_of_one_that_was_answered_is_refused(repeats: Repeats) -> None:
    first, second = Streamed(b"whole"), Streamed(b"other")
    with pytest.raises(HttpProblem) as caught:
        await while_one_waits(repeats, first, second, first.goes_on.set)
    assert (caught.value.status, caught.value.content()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


async def test_the_same_request_gets_the_same_answer(repeats: Repeats) -> None:
    first, second = Streamed(b"whole"), Streamed(b"whole")
    answer = await while_one_waits(repeats, first, second, first.goes_on.set)
    assert (answer.status_code, answer.body, answer.headers["idempotency-repeated"]) == (201, b"whole", "true")
