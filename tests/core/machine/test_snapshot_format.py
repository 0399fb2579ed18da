"""The entries of a snapshot: every change of them is noticed."""

from __future__ import annotations

import pytest

from buckram.core.machine.snapshot_format import (
    CHUNK_BYTES,
    BadSnapshot,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotHeader,
)

HEADER = SnapshotHeader(7, 5, 100, 3, 2, "00" * 16)


def entries_of(*chunks: bytes) -> tuple[list[bytes], str]:
    encoder = SnapshotEncoder(HEADER, b"sessions", chunks)
    payloads = list(encoder)
    assert encoder.entries == len(payloads)
    assert encoder.bytes == sum(map(len, payloads))
    return payloads, encoder.digest


def decoded(payloads: list[bytes], digest: str, offset: int = 7) -> tuple[SnapshotHeader, bytes, list[bytes]]:
    decoder = SnapshotDecoder()
    for payload in payloads:
        decoder.feed(payload)
    return decoder.finish(offset, digest)


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (CHUNK_BYTES,), (CHUNK_BYTES - 1, 2), (3, 0, 5 * CHUNK_BYTES + 1)])
def test_chunks_of_any_size_come_back_in_bounded_entries(sizes: tuple[int, ...]) -> None:
    chunks = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    payloads, digest = entries_of(*chunks)
    header, sessions, found = decoded(payloads, digest)
    assert (header, sessions, b"".join(found)) == (HEADER, b"sessions", b"".join(chunks))
    assert max(map(len, payloads)) <= CHUNK_BYTES + 1


def test_every_flipped_byte_missing_and_repeated_entry_is_noticed() -> None:
    payloads, digest = entries_of(b"state", b"more")
    for number, payload in enumerate(payloads):
        for cut in ([], [payload, payload]):
            with pytest.raises(BadSnapshot):
                decoded([*payloads[:number], *cut, *payloads[number + 1 :]], digest)
        for place in range(len(payload)):
            other = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
            changed = [*payloads[:number], other, *payloads[number + 1 :]]
            try:
                found = decoded(changed, digest)
            except BadSnapshot:
                continue
            # A footer may differ in what says nothing, such as a space; the state never.
            assert number == len(payloads) - 1
            assert found[2] == [b"statemore"]


def test_another_digest_or_offset_than_published_is_refused() -> None:
    payloads, digest = entries_of(b"state")
    with pytest.raises(BadSnapshot, match="was published"):
        decoded(payloads, "ab" * 32)
    with pytest.raises(BadSnapshot, match="of offset 7"):
        decoded(payloads, digest, offset=8)
