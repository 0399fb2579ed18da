"""`retry` in the simulator's time: when it tries again, when it gives up, and what it lets pass."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from buckram.core.backoff import Backoff
from buckram.errors import InvalidArgument, MetadataUnavailable
from buckram.runtime.process.retry import retry
from simulator.engine.loop import make_loop
from simulator.engine.trace import Trace

POLICY = Backoff(1.0, 4.0)
T = TypeVar("T")


def lived(life: Callable[[], Awaitable[T]]) -> T:
    def broken(*_: object) -> None:
        raise AssertionError("an error that nobody took")

    loop = make_loop(random.Random(1), Trace(None), broken)

    async def main() -> T:
        return await life()

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def failing(times: int, began: list[float], error: Exception) -> Callable[[], Awaitable[str]]:
    async def attempt() -> str:
        began.append(asyncio.get_running_loop().time())
        if len(began) <= times:
            raise error
        return "done"

    return attempt


def gaps(began: list[float]) -> list[float]:
    return [round(later - earlier, 3) for earlier, later in itertools.pairwise(began)]


def test_it_tries_again_after_growing_delays() -> None:
    began: list[float] = []
    said: list[str] = []
    attempt = failing(4, began, MetadataUnavailable("away"))

    def life() -> Awaitable[str]:
        return retry(attempt, MetadataUnavailable, POLICY, within_s=60, on_error=lambda error: said.append(str(error)))

    assert lived(life) == "done"
    assert gaps(began) == [1.0, 2.0, 4.0, 4.0]
    assert said == ["away"] * 4


def test_after_its_time_it_raises_the_last_error() -> None:
    began: list[float] = []
    with pytest.raises(MetadataUnavailable, match="away"):
        lived(lambda: retry(failing(99, began, MetadataUnavailable("away")), MetadataUnavailable, POLICY, within_s=8))
    assert gaps(began) == [1.0, 2.0, 4.0]


def test_other_errors_pass_at_once() -> None:
    began: list[float] = []
    with pytest.raises(InvalidArgument):
        lived(lambda: retry(failing(9, began, InvalidArgument("no")), MetadataUnavailable, POLICY, within_s=60))
    assert len(began) == 1


def test_a_cancelled_wait_ends_at_once() -> None:
    began: list[float] = []

    async def life() -> float:
        attempt = failing(99, began, MetadataUnavailable("away"))
        task = asyncio.ensure_future(retry(attempt, MetadataUnavailable, POLICY, within_s=60))
        asyncio.get_running_loop().call_later(1.5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time() - began[0]

    assert lived(life) == pytest.approx(1.5, abs=0.01)


def test_no_module_has_delays_of_its_own() -> None:
    """Delays that double come from core/backoff; a new policy belongs into its table."""
    sources = Path(__file__).parents[3] / "src" / "buckram"
    words = ("_RETRY_MIN_S", "min(2 * delay", "min(delay * 2", "min(2 * pause", "min(pause * 2")
    found = [
        f"{path.relative_to(sources)}: {word}"
        for path in sorted(sources.rglob("*.py"))
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert [line for line in found if not line.startswith(("core/backoff.py", "sim/"))] == []
