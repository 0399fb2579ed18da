from __future__ import annotations

import random
from array import array

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import PackedBodies
from buckram.core.entries.python_twins import HEAD_BYTES, digests_match
from buckram.core.entries.strides import count_up
from buckram.types import DigestType

pytestmark = pytest.mark.usefixtures("twin")

ALL = range(HEAD_BYTES)


def _records(heads: list[bytes], size: int, gap: int, seed: int) -> tuple[bytearray, array[int]]:
    rng = random.Random(seed)
    data, crcs = bytearray(), array("I")
    for head in heads:
        payload = rng.randbytes(size)
        crcs.append(google_crc32c.value(payload))
        data += rng.randbytes(gap) + head + google_crc32c.value(head + payload).to_bytes(4, "big") + payload
    return data, crcs


@settings(max_examples=150, deadline=None)
@given(
    common=st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES),
    varying=st.sets(st.integers(0, HEAD_BYTES - 1)),
    count=st.integers(1, 300),
    size=st.integers(0, 70),
    gap=st.integers(0, 30),
    seed=st.integers(0, 2**32),
    flip=st.integers(min_value=0),
    mutable=st.booleans(),
)
def test_random_headers_match_and_one_flipped_bit_does_not(
    common: bytes, varying: set[int], count: int, size: int, gap: int, seed: int, flip: int, mutable: bool
) -> None:
    rng = random.Random(seed)
    heads = [bytes(rng.randrange(256) if i in varying else byte for i, byte in enumerate(common)) for _ in range(count)]
    data, crcs = _records(heads, size, gap, seed)
    stride = gap + HEAD_BYTES + 4 + size
    kind = bytearray if mutable else bytes
    assert digests_match(kind(data), gap, stride, size, crcs, ALL)
    assert digests_match(kind(data), gap, stride, size, crcs, sorted(varying))
    record, bit = flip // 288 % count, flip % 288  # of a header or digest
    data[record * stride + gap + bit // 8] ^= 1 << bit % 8
    assert not digests_match(kind(data), gap, stride, size, crcs, ALL)
    data[record * stride + gap + bit // 8] ^= 1 << bit % 8
    crcs[record] ^= 1 << bit % 32
    assert not digests_match(kind(data), gap, stride, size, crcs, ALL)


def test_errors_that_would_cancel_out_in_a_sum_over_entries_are_found() -> None:
    data, crcs = _records([bytes([i]) * HEAD_BYTES for i in range(200)], 10, 0, 1)
    stride = HEAD_BYTES + 14
    for record in (7, 150):
        data[record * stride + HEAD_BYTES] ^= 0x40
    assert not digests_match(data, 0, stride, 10, crcs, ALL)


@pytest.mark.parametrize("first", [5, 65536 - 130])
@pytest.mark.parametrize("size", [0, 3, 20])
def test_every_flipped_bit_of_an_entry_ends_the_prefix_there(first: int, size: int) -> None:
    digest, count = Digest(DigestType.CRC32C, b""), 260
    rng = random.Random(size)
    payloads = [rng.randbytes(size) for _ in range(count)]
    bodies = [
        digest.seal(7, first + i, first + i - 1 - i % 7, size * (i + 1), payload) for i, payload in enumerate(payloads)
    ]
    good = bytearray(b"".join((len(body) + 24).to_bytes(4, "big") + bytes(24) + body for body in bodies))
    stride = len(good) // count
    packed = PackedBodies.parse_frames(good, 0)
    assert packed is not None
    assert digest.open_payloads(7, first, packed) == payloads
    whole, numbers = digest.open_prefix(7, first, packed), digest.open_digests(7, first, packed)
    assert whole == [
        (7, first + i, payload, first + i - 1 - i % 7, size * (i + 1)) for i, payload in enumerate(payloads)
    ]
    assert numbers == [int.from_bytes(body[32:36], "big") for body in bodies]
    for bit in range((stride - 28) * 8):
        bad = rng.choice((0, 127, 128, count - 1, rng.randrange(count)))
        at = bad * stride + 28 + bit // 8
        good[at] ^= 1 << bit % 8
        assert digest.open_payloads(7, first, packed) == payloads[:bad]
        if bit % 16 == 5:
            assert digest.open_prefix(7, first, packed) == whole[:bad]
            assert digest.open_digests(7, first, packed) == numbers[:bad]
        good[at] ^= 1 << bit % 8


@pytest.mark.parametrize("first", [0, 250, 65280, 65535 - 300, 65300, 2**40 - 1, -70_000, -3])
@pytest.mark.parametrize("count", [1, 6, 300])
def test_counting_up_is_seen_and_every_wrong_byte_too(first: int, count: int) -> None:
    data = bytearray(b"".join((first + i).to_bytes(8, "big", signed=True) + b"xyz" for i in range(count)))
    assert count_up(data, 0, 11, count, first)
    assert not count_up(data, 0, 11, count, first + 1)
    assert not count_up(data, 0, 11, count, first + 256)
    for record in {0, count // 2, count - 1}:
        for place in range(8):
            data[record * 11 + place] ^= 1
            assert not count_up(data, 0, 11, count, first)
            data[record * 11 + place] ^= 1
