"""One entry of a run whose frames have one size is read without the others, wherever the run came from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.store_kit import add, durable, open_store, read, reopened, settle, stored

from buckram.bookie.storage.segments.segments import Footer
from buckram.bookie.storage.store import Store
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Read

LEDGERS, RUN, RUNS = 3, 20, 12


async def filled(disk: MemoryDisk, *, even: bool) -> tuple[Store, dict[tuple[int, int], bytes]]:
    """Runs of 20 entries, 18 KB each, in more than one log file."""
    store, content = open_store(disk), {}
    for first in range(0, RUN * RUNS, RUN):
        for ledger in range(LEDGERS):
            sizes = [900 if even else 890 + i for i in range(RUN)]
            payloads = [bytes([ledger, first + i]) * (size // 2) for i, size in enumerate(sizes)]
            add(store, ledger, first, payloads)
            content |= {(ledger, first + i): stored(ledger, first + i, -1, one) for i, one in enumerate(payloads)}
        await durable(store)
        await settle(store, 5)
    await settle(store)
    assert store.stats()["sealed_segments"] >= 3
    return store, content


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each read of the disk is."""
    lengths: list[int] = []
    original = MemoryDisk.read

    def watch(self: MemoryDisk, reads: Sequence[Read], done: Any) -> None:
        lengths.extend(one.length for one in reads)
        original(self, reads, done)

    monkeypatch.setattr(MemoryDisk, "read", watch)
    return lengths


@pytest.mark.parametrize("stage", ["opened again", "from the blocks", "compacted"])
async def test_only_its_pages_are_read(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store, content = await filled(disk, even=True)
    if stage == "opened again":
        store = await reopened(store, disk)
    elif stage == "from the blocks":
        await store._maintenance.close()
        store = open_store(MemoryDisk(disk.model.crash(random.Random(1))))
    elif stage == "compacted":
        store.delete_ledger(1)
        store.delete_ledger(2)
        await settle(store)
        assert await store.compact() > 0
        content = {key: one for key, one in content.items() if key[0] == 0}
        store = await reopened(store, disk)
    lengths = watched(monkeypatch)
    for key in sorted(content, reverse=True):  # nothing is read ahead for who goes back
        assert await read(store, key) == [content[key]]
    assert lengths
    assert max(lengths) <= 2 * 4096
    lengths.clear()
    for ledger in {key[0] for key in content}:
        rows = [(ledger, entry) for entry in range(RUN * RUNS)]
        assert await read(store, *rows) == [content[key] for key in rows]
    assert len(lengths) < len(content) / 4, "neighbours are read together"
    await store.close()


async def test_frames_of_several_sizes_are_found_in_their_run() -> None:
    store, content = await filled(MemoryDisk(), even=False)
    for key in random.Random(3).sample(sorted(content), 200):
        assert await read(store, key) == [content[key]]
    await store.close()


async def test_a_row_of_single_adds_costs_a_look_up_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each of those behind it."""
    store = open_store(MemoryDisk())
    for entry in range(1500):
        add(store, 7, entry, [bytes(100)])
        if entry % 50 == 0:
            await settle(store, 5)
    await settle(store)
    looked, run = 0, Footer._run

    def counted(self: Footer, index: int) -> Any:
        nonlocal looked
        looked += 1
        return run(self, index)

    monkeypatch.setattr(Footer, "_run", counted)
    assert store.stats()["sealed_segments"] >= 2
    assert await read(store, *[(7, entry) for entry in range(256)]) == [
        stored(7, entry, -1, bytes(100)) for entry in range(256)
    ]
    assert 256 <= looked <= 4 * 256
    await store.close()
