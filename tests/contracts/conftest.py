"""Every key store runs the same suite: a backend opens sessions on one tree and can end one from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from buckram.metadata.memory import MemoryKeys, MemoryTree
from buckram.metadata.sqlite import SqliteKeys
from buckram.metadata.store import TreeStore
from buckram.seams import KeyStore

DEADLINE_S = 10.0


class Backend(Protocol):
    name: str

    def open(self) -> KeyStore: ...
    async def lose_session(self, keys: KeyStore) -> None:
        """End the session as a failure would, its process staying alive."""
        ...


class MemoryBackend:
    name = "memory"

    def __init__(self) -> None:
        self.tree = MemoryTree()

    def open(self) -> KeyStore:
        return MemoryKeys(self.tree)

    async def lose_session(self, keys: KeyStore) -> None:
        assert isinstance(keys, MemoryKeys)
        self.tree.expire(keys.session)


class SqliteBackend:
    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metadata.db"

    def open(self) -> KeyStore:
        return SqliteKeys(self.path)

    async def lose_session(self, keys: KeyStore) -> None:
        """Take the files of all sessions away: whoever looks takes them for dead."""
        for file in self.path.with_name("metadata.db.sessions").iterdir():
            file.unlink()


class Cluster:
    """Sessions on one tree, all closed at the end of the test."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.opened: list[KeyStore] = []

    async def keys(self) -> KeyStore:
        keys = self.backend.open()
        self.opened.append(keys)
        await keys.prepare()
        return keys

    async def store(self, seed: int = 1, *, takeover_wait_s: float = 10.0) -> TreeStore:
        rng = random.Random(seed)
        store = TreeStore(await self.keys(), f"{self.backend.name}:test", rng, takeover_wait_s=takeover_wait_s)
        await store.initialise()
        return store

    async def close(self) -> None:
        for keys in self.opened:
            await keys.close()


@pytest.fixture(params=["memory", "sqlite"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    opened = Cluster(MemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path))
    yield opened
    await opened.close()


class Watch:
    """A Notify that counts; equal to itself only."""

    def __init__(self) -> None:
        self.times = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._event.set()

    async def fired(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._event.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - polling with a deadline is what this is for
            await asyncio.sleep(0)
