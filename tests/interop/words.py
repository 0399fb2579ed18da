"""Helpers that the tests of our client share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.interop.clusters import payload

from buckram.client.read.reader import Reader

Ask = Callable[..., Awaitable[Any]]
JAVA_DIGEST = {"crc32": "CRC32", "crc32c": "CRC32C", "mac": "MAC", "dummy": "DUMMY"}
each_wire = pytest.mark.parametrize("wire", [2, 3], ids=lambda wire: f"v{wire}")
each_digest = pytest.mark.parametrize("digest", list(JAVA_DIGEST))


def entries(first: int, last: int) -> list[bytes]:
    return [payload(number) for number in range(first, last + 1)]


async def check(reader: Reader, first: int, last: int) -> None:
    """Check that the reader returns first..last, in order, with the expected payloads."""
    found = await reader.read(first, last)
    assert [entry.entry_id for entry in found] == list(range(first, last + 1))
    assert [entry.payload for entry in found] == entries(first, last)
