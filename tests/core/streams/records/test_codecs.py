"""Compression of bodies: what comes back, what is refused, and several threads at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from buckram.core.streams.records.codecs import CODECS, LZ4, ZSTD, codec_number, compress, decompress
from buckram.errors import InvalidArgument, MalformedBatch

pytest.importorskip("lz4")
pytest.importorskip("zstandard")


@pytest.mark.parametrize("name", CODECS)
def test_a_body_comes_back(name: str) -> None:
    number, body = codec_number(name), b"abc" * 1000
    assert bytes(decompress(number, compress(number, body), len(body))) == body


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="brotli"):
        codec_number("brotli")


@pytest.mark.parametrize("number", [LZ4, ZSTD])
def test_another_size_than_the_headers_is_refused(number: int) -> None:
    packed = compress(number, b"abc" * 1000)
    with pytest.raises(MalformedBatch):
        decompress(number, packed, 2999)
    with pytest.raises(MalformedBatch):
        decompress(number, packed[:-5], 3000)


@pytest.mark.parametrize("number", [LZ4, ZSTD])
def test_threads_compress_at_once(number: int) -> None:
    def work(seed: int) -> bool:
        lots = random.Random(seed)
        for _ in range(40):
            body = lots.randbytes(2_000) * lots.randrange(50, 200)
            if bytes(decompress(number, compress(number, body), len(body))) != body:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
