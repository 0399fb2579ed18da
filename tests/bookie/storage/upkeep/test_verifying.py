"""The check of sealed files: every damaged block is found, and what is bad reads as an error and is not listed."""

from __future__ import annotations

import errno

import pytest
from tests.bookie.storage.test_corruption import crashed, filled, flip, stop
from tests.support.store_kit import add, durable, open_store, read, read_frames, read_range, settle

from buckram.bookie.storage.log.log_position import Position
from buckram.bookie.storage.store import Store, StoreError
from buckram.bookie.storage.upkeep.verifying import BadExtent
from buckram.runtime.disk.memory import MemoryDisk


async def passed(store: Store) -> list[BadExtent]:
    """One pass over all sealed files: what was bad."""
    at, found = Position(0, 0), []
    for _ in range(10_000):
        piece = await store.verifying.piece(at)
        at = piece.next
        if piece.bad is not None:
            found.append(piece.bad)
        if piece.last:
            return found
    pytest.fail("the pass does not end")


async def opened_again(disk: MemoryDisk) -> tuple[MemoryDisk, Store]:
    disk = crashed(disk)
    store = open_store(disk)
    await settle(store)
    return disk, store


async def test_a_whole_store_has_no_bad_block() -> None:
    disk = MemoryDisk()
    await filled(disk)
    _, store = await opened_again(disk)
    assert len(store.verifying.sealed()) >= 3
    assert await passed(store) == []
    assert not store.limbo


@pytest.mark.parametrize("offset", [3, 13, 40, 500, 9000])
async def test_a_flipped_byte_leads_to_the_entries_of_its_block(offset: int) -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk, store = await opened_again(disk)
    segment = store.verifying.sealed()[1]
    flip(disk, segment.name, offset)
    (extent,) = await passed(store)
    assert extent.segment is segment
    assert extent.begin <= offset < extent.end
    suspects = await store.verifying.suspects(extent)
    held = {
        (ledger, entry) for ledger, spans in suspects.items() for first, end in spans for entry in range(first, end)
    }
    assert 0 < len(held) < len(content) / 4
    whole = [key for key in sorted(content) if key not in held]
    assert await read(store, *whole) == [content[key] for key in whole]
    assert not store.limbo


async def test_bad_entries_are_errors_and_not_listed_until_a_newer_copy_is_there() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk, store = await opened_again(disk)
    segment = store.verifying.sealed()[0]
    flip(disk, segment.name, 700)
    (extent,) = await passed(store)
    suspects = await store.verifying.suspects(extent)
    for ledger, spans in suspects.items():
        store.verifying.set_bad(segment, ledger, spans, spans)
    bad = store.verifying.bad()
    assert bad == suspects
    for ledger, spans in bad.items():
        for first, end in spans:
            for outcome in await read(store, *[(ledger, entry) for entry in range(first, end)]):
                assert isinstance(outcome, StoreError)
                assert outcome.kind == "corrupt"
            assert isinstance(await read_range(store, ledger, first, 5, 10_000), StoreError)
            assert await read_frames(store, ledger, first, 5, 10_000) is None
            listed = store.entries(ledger)
            assert not any(begin <= first < begin + count for begin, count in listed)
    # A newer copy of each is good, in whatever file it is; then nothing is bad any more.
    for ledger, spans in bad.items():
        for first, end in spans:
            for entry in range(first, end):
                add(store, ledger, entry, [bytes([ledger]) * 300], lac=entry - 1)
    await durable(store)
    await store.verifying.forget_healed()
    assert store.verifying.bad_entries == 0
    assert segment.bad is None
    keys = sorted(content)
    assert await read(store, *keys) == [content[key] for key in keys]
    for ledger in range(4):
        assert store.entries(ledger) == [(0, 200)]
    (again,) = await passed(store)
    assert await store.verifying.suspects(again) == {}  # the block stays bad, and nothing depends on it
    await stop(store)


async def test_an_older_copy_of_a_bad_entry_is_not_listed_either() -> None:
    disk = MemoryDisk()
    await filled(disk)
    disk, store = await opened_again(disk)
    add(store, 0, 0, [b"newer"])
    for entry in range(200, 500):
        add(store, 0, entry, [bytes(300)])
        await durable(store)
    await settle(store)
    newest = next(
        one
        for one in reversed(store.verifying.sealed())
        if one.find(0, 0, 0, store.ledger(0).epoch)  # type: ignore[union-attr]
    )
    store.verifying.set_bad(newest, 0, [(0, 1)], [(0, 1)])
    (outcome,) = await read(store, (0, 0))
    assert isinstance(outcome, StoreError)
    assert store.entries(0)[0][0] == 1
    await stop(store)


async def test_a_damaged_footer_is_rebuilt_and_nothing_is_lost() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk, store = await opened_again(disk)
    segment = store.verifying.sealed()[0]
    assert segment.footer is not None
    flip(disk, segment.name, segment.footer.trailer.footer_at + 100)
    assert await passed(store) == []
    assert not store.limbo
    await settle(store)
    keys = sorted(content)
    assert await read(store, *keys) == [content[key] for key in keys]


async def test_an_unreadable_piece_is_bad_and_a_shortage_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    await filled(disk)
    disk, store = await opened_again(disk)
    segment = store.verifying.sealed()[0]
    file = store._state.files.get(segment.name)
    whole = type(file).read

    def failing(number: int) -> None:
        def read_some(self: object, offset: int, length: int) -> bytes:
            if self.name == segment.name and offset <= 2048 < offset + length:  # type: ignore[attr-defined]
                raise OSError(number, "as the test says")
            return whole(self, offset, length)  # type: ignore[arg-type]

        monkeypatch.setattr(type(file), "read", read_some)

    failing(errno.EMFILE)
    with pytest.raises(OSError, match="as the test says"):
        await store.verifying.piece(Position(segment.seq, 0))
    failing(errno.EIO)
    piece = await store.verifying.piece(Position(segment.seq, 0))
    assert piece.bad is not None
    assert await store.verifying.suspects(piece.bad)
    assert store.failed is None
    assert not store.limbo
