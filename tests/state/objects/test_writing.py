"""Cutting pieces of any size into chunks of one size."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from buckram.state.objects.writing import CHUNK_BYTES, _chunks


@pytest.mark.parametrize(
    "sizes",
    [
        (CHUNK_BYTES,),
        (CHUNK_BYTES, CHUNK_BYTES),
        (1, CHUNK_BYTES, CHUNK_BYTES - 1),
        (3 * CHUNK_BYTES + 5, 7),
        (CHUNK_BYTES - 1, 0, 1, CHUNK_BYTES, 3),
    ],
)
async def test_pieces_of_any_size_become_chunks_of_one_size(sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes, 1)]

    async def rest() -> AsyncIterator[bytes]:
        for piece in pieces[1:]:
            yield piece

    found = [chunk async for chunk in _chunks(pieces[0], rest())]
    assert b"".join(found) == b"".join(pieces)
    assert {len(chunk) for chunk in found[:-1]} <= {CHUNK_BYTES}
    assert 0 < len(found[-1]) <= CHUNK_BYTES
