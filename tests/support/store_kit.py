"""Frames and small helpers for tests of the store."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable
from typing import Any

from buckram.bookie.storage.store import Store, StoreError
from buckram.config import StoreConfig
from buckram.core.entries.packed import FrameParts
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Disk

KEY = b"k" * 20


class NullMetric:
    value = 0

    def inc(self, amount: int = 1) -> None:
        pass

    def set(self, value: float) -> None:
        pass

    def observe(self, value: float) -> None:
        pass


class NullStats:
    def counter(self, name: str, help: str, **labels: str) -> NullMetric:
        return NullMetric()

    def gauge(self, name: str, help: str, **labels: str) -> NullMetric:
        return NullMetric()

    def histogram(self, name: str, help: str, **labels: str) -> NullMetric:
        return NullMetric()


def stored(ledger: int, entry: int, lac: int = -1, payload: bytes = b"") -> bytes:
    return struct.pack(">qqqq", ledger, entry, lac, 0) + payload


def frame(ledger: int, entry: int, lac: int = -1, payload: bytes = b"", key: bytes = KEY) -> bytes:
    body = struct.pack(">I", 0x02010000) + key + stored(ledger, entry, lac, payload)
    return struct.pack(">I", len(body)) + body


def small_config(**changes: Any) -> StoreConfig:
    values: dict[str, Any] = {
        "segment_bytes": 64 << 10,
        "commit_max_bytes": 16 << 10,
        "tail_cache_bytes": 0,
        "reserved_bytes": 1 << 20,
        "writable_again_bytes": 2 << 20,
        "compaction_bytes_per_s": 1 << 40,
    }
    return StoreConfig(**(values | changes))


def open_store(disk: Disk | None = None, config: StoreConfig | None = None, seed: int = 1) -> Store:
    return Store.open(disk or MemoryDisk(), config or small_config(), NullStats(), random.Random(seed))


def add(store: Store, ledger: int, first: int, payloads: Iterable[bytes], lac: int = -1, *, bulk: bool = False) -> None:
    frames = [frame(ledger, first + i, lac, payload) for i, payload in enumerate(payloads)]
    chunk = b"".join(frames)
    if store.ledger(ledger) is None:
        store.put_ledger(ledger, KEY)
    even = len(set(map(len, frames))) == 1
    store.add_run(ledger, first, len(frames), lac, chunk, 0, len(chunk), even=even, bulk=bulk)


async def durable(store: Store) -> OSError | None:
    future: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    store.after_durable(future.set_result)
    return await future


async def read(store: Store, *wanted: tuple[int, int]) -> list[bytes | StoreError | None]:
    future: asyncio.Future[list[bytes | StoreError | None]] = asyncio.get_running_loop().create_future()
    store.read(list(wanted), future.set_result)
    return await future


async def read_range(store: Store, ledger: int, first: int, count: int, size: int) -> list[bytes] | StoreError:
    future: asyncio.Future[list[bytes] | StoreError] = asyncio.get_running_loop().create_future()
    store.read_range(ledger, first, count, size, future.set_result)
    return await future


async def read_frames(store: Store, ledger: int, first: int, count: int, size: int) -> FrameParts | None:
    future: asyncio.Future[FrameParts | None] = asyncio.get_running_loop().create_future()
    store.read_frames(ledger, first, count, size, future.set_result)
    return await future


async def settle(store: Store, turns: int = 400) -> None:
    """Wait until the background work of a store on a memory disk is done."""
    await durable(store)
    for _ in range(turns):
        await asyncio.sleep(0)


async def reopened(store: Store, disk: Disk) -> Store:
    await store.close()
    return open_store(disk)
