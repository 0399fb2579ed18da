"""What is not a request: the connection is answered or closed, the bookie goes on and keeps its memory."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from tests.support.bookie_kit import Wire, add, add_frames, running
from tests.support.polling import until
from tests.support.soak import drawn, soak

from buckram.core.wire.messages import Read
from buckram.errors import Code

CLOSING = [
    "0a06080310631801",
    "0a0408031001",
    "0a06080410011801a2060508b4241005",
    "0a06080310021801aa060508b4241005",
    "0209000000000000000000010000000000000002",
    "0202000100000000000000010000000000000002",
    "",
    "00",
    "ff" * 40,
    "0201000000000000",
    "02040000" + "00" * 16,
]


def framed(packet: bytes) -> bytes:
    return struct.pack(">I", len(packet)) + packet


@pytest.mark.parametrize("packet", CLOSING)
async def test_packets_that_close_the_connection(tmp_path: Path, packet: str) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        wire.writer.write(framed(bytes.fromhex(packet)))
        assert await wire.closed()
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.OK


@pytest.mark.parametrize("size", [5 * 1024 * 1024 - 3, 2**31, 2**32 - 1])
async def test_frames_over_the_limit(tmp_path: Path, size: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        wire.writer.write(struct.pack(">I", size))
        assert await wire.closed()


async def test_what_came_before_a_bad_frame_is_still_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        first = await kit.wire()
        assert (await first.call(add(1, 0))).code is Code.OK
        wire = await kit.wire()
        wire.writer.write(add_frames(1, 1, 3) + framed(b"\xff" * 9))
        await wire.closed()
        # The adds were taken in; whether their answers still left is not promised.
        await until(lambda: kit.store.entries(1) == [(0, 4)])


async def test_v3_then_v2_then_never_back(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire: Wire = await kit.wire(3)
        assert (await wire.call(Read(1, 0))).code is Code.NO_LEDGER
        wire.protocol = 2
        assert (await wire.call(Read(1, 0))).code is Code.NO_LEDGER
        wire.protocol = 3
        wire.send(Read(1, 0))
        assert await wire.closed()


async def test_a_frame_byte_by_byte(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        for byte in add_frames(1, 0, 3):
            wire.writer.write(bytes([byte]))
            await wire.writer.drain()
        assert [(await wire.reply()).entry_id for _ in range(3)] == [0, 1, 2]


async def test_random_and_changed_frames_leave_the_bookie_serving(tmp_path: Path) -> None:
    """Random frames and cut or changed requests are sent; afterwards the bookie serves and holds nothing."""
    rounds = soak(20_000, 1000)
    seed = drawn("frames").randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    v3_read = framed(bytes.fromhex("0a06080310011804a2060508b4241005"))
    good = [add_frames(7, 0, 2), struct.pack(">IIqq", 20, 0x02020000, 7, 0), v3_read]
    async with running(tmp_path) as kit:
        for _ in range(rounds):
            wire = await kit.wire()
            noise = bytearray(rng.choice(good) if rng.random() < 0.7 else framed(rng.randbytes(rng.randrange(60))))
            for _ in range(rng.randrange(4)):
                noise[rng.randrange(len(noise))] = rng.randrange(256)
            wire.writer.write(bytes(noise[: rng.randrange(len(noise) + 1)]))
            wire.writer.write_eof()
            assert await wire.drained()
            await wire.close()
        wire = await kit.wire()
        assert (await wire.call(add(8, 0))).code is Code.OK
        await wire.close()
        await until(lambda: kit.bookie.server.budget.total == 0 and not kit.bookie.server.sessions)
        assert not kit.bookie.failed.done()
