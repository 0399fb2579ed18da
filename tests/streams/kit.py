"""Helpers of the stream tests."""

from __future__ import annotations

import asyncio

from buckram.core.streams.records.batch import Record
from buckram.streams.read.reader import StreamReader
from buckram.streams.write.writer import StreamWriter


async def append_on(writer: StreamWriter) -> None:
    """Append records until an append fails."""
    async with asyncio.timeout(10):
        while True:
            await writer.append(b"y")


async def read_on(reader: StreamReader, value: bytes | None = None) -> list[Record]:
    """Read until the reader fails or ends, and check each record's value if one is given."""
    found: list[Record] = []
    async with asyncio.timeout(10):
        async for record in reader:
            assert value is None or record.value == value
            found.append(record)
    return found
