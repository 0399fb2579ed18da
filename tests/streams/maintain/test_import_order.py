"""Ranges that are written side by side are published in their order, and a failure is told in its place."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.support.polling import until

from buckram.errors import StreamError
from buckram.streams.maintain.import_order import RangesInOrder


class Steps:
    """A range that notes its steps. It stops before those that are held up, and fails at `bad`."""

    def __init__(self, name: str, done: list[str], *, bad: str = "") -> None:
        self.name, self.done, self.bad = name, done, bad
        self.held: dict[str, asyncio.Event] = {}

    def hold(self, step: str) -> asyncio.Event:
        self.held[step] = asyncio.Event()
        return self.held[step]

    async def _step(self, step: str) -> None:
        self.done.append(f"{step} {self.name}?")
        try:
            if step in self.held:
                await self.held[step].wait()
            if step == self.bad:
                raise StreamError("s", f"no {step} of {self.name}")
        except BaseException:
            self.done.append(f"gone {self.name}")
            raise
        self.done.append(f"{step} {self.name}")

    async def write(self) -> None:
        await self._step("write")

    async def close(self) -> None:
        await self._step("close")

    async def publish(self) -> None:
        await self._step("publish")

    async def discard(self) -> None:
        self.done.append(f"gone {self.name}")


def published(done: list[str]) -> list[str]:
    return [step for step in done if step.startswith("publish ") and not step.endswith("?")]


async def test_two_are_written_at_once_and_published_in_order() -> None:
    done: list[str] = []
    ranges = [Steps(name, done) for name in "abc"]
    first, second = ranges[0].hold("write"), ranges[1].hold("write")
    told: list[str] = []
    async with RangesInOrder("import") as order:
        for one in ranges:
            await order.add(one, partial(told.append, one.name))
        await until(lambda: "write b?" in done)
        assert "write c?" not in done
        second.set()
        await until(lambda: "close c" in done)
        assert published(done) == []
        first.set()
        await order.finish()
    assert published(done) == ["publish a", "publish b", "publish c"]
    assert told == ["a", "b", "c"]


async def test_no_more_are_begun_than_may_be_unpublished() -> None:
    done: list[str] = []
    ranges = [Steps(name, done) for name in "abcde"]
    publishing = ranges[0].hold("publish")
    async with RangesInOrder("import") as order:
        for one in ranges[:4]:
            await order.add(one, lambda: None)
        adding = asyncio.ensure_future(order.add(ranges[4], lambda: None))
        await until(lambda: "close d" in done)
        begun = adding.done()
        publishing.set()
        assert not begun
        await adding
        await order.finish()
    assert len(published(done)) == 5


@pytest.mark.parametrize("bad", ["write", "close", "publish"])
async def test_an_error_comes_after_what_is_before_it(bad: str) -> None:
    done: list[str] = []
    ranges = [Steps("a", done), Steps("b", done, bad=bad), Steps("c", done)]
    first = ranges[0].hold("publish")
    async with RangesInOrder("import") as order:
        for one in ranges:
            await order.add(one, lambda: None)
        await until(lambda: "close c" in done and (f"{bad} b?" in done or bad == "publish"))
        first.set()
        with pytest.raises(StreamError, match=f"no {bad} of b"):
            await order.finish()
    assert published(done) == ["publish a"]
    assert {"gone b", "gone c"} <= set(done)
    assert "publish c?" not in done


async def test_a_publication_that_has_begun_comes_to_its_end() -> None:
    done: list[str] = []
    ranges = [Steps("a", done), Steps("b", done)]
    publishing, writing = ranges[0].hold("publish"), ranges[1].hold("write")

    async def run() -> None:
        async with RangesInOrder("import") as order:
            for one in ranges:
                await order.add(one, lambda: None)
            await order.finish()

    running = asyncio.ensure_future(run())
    await until(lambda: "publish a?" in done)
    running.cancel()
    await until(lambda: "gone b" in done)
    assert not running.done()
    publishing.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert published(done) == ["publish a"]
    assert not writing.is_set()
    assert "gone a" not in done
