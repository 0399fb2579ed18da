"""A real bookie on a temporary directory and loopback, and a client that speaks frames."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.clock import pass_time

from buckram.bookie.process import Bookie
from buckram.config import BookieConfig, NetConfig, StoreConfig
from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import frame_add
from buckram.core.wire.messages import Add, BatchRead, Request
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.seams import Disk, LocalFiles, Runtime, Space, Write
from buckram.types import DigestType, Fragment, LedgerMetadata, LedgerState

KEY = master_key(b"secret")
OTHER_KEY = master_key(b"wrong")
DIGEST = Digest(DigestType.CRC32C, b"secret")
STORE = StoreConfig(segment_bytes=8 * 1024 * 1024, reserved_bytes=0, writable_again_bytes=0, disk_mode="inline")
CONFIG = BookieConfig(port=0, admission="any")
"""Most of these tests write ledgers to a bookie that its metadata store does not have."""


def stored(ledger: int, entry: int, lac: int | None = None, payload: bytes = b"payload") -> bytes:
    return DIGEST.seal(ledger, entry, entry - 1 if lac is None else lac, (entry + 1) * len(payload), payload)


def add(
    ledger: int,
    entry: int,
    key: bytes = KEY,
    *,
    lac: int | None = None,
    payload: bytes = b"payload",
    recovery: bool = False,
    deferred: bool = False,
    high: bool = False,
) -> Add:
    return Add(ledger, entry, key, stored(ledger, entry, lac, payload), recovery, high, deferred)


def add_frames(ledger: int, first: int, count: int, key: bytes = KEY, payload: bytes = b"payload") -> bytes:
    return b"".join(frame_add(key, stored(ledger, entry, payload=payload)) for entry in range(first, first + count))


def ledger_metadata(
    ensemble: Sequence[str],
    state: LedgerState = LedgerState.OPEN,
    *,
    last: int | None = None,
    password: bytes | None = b"secret",
) -> LedgerMetadata:
    size = len(ensemble)
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        size,
        size,
        1,
        (Fragment(0, tuple(ensemble)),),
        state,
        (last or 0) if closed else None,
        7 if closed else None,
        password=password,
    )


class HeldDisk:
    """A LocalDisk whose completions of synced writes can be held back: what is written is not yet durable."""

    def __init__(self, path: Path) -> None:
        self._disk = LocalDisk(str(path), "inline")
        self.alignment = self._disk.alignment
        self.holding = False
        self.error: OSError | None = None
        self.free_bytes: int | None = None
        self._held: list[tuple[Callable[[OSError | None], None], OSError | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def write(self, writes: Sequence[Write], done: Callable[[OSError | None], None], *, sync: bool = True) -> None:
        def held(error: OSError | None) -> None:
            if self.holding and sync:
                self._held.append((done, error))
            else:
                done(self.error or error)

        self._disk.write(writes, held, sync=sync)

    def space(self) -> Space:
        real = self._disk.space()
        return real if self.free_bytes is None else Space(real.total_bytes, self.free_bytes)

    @property
    def waiting(self) -> int:
        return len(self._held)

    def release(self, error: OSError | None = None) -> None:
        self.holding = False
        while self._held:
            done, outcome = self._held.pop(0)
            done(error or outcome)


class FlakyMetadata:
    """A MetadataStore in front of another that can be made unreachable, or slow until it is released."""

    def __init__(self, inner: TreeStore) -> None:
        self._inner = inner
        self.reads = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_ledger(self, ledger_id: int, watch: Callable[[], None] | None = None) -> Any:
        self.reads += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await self._inner.read_ledger(ledger_id, watch)

    async def list_ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        if self.error is not None:
            raise self.error
        return await self._inner.list_ledgers(after=after, limit=limit)


async def memory_metadata(tree: MemoryTree | None = None, seed: int = 7) -> TreeStore:
    """A session on a cluster of its own (one instance id per seed), or on the tree given."""
    store = TreeStore(MemoryKeys(tree or MemoryTree()), "memory:test", random.Random(seed), takeover_wait_s=0.2)
    await store.initialise()
    return store


class Wire:
    """One connection. Each request gets an id of its own. `call` waits for the next reply, `send` does not wait."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: int) -> None:
        self.reader, self.writer, self.protocol = reader, writer, protocol
        self._next = 1

    def send(self, request: Request) -> None:
        encode = wire_v2.encode_request if self.protocol == 2 else wire_v3.encode_request
        self.writer.write(encode(request, self._next))
        self._next += 1

    async def frame(self, timeout: float = 10.0) -> bytes:
        async with asyncio.timeout(timeout):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)

    async def reply(self, timeout: float = 10.0) -> Any:
        packet = await self.frame(timeout)
        reply, _, _ = (wire_v2 if self.protocol == 2 else wire_v3).decode_reply(packet)
        return reply

    async def call(self, request: Request, timeout: float = 10.0) -> Any:
        self.send(request)
        return await self.reply(timeout)

    async def silent(self, milliseconds: int = 20) -> bool:
        """Whether nothing arrives while the loop's clock moves on by so much."""
        await pass_time(milliseconds / 1000)
        return not self.reader._buffer  # type: ignore[attr-defined]  # the only way to look without waiting

    async def closed(self, timeout: float = 10.0) -> bool:
        async with asyncio.timeout(timeout):
            try:
                return await self.reader.read(1 << 20) == b""
            except ConnectionError:
                return True

    async def drained(self, timeout: float = 10.0) -> bool:
        """Read and discard bytes until the other end closes."""
        async with asyncio.timeout(timeout):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(1 << 16):
                    pass
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Kit:
    """The bookie under test with its disk, metadata store and runtime."""

    def __init__(self, bookie: Bookie, disk: Disk, metadata: Any, runtime: Runtime) -> None:
        self.bookie, self.disk, self.metadata, self.runtime = bookie, disk, metadata, runtime
        self._wires: list[Wire] = []

    @property
    def id(self) -> str:
        assert self.bookie.info is not None
        return self.bookie.info.bookie_id

    @property
    def store(self) -> Any:
        return self.bookie.store

    async def wire(self, protocol: int = 2) -> Wire:
        assert self.bookie.info is not None
        address = self.bookie.info.address
        assert address is not None
        wire = Wire(*await asyncio.open_connection(address.host, address.port), protocol)
        self._wires.append(wire)
        return wire

    async def ledger(self, ledger: int, state: LedgerState = LedgerState.OPEN, **options: Any) -> None:
        """Put a ledger of this bookie into metadata."""
        metadata = ledger_metadata([self.id], LedgerState.OPEN, password=options.pop("password", b"secret"))
        versioned = await self.metadata.create_ledger(ledger, metadata)
        if state is not LedgerState.OPEN:
            changed = ledger_metadata([self.id], state, password=metadata.password, **options)
            await self.metadata.write_ledger(ledger, changed, versioned.version)

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()
        if isinstance(self.disk, HeldDisk):
            self.disk.release()
        await self.bookie.stop()
        self.disk.close()


async def start(
    path: Path,
    *,
    disk: Any = None,
    metadata: Any = None,
    store: StoreConfig = STORE,
    net: NetConfig | None = None,
    seed: int = 3,
    files: LocalFiles | None = None,
    **config: Any,
) -> Kit:
    disk = disk or LocalDisk(str(path), "inline")
    metadata = metadata or await memory_metadata()
    runtime = dataclasses.replace(production_runtime(seed), files=files)
    bookie = Bookie(runtime, disk, metadata, dataclasses.replace(CONFIG, **config), store, net or NetConfig())
    try:
        await bookie.start()
    except BaseException:
        disk.close()
        raise
    return Kit(bookie, disk, metadata, runtime)


@contextlib.asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Kit]:
    kit = await start(path, **options)
    try:
        yield kit
    finally:
        await kit.close()


async def seen(metadata: Any, *, writable: Sequence[str] = (), readonly: Sequence[str] = ()) -> None:
    """Wait until exactly these bookies are registered as writable and as read-only."""
    async with asyncio.timeout(10):
        while True:
            found = await metadata.bookies()
            if list(found.writable) == list(writable) and list(found.readonly) == list(readonly):
                return
            await asyncio.sleep(0.002)


def batch(ledger: int, first: int, count: int = 0, size: int = 1 << 20, **options: Any) -> BatchRead:
    return BatchRead(ledger, first, count, size, **options)


def code_of(packet: bytes) -> int:
    """The status code in a v2 reply."""
    number: int = struct.unpack_from(">i", packet, 4)[0]
    return number
