"""Rows that threads parse ahead come in their order, and no thread is left at work."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

from buckram.streams.maintain.imports import RowsAhead


def steps(*calls: Any) -> Generator[Any, None, None]:
    yield from calls


async def rows_of(ahead: RowsAhead) -> list[Any]:
    found: list[Any] = []
    while (rows := await ahead.next()) is not None:
        found.append(rows)
    return found


async def test_rows_come_in_order_although_later_steps_end_first() -> None:
    second = threading.Event()

    def first() -> str:
        assert second.wait(20)  # It ends only because the next step is carried out meanwhile.
        return "first"

    def then() -> str:
        second.set()
        return "second"

    async with RowsAhead(steps(first, then, lambda: None, lambda: "fourth")) as ahead:
        assert await rows_of(ahead) == ["first", "second", "fourth"]
        assert await ahead.next() is None


async def test_an_error_comes_in_its_place() -> None:
    def fails() -> None:
        raise ValueError("a bad line")

    async with RowsAhead(steps(lambda: 1, fails, lambda: 3)) as ahead:
        assert await ahead.next() == 1
        with pytest.raises(ValueError, match="bad line"):
            await ahead.next()


async def test_an_error_of_reading_is_raised() -> None:
    def reading() -> Generator[Any, None, None]:
        yield lambda: 1
        raise ValueError("away")

    async with RowsAhead(reading()) as ahead:
        with pytest.raises(ValueError, match="away"):
            await rows_of(ahead)


async def test_no_thread_is_at_work_at_the_end() -> None:
    leaving = threading.Event()
    ended: list[str] = []

    def slow() -> int:
        assert leaving.wait(20)
        ended.append("step")
        return 2

    def reading() -> Generator[Any, None, None]:
        try:
            yield lambda: 1
            yield slow
            yield from [lambda: 3] * 10
        finally:
            ended.append("source")

    async with RowsAhead(reading()) as ahead:
        assert await ahead.next() == 1
        leaving.set()
    assert ended == ["step", "source"]
