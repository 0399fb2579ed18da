"""How group commit lays blocks into a file, on a disk in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.store_kit import add, durable, open_store, small_config

from buckram.bookie.storage.log.block import PREZERO_BELOW, PREZERO_BYTES
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Write


class Watched(MemoryDisk):
    """Remembers where each write of the log began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[int, int]] = []

    def write(self, writes: Sequence[Write], done: Callable[[OSError | None], None], *, sync: bool = True) -> None:
        self.spans += [(one.offset, one.offset + sum(map(len, one.buffers))) for one in writes]
        super().write(writes, done, sync=sync)


async def spans(sizes: Sequence[int], segment_bytes: int, phase: int = 0) -> list[tuple[int, int]]:
    disk = Watched()
    store = open_store(disk, small_config(segment_bytes=segment_bytes, commit_max_bytes=1 << 20))
    store._log.assembly.phase = phase  # by default the store's salt decides
    for entry, size in enumerate(sizes):
        add(store, 1, entry, [bytes(size)])
        assert await durable(store) is None
    await store.close()
    return disk.spans[: len(sizes)]


async def test_a_small_block_in_untouched_space_is_followed_by_zeros_and_the_next_ones_are_not() -> None:
    first, second, third = await spans([100, 100, 5000], 4 << 20)
    assert first == (0, PREZERO_BYTES)
    assert 0 < second[0] < second[1] == third[0] < third[1] < PREZERO_BYTES


async def test_the_next_small_block_beyond_prezeroed_space_prezeroes_more() -> None:
    found = await spans([PREZERO_BELOW - 1000] * 9, 4 << 20)
    assert [end for _, end in found if not end % PREZERO_BYTES] == [PREZERO_BYTES, 2 * PREZERO_BYTES]


async def test_each_store_prezeroes_at_a_phase_of_its_own() -> None:
    """Replicas of one ledger have the same blocks; zeros for the same entry at all of them would hold it up."""
    phase = 40 * 4096
    found = await spans([PREZERO_BELOW - 1000] * 9, 4 << 20, phase)
    assert [end for _, end in found if not (end + phase) % PREZERO_BYTES] == [
        PREZERO_BYTES - phase,
        2 * PREZERO_BYTES - phase,
    ]
    phases = {open_store(seed=seed)._log.assembly.phase for seed in range(20)}
    assert len(phases) > 1
    assert all(not phase % 4096 and 0 <= phase < PREZERO_BYTES for phase in phases)


async def test_a_large_block_prezeroes_nothing() -> None:
    first, second = await spans([PREZERO_BELOW, PREZERO_BELOW], 4 << 20)
    assert first[1] < PREZERO_BELOW + 1024
    assert second[0] == first[1]
    assert second[1] < 2 * (PREZERO_BELOW + 1024)


async def test_the_end_of_the_segment_is_not_passed() -> None:
    (first,) = await spans([100], 280_000)
    assert first == (0, (280_000 + (64 << 10)) // 4 // 4096 * 4096)  # what the file has at first
