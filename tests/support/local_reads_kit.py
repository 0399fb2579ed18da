"""Helpers for tests of bulk reads from local files: watched files and requests, bookies with sealed entries."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.core.wire.located import Located
from buckram.core.wire.messages import BatchRead, LocatedReply
from buckram.runtime.disk.neighbours import NeighbourDirectory, Neighbours
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.production import production_runtime
from buckram.seams import FileData, FileRange
from buckram.testing import Cluster, cluster

KIB = 1024
ALWAYS = ClientConfig(local_read_bytes=1)


class Files:
    """The files of this machine: reads are counted, and can be delayed or changed."""

    def __init__(self) -> None:
        self.inner, self.here = Neighbours(), True
        self.opened: list[str] = []
        self.reads: list[list[FileRange]] = []
        self.gate: asyncio.Event | None = None

    def open(self, directory: str, identity: str) -> Directory | None:
        self.opened.append(directory)
        found = self.inner.open(directory, identity if self.here else "another")
        return None if found is None else Directory(self, found)

    @property
    def bytes(self) -> int:
        return sum(place.length for places in self.reads for place in places)


class Directory:
    def __init__(self, files: Files, inner: NeighbourDirectory) -> None:
        self._files, self._inner = files, inner

    def read(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        self._files.reads.append(list(places))
        return self._inner.read(places) if self._files.gate is None else asyncio.ensure_future(self._late(places))

    async def _late(self, places: Sequence[FileRange]) -> list[FileData]:
        assert self._files.gate is not None
        await self._files.gate.wait()
        return await self._inner.read(places)

    def give_back(self, pieces: Sequence[FileData]) -> None:
        self._inner.give_back(pieces)
        for data, _ in pieces:
            if isinstance(data, bytearray):
                data[:] = bytes(len(data))  # whoever still looked at it would notice


class PendingRequest(list[str]):
    """The bookies that were asked where entries are, in order; `located` has their replies."""

    def __init__(self) -> None:
        super().__init__()
        self.located: list[Located] = []


def recording(monkeypatch: pytest.MonkeyPatch) -> PendingRequest:
    """Record whom clients ask where entries are. For a fixture."""
    found = PendingRequest()
    call = BookiePool.call

    async def counted(self: BookiePool, bookie: str, request: Any, **options: Any) -> Any:
        if not (isinstance(request, BatchRead) and request.located):
            return await call(self, bookie, request, **options)
        found.append(bookie)
        reply = await call(self, bookie, request, **options)
        if isinstance(reply, LocatedReply):
            found.located.append(reply.located)
        return reply

    monkeypatch.setattr(BookiePool, "call", counted)
    return found


async def leaving_nothing(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Check at the end that no task is left and that no error was unhandled or logged. For a fixture."""
    before = asyncio.all_tasks()
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: unseen.append(context))
    yield
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert unseen == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    before |= {asyncio.current_task()}  # type: ignore[arg-type]  # there is one
    left = [task for task in asyncio.all_tasks() if task not in before and not task.done()]
    assert not left, f"tasks left: {left}"


@asynccontextmanager
async def reading(c: Cluster, config: ClientConfig = ALWAYS) -> AsyncIterator[tuple[Client, Files]]:
    files = Files()
    async with connect(c.uri, config=config, runtime=replace(production_runtime(), files=files)) as client:
        yield client, files


@asynccontextmanager
async def settled(*ledgers: Sequence[bytes], **options: Any) -> AsyncIterator[tuple[Cluster, list[int]]]:
    """A cluster with these closed ledgers in sealed files: the bookies were restarted, which seals their logs."""
    async with cluster(3) as c:
        ids = []
        async with c.client() as client:
            for payloads in ledgers:
                async with client.create(**options) as writer:
                    await writer.append_many(payloads)
                ids.append(writer.ledger_id)
        await settle(c)
        yield c, ids


async def settle(c: Cluster) -> None:
    for number in range(len(c.bookies)):
        await c.restart(number)


def sized(kind: str) -> list[bytes]:
    rng = random.Random(kind)
    sizes = {
        "tiny": [5] * 5000,
        "empty": [0] * 10,
        "large": [300 * KIB] * 12,
        "one": [77],
        "mixed": [rng.choice((0, 1, 100, 5000, 150 * KIB, 1500 * KIB)) for _ in range(40)],
    }[kind]
    return [rng.randbytes(size) for size in sizes]


async def same_in_every_way(c: Cluster, ledger: int, payloads: Sequence[bytes], password: str = "") -> None:
    async with reading(c) as (client, files), reading(c, replace(ALWAYS, local_read_bytes=0)) as (plain, none):  # noqa: SIM117 - too long as one
        async with client.open(ledger, password=password) as one, plain.open(ledger, password=password) as other:
            last = len(payloads) - 1
            expected = await other.read(0, last)
            assert [entry.payload for entry in expected] == payloads
            assert await one.read(0, last) == expected
            whole = files.bytes
            assert whole >= sum(map(len, payloads))
            assert await one.read_payloads(0, last) == payloads
            assert files.bytes == 2 * whole
            assert [entry async for entry in one.entries()] == expected
            chunks = [chunk async for chunk in one.chunks(last // 2)]
            assert [entry for chunk in chunks for entry in chunk] == expected[last // 2 :]
            rng = random.Random(ledger)
            for _ in range(10):
                low, high = sorted((rng.randrange(last + 1), rng.randrange(last + 1)))
                before = files.bytes
                assert await one.read(low, high) == expected[low : high + 1]
                assert await one.read_payloads(low, high) == payloads[low : high + 1]
                assert files.bytes > before
            assert (files.opened != [], none.opened) == (True, [])
