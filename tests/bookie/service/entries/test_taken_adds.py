"""Chunks of plain adds against a real bookie: what is not plain costs its own run, and replies wait for the commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import KEY, OTHER_KEY, STORE, HeldDisk, Kit, Wire, add, running, stored
from tests.support.polling import until
from tests.support.store_kit import open_store

from buckram.bookie.storage.read_results import StoreError
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import Add, AddReply, Read
from buckram.errors import Code
from buckram.runtime.disk.local import LocalDisk

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
LEDGERS = range(1, 9)


class Runs:
    """The ledgers whose adds came as runs of their own since the last look."""

    def __init__(self, kit: Kit) -> None:
        service = kit.bookie.service
        assert service is not None
        self.ledgers: list[int] = []
        usual = service.adds.add

        def noted(session: Any, run: Any) -> None:
            self.ledgers.append(run.ledger_id)
            usual(session, run)

        service.adds.add = noted  # type: ignore[method-assign]  # connections that are opened from now on get it

    def seen(self) -> list[int]:
        found, self.ledgers = self.ledgers, []
        return found


@asynccontextmanager
async def ready(path: Path, protocol: int, **options: Any) -> AsyncIterator[tuple[Kit, Wire, Runs]]:
    """A bookie with an entry of each ledger."""
    async with running(path, **options) as kit:
        runs = Runs(kit)
        wire = await kit.wire(protocol)
        for ledger in LEDGERS:
            assert (await wire.call(add(ledger, 0))).code is Code.OK
        runs.seen()
        yield kit, wire, runs


def send(wire: Wire, adds: list[Add]) -> None:
    """All of them in one chunk."""
    encode = wire_v2.encode_request if wire.protocol == 2 else wire_v3.encode_request
    wire.writer.write(b"".join(encode(one, 100 + number) for number, one in enumerate(adds)))


async def answers(wire: Wire, count: int) -> dict[tuple[int, int], Code]:
    replies = [await wire.reply() for _ in range(count)]
    return {(one.ledger_id, one.entry_id): one.code for one in replies}


@PROTOCOLS
async def test_single_adds_are_taken_together(tmp_path: Path, protocol: int) -> None:
    async with ready(tmp_path, protocol) as (kit, wire, runs):
        adds = [add(ledger, entry) for entry in (1, 2, 3) for ledger in LEDGERS]
        send(wire, adds)
        assert await answers(wire, len(adds)) == {(one.ledger_id, one.entry_id): Code.OK for one in adds}
        assert runs.seen() == []
        for ledger in LEDGERS:
            assert kit.store.entries(ledger) == [(0, 4)]
            assert (await wire.call(Read(ledger, 2))).body == stored(ledger, 2)
        record = kit.store.ledger(3)
        assert (record.last, record.lac) == (3, 2)


@PROTOCOLS
async def test_what_is_not_plain_takes_its_own_run_the_usual_way(tmp_path: Path, protocol: int) -> None:
    async with ready(tmp_path, protocol) as (kit, wire, runs):
        kit.store.fence(5)
        odd = {
            add(3, 1, OTHER_KEY): Code.UNAUTHORIZED,
            add(5, 1): Code.FENCED,
            add(6, 0): Code.OK,
            add(7, 1, recovery=True): Code.OK,
            add(900, 0): Code.OK,
        }
        adds = [one for odd_one in odd for one in (add(1, 1), odd_one)]
        adds = [add(1, 1 + number // 2) if one.ledger_id == 1 else one for number, one in enumerate(adds)]
        send(wire, [*adds, add(2, 1), add(8, 1)])
        expected = {(one.ledger_id, one.entry_id): odd.get(one, Code.OK) for one in adds}
        assert await answers(wire, len(adds) + 2) == {**expected, (2, 1): Code.OK, (8, 1): Code.OK}
        assert runs.seen() == [one.ledger_id for one in odd]
        assert kit.store.entries(1) == [(0, 1 + len(odd))]


@PROTOCOLS
async def test_other_requests_keep_their_place_among_adds(tmp_path: Path, protocol: int) -> None:
    async with ready(tmp_path, protocol) as (_, wire, runs):
        encode: Any = wire_v2.encode_request if protocol == 2 else wire_v3.encode_request
        requests = [add(1, 1), add(2, 1), Read(1, 0, True, KEY), add(1, 2), add(2, 2)]
        wire.writer.write(b"".join(encode(one, 100 + n) for n, one in enumerate(requests)))
        replies = [await wire.reply() for _ in requests]
        added = {(one.ledger_id, one.entry_id): one.code for one in replies if isinstance(one, AddReply)}
        assert added == {(1, 1): Code.OK, (2, 1): Code.OK, (1, 2): Code.FENCED, (2, 2): Code.OK}
        assert runs.seen() == [1]


@PROTOCOLS
async def test_replies_wait_for_the_commit_and_say_so_if_it_fails(tmp_path: Path, protocol: int) -> None:
    disk = HeldDisk(tmp_path)
    async with ready(tmp_path, protocol, disk=disk) as (kit, wire, runs):
        disk.holding = True
        adds = [add(ledger, 1) for ledger in LEDGERS]
        send(wire, adds)
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        assert runs.seen() == []
        disk.release(OSError(5, "the device is gone"))
        try:
            codes = set((await answers(wire, len(adds))).values())
        except (EOFError, ConnectionError):
            codes = {Code.IO_ERROR}  # the bookie stops, and may be faster than its answers
        assert codes == {Code.IO_ERROR}
        await until(kit.bookie.failed.done)


@PROTOCOLS
async def test_a_prepared_reply_gets_the_code_of_the_failure(tmp_path: Path, protocol: int) -> None:
    async with ready(tmp_path, protocol) as (kit, wire, runs):
        adds = kit.bookie.service.adds  # type: ignore[union-attr]
        usual = adds._answer

        def failed(inserted: Any, since: float, error: OSError | None) -> None:
            usual(inserted, since, OSError(5, "the device is gone"))

        adds._answer = failed  # type: ignore[method-assign]  # of this one bookie
        send(wire, [add(ledger, entry) for entry in (1, 2) for ledger in LEDGERS])
        assert set((await answers(wire, 2 * len(LEDGERS))).values()) == {Code.IO_ERROR}
        assert runs.seen() == []


@PROTOCOLS
async def test_whoever_waits_for_a_ledger_is_woken(tmp_path: Path, protocol: int) -> None:
    async with ready(tmp_path, protocol) as (kit, wire, runs):
        reader = await kit.wire(3)
        reader.send(Read(4, 1, previous_lac=1, timeout_ms=5000))
        await until(lambda: 4 in kit.bookie.service.polls.waiting)  # type: ignore[union-attr]
        send(wire, [add(3, 1), add(4, 1, lac=0), add(4, 2, lac=5), add(5, 1)])
        assert len(await answers(wire, 4)) == 4
        assert (await reader.reply()).code is Code.OK
        assert 4 in runs.seen()


async def test_where_nothing_is_taken_no_block_is_left_open(tmp_path: Path) -> None:
    async with ready(tmp_path, 2) as (kit, wire, _):
        commits = kit.store.stats()["commits"]
        send(wire, [add(1, 1, OTHER_KEY)])
        assert list((await answers(wire, 1)).values()) == [Code.UNAUTHORIZED]
        told: list[object] = []
        kit.store.after_durable(told.append)
        assert told == [None]  # at once: nothing waits for the disk
        assert kit.store.stats()["commits"] == commits


async def test_a_store_that_takes_nothing_refuses_the_usual_way(tmp_path: Path) -> None:
    async with ready(tmp_path, 2) as (kit, wire, runs):
        kit.store.suspended = True
        send(wire, [add(1, 1), add(2, 1)])
        assert set((await answers(wire, 2)).values()) == {Code.READ_ONLY}
        kit.store.suspended = False
        assert runs.seen() == [1, 2]


async def test_a_log_that_has_no_room_refuses_the_usual_way(tmp_path: Path) -> None:
    async with ready(tmp_path, 2) as (kit, wire, runs):
        log = kit.store._log

        def full(size: int) -> None:
            raise StoreError("busy", "too much waits for the disk")

        usual, log._begin = log._begin, full
        send(wire, [add(1, 1), add(2, 1)])
        assert set((await answers(wire, 2)).values()) == {Code.TOO_MANY_REQUESTS}
        log._begin = usual
        assert runs.seen() == [1, 2]
        assert (await wire.call(add(1, 1))).code is Code.OK


async def test_a_chunk_goes_on_in_the_next_block_and_the_next_file(tmp_path: Path) -> None:
    payload, count = b"p" * 20_000, 800
    async with ready(tmp_path, 2) as (kit, wire, _):
        adds = [add(ledger, 1 + n, payload=payload) for n in range(count // len(LEDGERS)) for ledger in LEDGERS]
        send(wire, adds)
        assert await answers(wire, len(adds)) == {(one.ledger_id, one.entry_id): Code.OK for one in adds}
        segments = kit.store.stats()["segments"]
        for one in adds[::64]:
            assert (await wire.call(Read(one.ledger_id, one.entry_id))).body == one.body
    assert segments > 1
    store = open_store(LocalDisk(str(tmp_path), "inline"), STORE)
    try:
        assert all(store.entries(ledger) == [(0, 1 + count // len(LEDGERS))] for ledger in LEDGERS)
    finally:
        await store.close()
