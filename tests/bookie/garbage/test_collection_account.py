"""What a bookie keeps that nobody needs, and why: in its report, in metrics, and in the answer to an operator."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bookie.garbage.test_collector import elsewhere
from tests.support.bookie_kit import STORE, Kit, add, running
from tests.support.polling import until

from buckram.bookie.garbage import gc_limits as brake
from buckram.bookie.garbage.collector import Collector
from buckram.cluster import connect
from buckram.config import BookieConfig
from buckram.core.cluster.bookie_report import Collected, Keeps, parse_report
from buckram.core.wire.messages import REPORT, BookieInfoReply, GetBookieInfo
from buckram.errors import Code, MetadataUnavailable, NoSuchBookie
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import collect_now
from buckram.runtime.process.stats import MemoryStats
from buckram.types import LedgerState

SMALL = replace(STORE, segment_bytes=64 * 1024)


async def fill(kit: Kit, *ledgers: int, entries: int = 40) -> None:
    """Some log files full of these ledgers: 4 KB an entry."""
    wire = await kit.wire()
    for entry in range(entries):
        for ledger in ledgers:
            assert (await wire.call(add(ledger, entry, payload=b"x" * 4000))).code is Code.OK
    await wire.close()
    await until(lambda: kit.store.stats()["sealed_segments"] >= kit.store.stats()["segments"] - 1, "not sealed")


def collector(kit: Kit, stats: MemoryStats | None = None, age: float = 0.0) -> Collector:
    config = BookieConfig(collection_age_s=age, collection_interval_s=3600.0)
    return Collector(kit.store, kit.metadata, kit.id, config, lambda ledger: None, stats=stats)


def kept(found: Collected) -> dict[str, tuple[int | None, int]]:
    return {one.kind: (one.bytes, one.ledgers) for one in found.kept}


async def test_a_deleted_ledger_waits_for_its_second_look_and_is_then_given_back(tmp_path: Path) -> None:
    stats = MemoryStats()
    async with running(tmp_path, store=SMALL) as kit:
        await kit.ledger(1)
        await fill(kit, 1, 2)
        finder = collector(kit, stats)
        first = await finder.collect()
        held, ledgers = kept(first)[Keeps.SECOND_LOOK]
        assert ledgers == 1
        assert held is not None
        assert held >= 40 * 4000
        assert (first.ledgers, first.bytes_reclaimed) == (0, 0)
        assert "no request shortens that" in next(one.why for one in first.kept if one.kind == Keeps.SECOND_LOOK)
        second = await finder.collect()
        assert second.ledgers == 1
        assert second.bytes_reclaimed > 64 * 1024
        assert second.bytes_reclaimable >= second.bytes_reclaimed
        assert Keeps.SECOND_LOOK not in kept(second)
        values = stats.values()
        assert values["buckram_bookie_collection_reclaimed_bytes_total"] == second.bytes_reclaimed == finder.freed_bytes
        assert values["buckram_bookie_collection_reclaimable_bytes"] == sum(one.bytes or 0 for one in second.kept)
        assert values['buckram_bookie_collection_kept_bytes{why="second-look"}'] == 0
        assert finder.last == second


async def test_copies_that_moved_are_counted_until_their_second_look(tmp_path: Path) -> None:
    async with running(tmp_path, store=SMALL) as kit:
        await fill(kit, 3)
        await elsewhere(kit, 3, LedgerState.CLOSED)
        finder = collector(kit)
        size, ledgers = kept(await finder.collect())[Keeps.MOVED]
        assert ledgers == 1
        assert size is not None
        assert size >= 40 * 4000
        assert (await finder.collect()).ledgers == 1


async def test_dead_bytes_beside_live_ones_stay_until_a_file_is_mostly_dead(tmp_path: Path) -> None:
    async with running(tmp_path, store=replace(SMALL, compaction_threshold=0.1)) as kit:
        await kit.ledger(1)
        await fill(kit, 1, 2)
        finder = collector(kit)
        await finder.collect()
        found = await finder.collect()
        assert (found.ledgers, found.bytes_reclaimed) == (1, 0)
        size, _ = kept(found)[Keeps.MOSTLY_ALIVE]
        assert size is not None
        assert size > 64 * 1024


async def test_a_store_that_went_back_and_the_brake_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brake, "AT_LEAST", 1)
    async with running(tmp_path, collection_age_s=0.0, collection_interval_s=3600.0) as kit:
        while await kit.metadata.allocate_ledger_id() < 4:
            pass
        await fill(kit, 1, 2, 3, 900, entries=1)
        finder, witness = kit.bookie.collector, kit.bookie.witness
        assert finder is not None
        assert witness is not None
        await finder.collect()
        numbers = {kind: ledgers for kind, (_, ledgers) in kept(await finder.collect()).items()}
        assert (numbers[Keeps.BRAKE], numbers[Keeps.UNKNOWN_IDS]) == (3, 1)

        async def no() -> bool:
            return False

        monkeypatch.setattr(witness, "confirm", no)
        assert kept(await finder.collect())[Keeps.UNTRUSTED] == (None, 0)


async def test_an_operator_is_told_what_a_collection_came_to(tmp_path: Path) -> None:
    async with running(tmp_path, store=SMALL, collection_age_s=0.0, collection_interval_s=3600.0) as kit:
        while await kit.metadata.allocate_ledger_id() < 2:
            pass
        await kit.ledger(1)
        await fill(kit, 1, 2)
        async with connect(kit.metadata) as client:
            first = await collect_now(client, kit.id)
            assert kept(first)[Keeps.SECOND_LOOK][1] == 1
            second = await collect_now(client, kit.id)
        assert second.ledgers == 1
        assert second.bytes_reclaimed > 0
        assert kit.store.ledger(2).tombstone
        wire = await kit.wire(3)
        reply = await wire.call(GetBookieInfo(REPORT))
        assert isinstance(reply, BookieInfoReply)
        assert reply.report is not None
        report = parse_report(kit.id, reply.report)
        assert report.collection == second
        assert (report.collections, report.collected_ledgers) == (2, 1)
        assert report.collected_bytes == second.bytes_reclaimed
        assert report.state == "writable"
        assert 0 < report.open_files < report.most_files
        assert 0 < report.connections <= report.most_connections
        assert await kit.metadata.keys.children(f"{kit.metadata.own}/wishes") == []


async def test_a_collection_that_fails_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as kit, connect(kit.metadata) as client:
        assert kit.bookie.collector is not None

        async def fails(*, whole: bool = False) -> None:
            raise MetadataUnavailable("the store is away")

        monkeypatch.setattr(kit.bookie.collector, "round", fails)
        with pytest.raises(OperationRefused, match="the store is away"):
            await collect_now(client, kit.id)


async def test_a_bookie_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path) as kit, connect(kit.metadata) as client:
        with pytest.raises(NoSuchBookie):
            await collect_now(client, "nobody")
        await kit.bookie.stop()
        with pytest.raises(OperationRefused, match="is down"):
            await collect_now(client, kit.id)


async def test_one_that_does_not_begin_is_given_up_and_asked_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as kit, connect(kit.metadata) as client:
        assert kit.bookie.wishes is not None
        kit.bookie.wishes.on_collect = None
        with pytest.raises(OperationRefused, match="did not begin to collect within"):
            await collect_now(client, kit.id, within_s=0.05)
        assert await kit.metadata.keys.children(f"{kit.metadata.own}/wishes") == []


async def test_all_who_ask_at_the_same_time_get_an_answer(tmp_path: Path) -> None:
    async with running(tmp_path, collection_interval_s=3600.0) as kit, connect(kit.metadata) as client:
        assert kit.bookie.collector is not None
        await asyncio.gather(*(asyncio.wait_for(collect_now(client, kit.id), 20) for _ in range(3)))
        assert 1 <= kit.bookie.collector.rounds <= 3
