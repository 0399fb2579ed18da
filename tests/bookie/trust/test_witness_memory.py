"""What a bookie remembers of deletions: durable, bounded, harmless when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bookie.garbage.test_gc_limits import delete, write
from tests.support.bookie_kit import running

from buckram.bookie.trust import witness_memory
from buckram.bookie.trust.witness_memory import AHEAD, MOST_FILES, DeletionMemory, FileWrite
from buckram.core.ledgers.deletions import BUCKET, Deleted, decode_file, encode_file
from buckram.errors import MalformedRecord
from buckram.runtime.disk.local import LocalDisk


class Plenty:
    def write_in_reserve(self, write: FileWrite) -> None:
        write()


class Full:
    def write_in_reserve(self, write: FileWrite) -> None:
        raise OSError(28, "No space left on device")


def memory(path: Path, reserve: Plenty | Full | None = None) -> DeletionMemory:
    found = DeletionMemory(LocalDisk(path, "inline"), reserve or Plenty())
    found.load()
    return found


def files(path: Path) -> int:
    return len(list(path.glob("DELETED.*")))


async def ids(found: DeletionMemory) -> list[int]:
    known = await found.known()
    return [bucket * BUCKET + place for bucket in sorted(known) for place in known[bucket].places()]


async def test_what_was_remembered_is_there_after_a_restart(tmp_path: Path) -> None:
    first = memory(tmp_path)
    await first.note_ids(40)
    await first.remember([7, BUCKET - 1, BUCKET, 1 << 62])
    again = memory(tmp_path)
    await again.remember([8])
    assert await ids(memory(tmp_path)) == [7, 8, BUCKET - 1, BUCKET, 1 << 62]
    assert 40 <= memory(tmp_path).next_id <= 40 + AHEAD


async def test_the_oldest_goes_first_and_the_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_memory, "FILE_BYTES", 1)
    kept = memory(tmp_path)
    await kept.note_ids(5)
    for one in range(MOST_FILES + 10):
        await kept.remember([one])
    assert files(tmp_path) == MOST_FILES
    found = await ids(memory(tmp_path))
    assert found == list(range(10, MOST_FILES + 10))
    assert memory(tmp_path).next_id >= 5


async def test_a_note_of_ids_is_written_seldom(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    await kept.note_ids(10)
    before = kept.next_id
    await kept.note_ids(10 + AHEAD // 2 - 1)
    assert kept.next_id == before
    await kept.note_ids(10 + AHEAD)
    assert kept.next_id >= 10 + AHEAD


async def test_a_full_disk_holds_up_no_deletion_and_forgets_nothing(tmp_path: Path) -> None:
    kept = memory(tmp_path, Full())
    await kept.note_ids(50)
    await kept.remember([3])
    assert not files(tmp_path)
    kept._reserve = Plenty()
    await kept.note_ids(50)
    assert await ids(memory(tmp_path)) == [3]


async def test_a_deletion_noted_after_a_full_disk_keeps_the_bound_of_ids(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    await kept.note_ids(50)
    bound = kept.next_id
    kept._reserve = Full()
    await kept.remember([3])
    assert kept.next_id == bound
    kept._reserve = Plenty()
    await kept.remember([4])
    assert await ids(memory(tmp_path)) == [3, 4]
    assert memory(tmp_path).next_id == bound


async def test_a_bound_that_a_full_disk_did_not_take_is_written_with_the_next_note(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    await kept.note_ids(50)
    bound = kept.next_id
    kept._reserve = Full()
    await kept.note_ids(bound)
    assert kept.next_id == bound, "what no file has is not said to a store"
    kept._reserve = Plenty()
    await kept.note_ids(50)
    assert memory(tmp_path).next_id == 50 + AHEAD
    await kept.note_ids(bound)
    assert memory(tmp_path).next_id == bound + AHEAD


async def test_a_damaged_file_is_told_and_the_others_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = encode_file(9, {0: Deleted().and_these([4])})
    (tmp_path / "DELETED.000001").write_bytes(whole)
    (tmp_path / "DELETED.000002").write_bytes(whole[:-4])
    assert await ids(memory(tmp_path)) == [4]
    assert "DELETED.000002" in caplog.text
    for bad in (b"", whole[:-1], whole.replace(b"9", b"8"), b"{}\n00000000\n"):
        with pytest.raises(MalformedRecord):
            decode_file("DELETED.1", bad)


async def test_a_bookie_remembers_what_it_deletes_before_it_does(tmp_path: Path) -> None:
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        await write(kit, 1, 2)
        await delete(kit, 1)
        collector = kit.bookie.collector
        assert collector is not None
        seen: list[bool] = []
        collector._on_deleted = lambda ledger: seen.append(b'"0":"' in (tmp_path / "DELETED.000001").read_bytes())
        assert (await collector.recorded_round()).tolist() == [1]
        assert seen == [True]
        assert await ids(kit.bookie.deletions) == [1]
