"""Collection: what may go and what must stay (F17, M7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bookie_kit import FlakyMetadata, Kit, add, memory_metadata, running
from tests.support.polling import until

from buckram.bookie.garbage import collector as gc
from buckram.bookie.garbage.collector import Collector
from buckram.bookie.storage.read_results import StoreError
from buckram.config import BookieConfig
from buckram.core.wire.messages import Read
from buckram.errors import Code, MetadataUnavailable
from buckram.types import LedgerState

AGE = 1.0


async def write(kit: Kit, *ledgers: int) -> None:
    wire = await kit.wire()
    for ledger in ledgers:
        assert (await wire.call(add(ledger, 0))).code is Code.OK
    await wire.close()


def collector(kit: Kit, age: float = AGE) -> Collector:
    config = BookieConfig(collection_age_s=age, collection_interval_s=3600.0)
    return Collector(kit.store, kit.metadata, kit.id, config, lambda ledger: None)


async def older() -> None:
    """Let more than AGE pass on the loop's clock."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + AGE * 1.2
    await until(lambda: loop.time() >= deadline)


async def test_a_ledger_goes_only_after_two_listings_far_enough_apart(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1)
        await write(kit, 1, 2)
        finder = collector(kit)
        assert (await finder.round()).tolist() == []
        assert (await finder.round()).tolist() == []  # too soon
        await older()
        assert (await finder.round()).tolist() == [2]
        wire = await kit.wire()
        assert (await wire.call(Read(2, 0))).code is Code.NO_LEDGER
        assert (await wire.call(add(2, 1))).code is Code.FENCED
        assert (await wire.call(Read(1, 0))).code is Code.OK


async def test_a_ledger_that_appears_again_starts_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await write(kit, 2)
        finder = collector(kit)
        await finder.round()
        await kit.ledger(2)
        await older()
        assert (await finder.round()).tolist() == []
        found = await kit.metadata.read_ledger(2)
        await kit.metadata.delete_ledger(2, found.version)
        assert (await finder.round()).tolist() == []
        await older()
        assert (await finder.round()).tolist() == [2]


async def test_a_failed_listing_deletes_nothing(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await write(kit, 2)
        finder = collector(kit)
        await finder.round()
        await older()
        metadata.error = MetadataUnavailable("gone")
        with pytest.raises(MetadataUnavailable):
            await finder.round()
        assert not kit.store.ledger(2).tombstone
        metadata.error = None
        assert (await finder.round()).tolist() == [2]


class CreatesDuringListing(FlakyMetadata):
    """A ledger is written here while the listing is under way, after its id was passed over."""

    kit: Kit | None = None

    async def list_ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        page = await super().list_ledgers(after=after, limit=limit)
        if self.kit is not None:
            kit, self.kit = self.kit, None
            await kit.ledger(5)
            await write(kit, 5)
        return page


async def test_the_store_is_listed_before_metadata(tmp_path: Path) -> None:
    metadata = CreatesDuringListing(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        finder = collector(kit, age=0.0)
        metadata.kit = kit
        assert (await finder.round()).tolist() == []
        assert (await finder.round()).tolist() == []
        assert kit.store.entries(5) == [(0, 1)]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED])
async def test_copies_that_moved_go_only_when_the_ledger_is_closed(tmp_path: Path, state: LedgerState) -> None:
    async with running(tmp_path) as kit:
        await write(kit, 3)
        await elsewhere(kit, 3, state)
        finder = collector(kit)
        assert (await finder.round()).tolist() == []
        await older()
        expected = [3] if state is LedgerState.CLOSED else []
        assert (await finder.round()).tolist() == expected
        await older()
        assert (await finder.round()).tolist() == []


async def elsewhere(kit: Kit, ledger: int, state: LedgerState) -> None:
    from tests.support.bookie_kit import ledger_metadata

    versioned = await kit.metadata.create_ledger(ledger, ledger_metadata(["other:1"]))
    if state is not LedgerState.OPEN:
        await kit.metadata.write_ledger(ledger, ledger_metadata(["other:1"], state), versioned.version)


async def test_a_copy_that_is_still_growing_stays(tmp_path: Path) -> None:
    """Repair copies entries here before metadata names this bookie (M7)."""
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        await elsewhere(kit, 3, LedgerState.CLOSED)
        finder = collector(kit)
        for entry in range(3):
            assert (await wire.call(add(3, entry, recovery=True))).code is Code.OK
            assert (await finder.round()).tolist() == []
            await older()
        # Untouched since the last look.
        assert (await finder.round()).tolist() == [3]


async def test_a_round_reads_a_bounded_number_of_records_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "EXAMINED_PER_ROUND", 2)
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await write(kit, 1, 2, 3, 4, 5)
        for ledger in range(1, 6):
            await elsewhere(kit, ledger, LedgerState.CLOSED)
        finder = collector(kit, age=0.0)
        gone: list[int] = []
        for _ in range(8):
            before = metadata.reads
            gone += await finder.round()
            assert metadata.reads - before <= 2
        assert sorted(gone) == [1, 2, 3, 4, 5]


async def test_collection_runs_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, collection_interval_s=0.01, collection_age_s=0.02) as kit:
        while await kit.metadata.allocate_ledger_id() < 2:
            pass  # an id that the store never gave is kept
        await write(kit, 2)
        await until(lambda: kit.store.ledger(2).tombstone)


async def test_deleting_very_many_ledgers_never_holds_the_loop(tmp_path: Path) -> None:
    """Counted in ledgers per turn of the loop, not in time: others get many turns while a thousand go."""
    count = 1000
    async with running(tmp_path) as kit:
        for ledger in range(count):
            kit.store.put_ledger(ledger, b"k" * 20)
        finder = collector(kit, age=0.0)
        assert (await finder.round()).tolist() == []
        turns = asyncio.ensure_future(_most_per_turn(finder))
        await asyncio.sleep(0)
        assert len(await finder.round()) == count
        turns.cancel()
        most = await turns
        assert 0 < most <= gc.DELETED_AT_ONCE
        assert kit.store.ledgers(-1, 10) == []


async def _most_per_turn(finder: Collector) -> int:
    """The most ledgers deleted between two turns of the loop, until cancelled."""
    most, before = 0, finder.collected
    try:
        while True:
            await asyncio.sleep(0)
            most, before = max(most, finder.collected - before), finder.collected
    except asyncio.CancelledError:
        return most


async def test_a_deletion_that_fails_is_made_up_for_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as kit:
        await write(kit, 1, 2, 3)
        finder = collector(kit)
        await finder.round()
        await older()
        delete = kit.store.delete_ledger

        def busy_for_the_second(ledger: int) -> None:
            if ledger == 2:
                raise StoreError("busy", "no room")
            delete(ledger)

        with monkeypatch.context() as patch:
            patch.setattr(kit.store, "delete_ledger", busy_for_the_second)
            with pytest.raises(StoreError):
                await finder.round()
        assert (await finder.round()).tolist() == [2, 3]


class MadeAfterTheListing(FlakyMetadata):
    """A ledger is made under an id that the listing lacked, before the bookie acts on that listing."""

    kit: Kit | None = None

    async def list_ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        page = await super().list_ledgers(after=after, limit=limit)
        if not page and self.kit is not None:
            kit, self.kit = self.kit, None
            await kit.ledger(2)
        return page


async def test_a_ledger_made_after_the_second_listing_is_kept(tmp_path: Path) -> None:
    """F17: it is absent when it is deleted, not only when it was looked for."""
    metadata = MadeAfterTheListing(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await write(kit, 2, 3)
        finder = collector(kit, age=0.0)
        assert (await finder.round()).tolist() == []
        metadata.kit = kit
        assert (await finder.round()).tolist() == [3]
        assert kit.store.entries(2) == [(0, 1)]


async def test_a_late_writer_of_a_collected_ledger_is_refused(tmp_path: Path) -> None:
    """M10: the deletion won, though nobody fenced the ledger here; the tombstone keeps the fence."""
    async with running(tmp_path) as kit:
        await kit.ledger(4)
        await write(kit, 4)
        found = await kit.metadata.read_ledger(4)
        await kit.metadata.delete_ledger(4, found.version)
        finder = collector(kit, age=0.0)
        await finder.round()
        assert (await finder.round()).tolist() == [4]
        wire = await kit.wire()
        assert (await wire.call(add(4, 1))).code is Code.FENCED
        assert kit.store.ledger(4).tombstone


async def test_a_store_that_went_back_while_it_was_listed_deletes_nothing(tmp_path: Path) -> None:
    """The listing may be of another history, so the store is asked again whether it is believed."""
    async with running(tmp_path, collection_age_s=0.0, collection_interval_s=3600.0) as kit:
        finder, witness = kit.bookie.collector, kit.bookie.witness
        assert finder is not None
        assert witness is not None
        await kit.ledger(1)
        await write(kit, 1)
        await kit.metadata.keys.delete(await kit.metadata.ledger_key(1), 0)  # as Apache's clients do
        assert (await finder.round()).tolist() == []
        believed, answers = witness.confirm, [True, False]

        async def confirm() -> bool:
            return answers.pop(0) if answers else await believed()

        witness.confirm = confirm  # type: ignore[method-assign]
        assert (await finder.round()).tolist() == []
        assert answers == []
        assert kit.store.entries(1) == [(0, 1)]
        assert (await finder.round()).tolist() == [1]
