"""A bookie on a real file system of a few megabytes: filled, stopped, started, emptied."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.limited_kit import Limited
from tests.support.polling import wait_until

from buckram import connect
from buckram.config import ClientConfig
from buckram.errors import BuckramError

pytestmark = pytest.mark.share(10, "clusters")

DISK_MB = 40
SIZE = 64 << 10
SETTINGS = {
    "BUCKRAM_STORE_SEGMENT_BYTES": str(4 << 20),
    "BUCKRAM_STORE_RESERVED_BYTES": str(6 << 20),
    "BUCKRAM_STORE_WRITABLE_AGAIN_BYTES": str(14 << 20),
    "BUCKRAM_BOOKIE_ADMISSION": "known",
    "BUCKRAM_BOOKIE_COLLECTION_INTERVAL_S": "0.2",
    "BUCKRAM_BOOKIE_COLLECTION_AGE_S": "0.2",
}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(place)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def bookies() -> Iterator[list[Limited]]:
    started: list[Limited] = []
    yield started
    for one in started:
        one.close()


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for unit in (1 << 20, 4096):
            try:
                while file.write(bytes(unit)) == unit:
                    pass
            except OSError:
                continue
    return ballast


async def write_until_refused(uri: str) -> dict[int, int]:
    """The ledgers made, and how many of their entries were acknowledged."""
    acked: dict[int, int] = {}
    async with connect(uri, config=ClientConfig(quarantine_s=0.5)) as client:
        for _ in range(12):
            try:
                async with asyncio.timeout(15), await client.create(ensemble="1/1/1") as writer:
                    acked[writer.ledger_id] = 0
                    for entry in range(48):
                        await writer.append(entry.to_bytes(8, "big") * (SIZE // 8))
                        acked[writer.ledger_id] = entry + 1
            except (BuckramError, TimeoutError):
                break
    return acked


async def all_readable(uri: str, acked: dict[int, int]) -> bool:
    async with connect(uri) as client:
        for ledger_id, count in acked.items():
            if not count:
                continue
            async with client.recover(ledger_id) as reader:
                got = await reader.read_payloads(0, count - 1)
            assert got == [entry.to_bytes(8, "big") * (SIZE // 8) for entry in range(count)]
    return True


async def delete_all(uri: str, acked: dict[int, int]) -> None:
    async with connect(uri) as client:
        for ledger_id in acked:
            await client.delete(ledger_id, force=True)


async def is_writable(uri: str) -> bool:
    async with connect(uri) as client:
        try:
            async with asyncio.timeout(5), await client.create(ensemble="1/1/1") as writer:
                await writer.append(b"again")
        except (BuckramError, TimeoutError):
            return False
    return True


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_full_disk_is_readable_after_a_restart_and_can_be_emptied(
    tmp_path: Path, small: Path, bookies: list[Limited], end: signal.Signals
) -> None:
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    bookies.append(bookie := Limited(small / "b", tmp_path, **SETTINGS).ready())
    acked = asyncio.run(write_until_refused(uri))
    assert sum(acked.values()) > 100
    assert "the store is read-only" in bookie.said()
    fill(small)
    assert bookie.process.poll() is None
    bookie.end(end)
    fill(small)
    assert os.statvfs(small).f_bavail == 0
    bookies.append(bookie := Limited(small / "b", tmp_path, **SETTINGS).ready())
    assert asyncio.run(all_readable(uri, acked))
    asyncio.run(delete_all(uri, acked))
    wait_until(lambda: asyncio.run(is_writable(uri)), "the bookie is not writable")
    assert (small / "b" / "reserve").exists()
    assert bookie.process.poll() is None
    assert "Traceback" not in bookie.said()
    assert "limbo" not in bookie.said()
    assert bookie.end() == 0
