"""The clock of paced loads."""

from __future__ import annotations

import asyncio
import time

import pytest

from buckram.cli.bench import load


@pytest.mark.parametrize("timer", ["timerfd", "loop"])
async def test_calls_come_at_the_ends_of_periods_never_before(timer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if timer == "loop":
        monkeypatch.setattr(load, "_timerfd", lambda: None)
    elif load._timerfd() is None:
        pytest.skip("there is no timerfd here")
    period, calls = 0.0015, []
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def call() -> None:
        calls.append(time.perf_counter())
        if len(calls) == 30 and not enough.done():
            enough.set_result(None)

    async with asyncio.timeout(10):
        with load.every(period, call, enough) as began:
            await enough
    early = [(n, at - began) for n, at in enumerate(calls, 1) if at < began + n * period - 0.001 * (timer == "loop")]
    assert not early


async def test_what_a_call_raises_fails_the_future_that_is_waited_for() -> None:
    until: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def call() -> None:
        raise ValueError("a bug of the caller")

    async with asyncio.timeout(10):
        with load.every(0.001, call, until), pytest.raises(ValueError, match="a bug of the caller"):
            await until
