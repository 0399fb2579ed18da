"""What is recorded as deleted goes at once, without a listing and without an age; nothing else does."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bookie.garbage.test_collection_account import SMALL, fill
from tests.support.bookie_kit import FlakyMetadata, Kit, add, ledger_metadata, memory_metadata, running
from tests.support.polling import eventually, until

from buckram.bookie.garbage import gc_limits as brake
from buckram.bookie.garbage.collector import Collector
from buckram.bookie.garbage.gc_limits import RecordedDeletions
from buckram.config import BookieConfig
from buckram.core.ledgers.deletions import BUCKET, deletions_key
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.wire.messages import Read
from buckram.errors import Code, MetadataUnavailable


async def write(kit: Kit, *ledgers: int) -> None:
    wire = await kit.wire()
    for ledger in ledgers:
        await kit.ledger(ledger)
        assert (await wire.call(add(ledger, 0))).code is Code.OK
    await wire.close()


async def delete(kit: Kit, *ledgers: int) -> None:
    for ledger in ledgers:
        await kit.metadata.delete_ledger(ledger, (await kit.metadata.read_ledger(ledger)).version)


def collector(kit: Kit) -> Collector:
    config = BookieConfig(collection_age_s=3600.0, collection_interval_s=3600.0, deletions_interval_s=3600.0)
    return Collector(kit.store, kit.metadata, kit.id, config, lambda ledger: None)


async def test_what_is_recorded_goes_at_once_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        await write(kit, 1, 2, 3, BUCKET - 1, BUCKET)
        await delete(kit, 2, BUCKET)
        await kit.metadata.keys.delete(await kit.metadata.ledger_key(3), 0)  # as Apache's clients do
        finder = collector(kit)
        assert (await finder.recorded_round()).tolist() == [2, BUCKET]
        assert (await finder.recorded_round()).tolist() == []
        assert [one for one in (1, 2, 3, BUCKET - 1, BUCKET) if not kit.store.ledger(one).tombstone] == [
            1,
            3,
            BUCKET - 1,
        ]
        wire = await kit.wire()
        assert (await wire.call(Read(2, 0))).code is Code.NO_LEDGER
        assert (await wire.call(Read(3, 0))).code is Code.OK
        await wire.close()


async def test_a_record_that_comes_later_is_seen_and_nothing_is_read_twice(tmp_path: Path) -> None:
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        await write(kit, 1, 2)
        look, held = RecordedDeletions(kit.metadata), array("q", [1, 2])
        for _ in range(3):
            assert not await look.among(held)
        assert look.reads == 1
        await delete(kit, 1)
        await until(lambda: look._is_news(0))
        assert (await look.among(held)).tolist() == [1]
        assert look.reads == 2
        look.forget_others(array("q"))
        assert (await look.among(held)).tolist() == [1]


async def test_what_has_metadata_all_the_same_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Apache's clients may make a ledger under an id that was deleted: they know no records."""
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        await write(kit, 1)
        await delete(kit, 1)
        await kit.metadata.keys.create(await kit.metadata.ledger_key(1), serialise(ledger_metadata(["other:1"])))
        finder = collector(kit)
        for _ in range(2):
            assert (await finder.recorded_round()).tolist() == []
        assert kit.store.entries(1) == [(0, 1)]
        assert caplog.text.count("the metadata store has a record of it") == 1


async def test_records_that_cannot_be_read_delete_nothing(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, deletions_interval_s=3600.0) as kit:
        await write(kit, 1)
        await delete(kit, 1)
        finder, key = collector(kit), deletions_key(kit.metadata.own, 0)
        metadata.error = MetadataUnavailable("gone")
        with pytest.raises(MetadataUnavailable):
            await finder.recorded_round()
        metadata.error = None
        found = await kit.metadata.keys.get(key)
        await kit.metadata.keys.set(key, b"\x01\x01", found.version)
        assert (await collector(kit).recorded_round()).tolist() == []
        assert not kit.store.ledger(1).tombstone
        await kit.metadata.keys.set(key, found.value, found.version + 1)
        assert (await finder.recorded_round()).tolist() == [1]


async def test_a_store_that_is_not_believed_deletes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        finder, witness = kit.bookie.collector, kit.bookie.witness
        assert finder is not None
        assert witness is not None
        await write(kit, 1)
        await delete(kit, 1)

        async def no() -> bool:
            return False

        believed, witness.confirm = witness.confirm, no  # type: ignore[method-assign]
        assert (await finder.recorded_round()).tolist() == []
        witness.confirm = believed  # type: ignore[method-assign]

        async def followed() -> bool:  # once it has learned of the store's history
            return (await finder.recorded_round()).tolist() == [1]

        await eventually(followed, "what is recorded does not go")


async def test_an_id_that_may_have_been_given_twice_is_not_known_by_its_number(tmp_path: Path) -> None:
    """After a restore the store gives ids anew: what is recorded up to there may be another ledger's deletion."""
    async with running(tmp_path, deletions_interval_s=3600.0) as kit:
        finder, witness = kit.bookie.collector, kit.bookie.witness
        assert finder is not None
        assert witness is not None
        await write(kit, 1, 2)
        await delete(kit, 1, 2)
        await until(lambda: witness.memory.history == witness.history, "it has learned of the store's history")
        witness._memory.value = replace(witness.memory, settled=1)
        assert (await finder.recorded_round()).tolist() == [2]
        assert kit.store.entries(1) == [(0, 1)]


async def test_dead_files_are_given_back_without_a_listing(tmp_path: Path) -> None:
    async with running(tmp_path, store=SMALL, deletions_interval_s=0.1) as kit:
        for ledger in (1, 2):
            await kit.ledger(ledger)
        await fill(kit, 1, 2)
        finder = kit.bookie.collector
        assert finder is not None
        await delete(kit, 1, 2)
        await until(lambda: finder.freed_bytes >= 60 * 4000, "the files of deleted ledgers stay")
        assert finder.rounds == 0


async def test_files_that_hold_a_little_of_what_stays_are_rewritten_when_much_is_dead(tmp_path: Path) -> None:
    """A ledger that stays has a tenth of every file: none of them is dead enough to go for next to nothing."""
    async with running(tmp_path, store=SMALL, deletions_interval_s=0.1) as kit:
        short = list(range(2, 11))
        for ledger in (1, *short):
            await kit.ledger(ledger)
        await fill(kit, 1, *short)
        finder = kit.bookie.collector
        assert finder is not None
        whole = kit.store.stats()["data_bytes"]
        await delete(kit, *short)
        await until(lambda: kit.store.stats()["data_bytes"] < whole // 4, "dead bytes stay beside a few that live")
        assert finder.rounds == 0
        assert kit.store.entries(1) == [(0, 40)]


async def test_little_that_is_dead_is_left_to_a_collection(tmp_path: Path) -> None:
    """What dies soon is not copied before: less is dead than half of what lives, and a file."""
    async with running(tmp_path, store=SMALL, deletions_interval_s=3600.0) as kit:
        for ledger in (1, 2, 3, 4):
            await kit.ledger(ledger)
        await fill(kit, 1, 2, 3, 4)
        finder = collector(kit)
        await delete(kit, 4)
        assert (await finder.recorded_round()).tolist() == [4]
        assert await finder._compact_dead() == 0
        await delete(kit, 2, 3)
        assert (await finder.recorded_round()).tolist() == [2, 3]
        assert await finder._compact_dead() > 0
        assert kit.store.entries(1) == [(0, 40)]


async def test_a_bookie_that_was_away_deletes_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    async with running(tmp_path, metadata=metadata, bookie_id="b1", deletions_interval_s=3600.0) as kit:
        await write(kit, 1, 2)
    await metadata.delete_ledger(2, (await metadata.read_ledger(2)).version)
    async with running(tmp_path, metadata=metadata, bookie_id="b1", deletions_interval_s=0.1) as kit:
        await until(lambda: kit.store.ledger(2).tombstone)
        assert not kit.store.ledger(1).tombstone


async def test_any_number_of_recorded_deletions_needs_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brake is for what is absent without a record; recorded ones do not count for it either."""
    monkeypatch.setattr(brake, "AT_LEAST", 3)
    async with running(tmp_path, deletions_interval_s=3600.0, collection_age_s=0.0) as kit:
        ids = [await kit.metadata.allocate_ledger_id() for _ in range(8)]
        await write(kit, *ids)
        finder = kit.bookie.collector
        assert finder is not None
        await delete(kit, *ids[:5])
        for one in ids[5:7]:
            await kit.metadata.keys.delete(await kit.metadata.ledger_key(one), 0)
        assert (await finder.round()).tolist() == []
        assert (await finder.recorded_round()).tolist() == ids[:5]
        assert (await finder.round()).tolist() == ids[5:7]


async def test_the_brake_counts_what_vanishes_between_two_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine ledgers wait, three at a time went: none of these listings lost many. Then five go at once, and are held."""
    monkeypatch.setattr(brake, "AT_LEAST", 3)
    async with running(tmp_path, deletions_interval_s=3600.0, collection_age_s=3600.0) as kit:
        ids = [await kit.metadata.allocate_ledger_id() for _ in range(15)]
        await write(kit, *ids)
        finder = kit.bookie.collector
        assert finder is not None
        for start in (0, 3, 6):
            for one in ids[start : start + 3]:
                await kit.metadata.keys.delete(await kit.metadata.ledger_key(one), 0)
            assert (await finder.round()).tolist() == []
        for one in ids[9:14]:
            await kit.metadata.keys.delete(await kit.metadata.ledger_key(one), 0)
        assert (await finder.round()).tolist() == []
        finder._config = replace(finder._config, collection_age_s=0.0)
        assert (await finder.round()).tolist() == ids[:9]
        assert (await finder.round()).tolist() == []
        assert kit.bookie.collector is not None
        assert kit.bookie.collector._held == frozenset(ids[9:14])
