"""What a digest refuses. The bytes of good entries are in test_wire_vectors."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.entries.entry import Digest, entry_ids, master_key
from buckram.core.entries.packed import PackedBodies
from buckram.core.wire.adds import frame_add, frame_adds, walk_frames
from buckram.errors import DigestMismatch, InvalidArgument
from buckram.types import DigestType

pytestmark = pytest.mark.usefixtures("twin")

KINDS = list(DigestType)
CHECKED = [DigestType.CRC32, DigestType.CRC32C, DigestType.MAC]


@pytest.mark.parametrize("kind", CHECKED)
def test_every_changed_byte_is_seen(kind: DigestType) -> None:
    digest = Digest(kind, b"pw")
    stored = digest.seal(7, 3, 2, 11, b"payload")
    for i in range(len(stored)):
        bad = stored[:i] + bytes([stored[i] ^ 1]) + stored[i + 1 :]
        with pytest.raises(DigestMismatch):
            digest.open(7, 3, bad)
        assert digest.open_payloads(7, 3, [bad]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_and_short_entries(kind: DigestType) -> None:
    digest = Digest(kind, b"pw")
    stored = digest.seal(7, 3, 2, 11, b"")
    for ledger, entry in ((8, 3), (7, 4), (8, None)):
        with pytest.raises(DigestMismatch):
            digest.open(ledger, entry, stored)
    assert digest.open(7, None, stored).entry_id == 3
    for size in range(len(stored)):
        with pytest.raises(DigestMismatch):
            digest.open(7, 3, stored[:size])
        assert digest.open_payloads(7, 3, [stored[:size]]) == []


def test_mac_depends_on_the_password_and_crc_does_not() -> None:
    with pytest.raises(DigestMismatch):
        Digest(DigestType.MAC, b"a").open(7, 3, Digest(DigestType.MAC, b"b").seal(7, 3, 2, 1, b"x"))
    assert Digest(DigestType.CRC32C, b"a").open(7, 3, Digest(DigestType.CRC32C, b"b").seal(7, 3, 2, 1, b"x"))


@pytest.mark.parametrize("kind", KINDS)
def test_lac_packets(kind: DigestType) -> None:
    digest = Digest(kind, b"pw")
    packet = digest.seal_lac(7, 41)
    assert digest.open_lac(7, packet) == 41
    assert digest.open_lac(7, digest.seal_lac(7, -1)) == -1
    with pytest.raises(DigestMismatch):
        digest.open_lac(8, packet)
    with pytest.raises(DigestMismatch):
        digest.open_lac(7, packet[:-1])
    if kind is not DigestType.DUMMY:
        with pytest.raises(DigestMismatch):
            digest.open_lac(7, packet[:15] + b"\xff" + packet[16:])


def test_a_prefix_ends_before_the_first_bad_entry() -> None:
    digest = Digest(DigestType.CRC32C, b"")
    bodies = [digest.seal(7, i, -1, i, b"%d" % i) for i in range(5)]
    assert [e.payload for e in digest.open_prefix(7, 0, bodies)] == [b"0", b"1", b"2", b"3", b"4"]
    assert digest.open_payloads(7, 0, bodies) == [b"0", b"1", b"2", b"3", b"4"]
    bodies[2] = bodies[3]
    assert [e.entry_id for e in digest.open_prefix(7, 0, bodies)] == [0, 1]
    assert digest.open_payloads(7, 0, bodies) == [b"0", b"1"]
    assert digest.open_prefix(7, 1, bodies) == []


def _in_a_packet(bodies: list[bytes]) -> PackedBodies:
    packet = b"head" + b"".join(struct.pack(">i", len(body)) + body for body in bodies) + b"tail"
    packed = PackedBodies.parse(packet, 4, len(packet) - 4)
    assert packed is not None
    return packed


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.CRC32])
@pytest.mark.parametrize("bad", [0, 1, 127, 128, 200, 299])
@pytest.mark.parametrize("where", [3, 15, 31, 33, 50, -1])
def test_a_changed_byte_in_a_large_packet_ends_the_prefix_there(kind: DigestType, bad: int, where: int) -> None:
    digest = Digest(kind, b"")
    bodies = [digest.seal(7, 5 + i, i, 20 * i, b"%020d" % i) for i in range(300)]
    spoilt = bytearray(bodies[bad])
    spoilt[where] ^= 1
    bodies[bad] = bytes(spoilt)
    frames = bytearray(b"".join(frame_add(digest.key, body) for body in bodies))
    for packed in (_in_a_packet(bodies), PackedBodies.parse_frames(frames, 0)):
        assert packed is not None
        assert packed.stride
        assert digest.open_payloads(7, 5, packed) == [b"%020d" % i for i in range(bad)]
        assert digest.open_prefix(7, 5, packed) == [(7, 5 + i, b"%020d" % i, i, 20 * i) for i in range(bad)]
        assert len(digest.open_digests(7, 5, packed)) == bad
        assert digest.count_good(7, 5, packed) == bad
        assert digest.count_good(8, 5, packed) == 0


def test_good_entries_in_the_wrong_place_of_a_large_packet() -> None:
    digest = Digest(DigestType.CRC32C, b"")
    good = [digest.seal(7, i, -1, i, b"%020d" % i) for i in range(300)]
    foreign = digest.seal(8, 250, -1, 250, b"%020d" % 250)
    for spoilt, until in (
        ([*good[:250], foreign, *good[251:]], 250),
        (good[:130] + good[131:], 130),
        (good[:9] + good[8:], 9),
    ):
        assert digest.open_payloads(7, 0, _in_a_packet(spoilt)) == [b"%020d" % i for i in range(until)]
        assert len(digest.open_prefix(7, 0, _in_a_packet(spoilt))) == until
    assert digest.open_payloads(7, 1, _in_a_packet(good)) == []
    assert digest.open_payloads(7, 2**63 - 9, _in_a_packet(good)) == []


def test_a_packet_of_mixed_sizes_with_a_shorter_last_entry() -> None:
    digest = Digest(DigestType.CRC32C, b"")
    for sizes in ([20] * 299 + [3], [20] * 128 + [21] * 172, [0] * 300, [1]):
        bodies = [digest.seal(7, i, -1, i, b"x" * size) for i, size in enumerate(sizes)]
        packed = _in_a_packet(bodies)
        assert [len(payload) for payload in digest.open_payloads(7, 0, packed)] == sizes
        assert [entry.entry_id for entry in digest.open_prefix(7, 0, packed)] == list(range(len(sizes)))
        assert [len(payload) for payload in digest.open_payloads(7, 0, packed[:-1])] == sizes[:-1]


def test_ids_out_of_range_are_an_argument_error() -> None:
    with pytest.raises(InvalidArgument, match="i64"):
        Digest(DigestType.DUMMY, b"").seal(2**63, 0, 0, 0, b"")


@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 9),
    st.integers(-1, 2**63 - 1),
    st.lists(st.binary(max_size=40), min_size=1, max_size=8),
)
def test_framed_entries_open_again(kind: DigestType, ledger: int, first: int, lac: int, payloads: list[bytes]) -> None:
    digest, key = Digest(kind, b"secret"), master_key(b"secret")
    chunk, acks, length = frame_adds(digest, key, ledger, first, lac, 100, payloads, 6)
    assert length == 100 + sum(map(len, payloads))
    assert len(acks) == 28 * len(payloads)
    total = 100
    for i, (flags, sent_key, stored) in enumerate(walk_frames(chunk, 0, len(chunk))):
        total += len(payloads[i])
        assert (flags, sent_key) == (6, key)
        assert entry_ids(stored) == (ledger, first + i, lac)
        entry = digest.open(ledger, first + i, stored)
        assert (entry.payload, entry.length, entry.last_add_confirmed) == (payloads[i], total, lac)
        assert stored == digest.seal(ledger, first + i, lac, total, payloads[i])
