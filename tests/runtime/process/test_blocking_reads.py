"""Reading a pipe and a file that fails, beside the loop."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing

import pytest

from buckram.runtime.process.blocking_reads import read_beside


async def test_the_loop_goes_on_while_a_pipe_gives_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as file:
        async with aclosing(read_beside(file.read, 100)) as pieces:
            coming = asyncio.ensure_future(anext(pieces))
            await asyncio.sleep(0)
            os.write(writing, b"one")
            assert await coming == b"one"
            os.write(writing, b"two")
            os.close(writing)
            assert [piece async for piece in pieces] == [b"two"]


async def test_an_error_of_reading_is_raised_and_much_is_not_read_ahead() -> None:
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        if len(asked) > 7:
            raise OSError("the disk is broken")
        return bytes(size)

    async with aclosing(read_beside(read, 10)) as pieces:
        assert await anext(pieces) == bytes(10)
        assert len(asked) <= 5
        with pytest.raises(OSError, match="broken"):
            [piece async for piece in pieces]
