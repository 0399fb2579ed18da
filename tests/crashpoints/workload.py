"""A random workload of a store on a memory disk, and the checks of a store that is opened on a crash image of it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.log.tail_page import read_mark
from buckram.bookie.storage.store import Store, StoreError
from buckram.bookie.storage.superblock import read_superblock
from buckram.config import StoreConfig
from buckram.runtime.disk.memory import CrashModel, MemoryDisk
from buckram.seams import PAGE_BYTES, Write

KEY = b"k" * 20
WHOLE = 64 << 10
"""The full size of a log file, in bytes. The log grows beyond it only while no other file is ready."""
LEDGERS = (1, 2, 3, 5, 8, 1 << 40)


class NullMetric:
    value = 0

    def inc(self, amount: int = 1) -> None: ...
    def set(self, value: float) -> None: ...
    def observe(self, value: float) -> None: ...


class NullStats:
    def counter(self, name: str, help: str, **labels: str) -> NullMetric:
        return NullMetric()

    gauge = histogram = counter


def config() -> StoreConfig:
    return StoreConfig(
        segment_bytes=64 << 10,
        commit_max_bytes=16 << 10,
        tail_cache_bytes=0,
        ledger_cache_entries=2,
        reserved_bytes=1 << 20,
        writable_again_bytes=2 << 20,
        compaction_threshold=0.9,
        compaction_bytes_per_s=1 << 40,
    )


def stored(ledger: int, entry: int, lac: int, payload: bytes) -> bytes:
    return struct.pack(">qqqq", ledger, entry, lac, 0) + payload


class UnsyncedDisk(MemoryDisk):
    """Reports log files as synced without syncing them."""

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        super().write_now(writes, sync=sync and not any(write.file.name.startswith("log-") for write in writes))


@dataclass
class Known:
    """What a client may rely on for one ledger. `possible` has every version of each entry that was ever inserted."""

    acked: dict[int, int] = field(default_factory=dict)
    possible: dict[int, list[bytes]] = field(default_factory=dict)
    seen: bool = False
    fenced: bool = False
    lac: int = -1
    packet: int = -1
    packets: list[bytes] = field(default_factory=list)
    deleted: int = 0
    """0: exists, 1: deletion not acknowledged yet, 2: deleted, 3: written again, not acknowledged yet."""


@dataclass
class Oracle:
    """What is known of all ledgers."""

    ledgers: dict[int, Known] = field(default_factory=lambda: {ledger: Known() for ledger in LEDGERS})

    def check(self, store: Store) -> None:
        """Check that everything acknowledged is in the store, and that everything in the store was inserted."""
        assert not store.limbo
        assert store.failed is None
        for ledger, known in self.ledgers.items():
            self._check_state(store, ledger, known)
            wanted = [(ledger, entry) for entry in (*known.possible, 10**6)]
            for (_, entry), outcome in zip(wanted, read_now(store, wanted), strict=True):
                assert not isinstance(outcome, StoreError), outcome
                versions = known.possible.get(entry, [])
                if outcome is None:
                    assert entry not in known.acked or known.deleted, f"ledger {ledger} entry {entry} is missing"
                else:
                    assert known.deleted != 2, f"ledger {ledger} entry {entry} is back although it was deleted"
                    assert outcome in versions, f"ledger {ledger} entry {entry} is something else"
                    # An acknowledged version is never replaced by an older one.
                    newest = max(number for number, version in enumerate(versions) if version == outcome)
                    assert newest >= known.acked.get(entry, 0), f"ledger {ledger} entry {entry} is an old version"

    def _check_state(self, store: Store, ledger: int, known: Known) -> None:
        record = store.ledger(ledger)
        if record is None:
            assert not known.seen, f"ledger {ledger} is unknown to the store"
            return
        assert record.master_key == KEY
        assert record.fenced or not known.fenced
        if known.deleted == 2:
            assert record.tombstone
            assert ledger not in store.ledgers(-1, 100)
        elif not known.deleted:
            assert not record.tombstone
            assert record.lac >= known.lac
            assert ledger in store.ledgers(-1, 100)
            if known.packet >= 0:
                assert record.explicit_lac in known.packets[known.packet :]
            if known.acked:
                last = store.last_entry(ledger)
                assert last is not None
                assert last >= max(known.acked)


def read_now(store: Store, wanted: list[tuple[int, int]]) -> list[bytes | StoreError | None]:
    found: list[Any] = []
    store.read(wanted, found.extend)
    assert len(found) == len(wanted), "a memory disk answers at once"
    return found


def check_file_size(disk: MemoryDisk) -> None:
    """Check that the acknowledged part of the log is within the size that the superblock records for its file."""
    block = read_superblock(disk)
    if block is None or TAIL not in disk.names():
        return
    mark = read_mark(disk.open(TAIL).read(0, PAGE_BYTES), block.salt)
    sizes = {one.seq: one.made for one in block.segments}
    if mark is not None and mark.end.seq in sizes and sizes[mark.end.seq] < WHOLE:
        assert mark.end.offset <= sizes[mark.end.seq], "a block is where the file is not known to be"


class Life:
    """Runs a workload. Before every disk operation it opens and checks `images_each` crash images."""

    def __init__(self, seed: int, images_each: int, pool: ThreadPoolExecutor, *, sync: bool = True) -> None:
        self.rng = random.Random(seed)
        self._crash_rng = random.Random(seed + 1)
        self._images_each, self._pool = images_each, pool
        self.oracle = Oracle()
        self.failure: BaseException | None = None
        self.failed_at = ""
        self.cuts = 0
        self.operations: dict[str, int] = {}
        self._disk_kind = MemoryDisk if sync else UnsyncedDisk
        self.disk = self._disk_kind(before=self._cut, stale=0x5A)
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(self.disk, config(), NullStats(), random.Random(self.rng.random()))

    def _cut(self, operation: str) -> None:
        kind = operation.split()[0]
        self.operations[kind] = self.operations.get(kind, 0) + 1
        for _ in range(self._images_each):
            self.cuts += 1
            image = self.disk.model.crash(self._crash_rng)
            seed = self._crash_rng.getrandbits(32)
            # In another thread, where no event loop runs, the store does no background work.
            try:
                self._pool.submit(self._verify, image, seed).result()
            except BaseException as error:
                # The store reports errors of its disk as failures of its own, so the cause is kept here.
                self.failure = self.failure or error
                self.failed_at = f"{operation}, operation {sum(self.operations.values())}"
                raise

    def _verify(self, image: CrashModel, seed: int) -> None:
        rng = random.Random(seed)
        check_file_size(MemoryDisk(image))
        store = Store.open(MemoryDisk(image), config(), NullStats(), rng)
        self.oracle.check(store)
        if rng.random() < 0.1:
            # A second crash comes right after the first start, whatever that start has written.
            again = Store.open(MemoryDisk(image.crash(rng)), config(), NullStats(), rng)
            self.oracle.check(again)

    async def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                await self._step()
            await self._settle()
        finally:
            if self.failure is not None:
                raise AssertionError(f"cut before {self.failed_at}: {self.failure}") from self.failure
        self.oracle.check(self.store)
        await self.store.close()

    async def _step(self) -> None:
        rng = self.rng
        ledger = rng.choice(LEDGERS)
        known = self.oracle.ledgers[ledger]
        dice = rng.random()
        if known.deleted in (1, 3) or (known.deleted == 2 and dice > 0.2):
            await self._settle()
        elif dice < 0.70:
            self._add(ledger, known)
        elif dice < 0.75 and known.seen and not known.deleted:
            self.store.fence(ledger)
            self.store.after_durable(lambda error: setattr(known, "fenced", True))
        elif dice < 0.83 and known.seen and not known.deleted:
            self._explicit_lac(ledger, known)
        elif dice < 0.86 and known.seen and not known.deleted:
            self._delete(ledger, known)
        elif dice < 0.88:
            await self._settle()
            await self.store.compact()
        elif dice < 0.90:
            await self._settle()
            await self._restart()
        else:
            await self._settle(rng.randrange(1, 60))

    def _add(self, ledger: int, known: Known) -> None:
        rng = self.rng
        top = max(known.possible, default=-1)
        first = top + 1 + (rng.random() < 0.1) if rng.random() < 0.85 or top < 0 else rng.randrange(top + 1)
        count, lac = rng.randint(1, 4), rng.randrange(-1, top + 1) if top >= 0 else -1
        frames = []
        for entry in range(first, first + count):
            # Copies of one entry differ in their LAC only; the payload follows from the ids.
            payload = random.Random(ledger * 1000 + entry).randbytes(rng.choice((0, 1, 300, 900, 1500, 3000)))
            body = stored(ledger, entry, lac, payload)
            packet = struct.pack(">I", 0x02010000) + KEY + body
            frames.append(struct.pack(">I", len(packet)) + packet)
            known.possible.setdefault(entry, []).append(body)
        chunk = b"".join(frames)
        if known.deleted:
            # Only a repair brings a deleted ledger back.
            self.store.put_ledger(ledger, KEY, admitted=False)
            known.deleted = 3
            known.acked = {}
            known.possible = {entry: [known.possible[entry][-1]] for entry in range(first, first + count)}
            known.lac, known.packet, known.packets = -1, -1, []
        elif self.store.ledger(ledger) is None:
            self.store.put_ledger(ledger, KEY)
        self.store.add_run(ledger, first, count, lac, chunk, 0, len(chunk))
        acked = {entry: len(known.possible[entry]) - 1 for entry in range(first, first + count)}

        def done(error: OSError | None) -> None:
            assert error is None
            known.seen = True
            if known.deleted == 3:
                known.deleted = 0
            if not known.deleted:
                known.acked.update(acked)
                known.lac = max(known.lac, lac)

        self.store.after_durable(done)

    def _explicit_lac(self, ledger: int, known: Known) -> None:
        lac = max(known.possible, default=-1)
        known.packets.append(struct.pack(">qq", ledger, lac) + self.rng.randbytes(4))
        self.store.set_explicit_lac(ledger, lac, known.packets[-1])
        number = len(known.packets) - 1

        def done(error: OSError | None) -> None:
            if not known.deleted:
                known.packet, known.lac = max(known.packet, number), max(known.lac, lac)

        self.store.after_durable(done)

    def _delete(self, ledger: int, known: Known) -> None:
        self.store.delete_ledger(ledger)
        known.deleted = 1

        def done(error: OSError | None) -> None:
            known.fenced = True
            known.deleted = 2

        self.store.after_durable(done)

    async def _restart(self) -> None:
        """Close the store or crash, then open it and go on."""
        if self.rng.random() < 0.5:
            await self.store.close()
        else:
            self.store._maintenance._closed = True
            await self.store._maintenance.close()
            self.disk = self._disk_kind(self.disk.model.crash(self.rng), before=self._cut, stale=0x5A)
        self.store = self._open()
        self.oracle.check(self.store)

    async def _settle(self, turns: int = 0) -> None:
        """Run `turns` turns of the event loop; with 0, wait until everything inserted is durable, then run 60 turns."""
        if not turns:
            durable = asyncio.Event()
            self.store.after_durable(lambda error: durable.set())
            while not durable.is_set() and self.failure is None:  # noqa: ASYNC110  # a failed check never sets it
                await asyncio.sleep(0)
        for _ in range(turns or 60):
            await asyncio.sleep(0)
