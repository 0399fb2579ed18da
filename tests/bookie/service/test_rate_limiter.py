"""Quotas on a real bookie: rates, room, connections; what is never held up; tenants that compete."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import HeldDisk, add, add_frames, code_of
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.tenants_kit import QUIET, connected_ledger, tenants

from buckram import QuotaExceeded, connect
from buckram.bookie.service import rate_limiter as limiter
from buckram.bookie.service.tenant import FLIGHT_BYTES
from buckram.client.write.writer import Writer
from buckram.core.wire.messages import BatchRead
from buckram.errors import Code
from buckram.metadata.records.tenants import TenantStore

PAYLOAD = b"x" * 1000


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


def hog(writer: Writer, entries: int) -> list[asyncio.Future[int]]:
    return [writer.append_nowait(PAYLOAD) for _ in range(entries)]


async def fill(writer: Writer) -> None:
    """Append until that fails."""
    while True:
        await writer.append(PAYLOAD)


@pytest.mark.parametrize(("quota", "limit"), [("in_entries_per_s", 400), ("in_bytes_per_s", 400 * 1090)])
async def test_adds_keep_the_rate_and_none_is_given_up(tmp_path: Path, quota: str, limit: int) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", **{quota: limit})
        writer = await here.writer("shop")
        pending = hog(writer, 4000)
        await pass_time(1.0)
        clock = asyncio.get_running_loop().time
        before, since = writer.last_confirmed, clock()
        await pass_time(5.0)
        assert writer.last_confirmed - before == pytest.approx((clock() - since) * 400, rel=0.1)
        assert writer.ensemble_changes == 0
        assert not writer.degraded
        for future in pending:
            future.cancel()


async def test_what_another_namespace_adds_does_not_wait(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop", "log") as here:
        await here.limit("shop", in_entries_per_s=100)
        slow, quick = await here.writer("shop"), await here.writer("log")
        pending = hog(slow, 3000)
        await until(lambda: bool(here.tenant("shop").adds.waiting))
        for _ in range(20):
            await quick.append(PAYLOAD)
        assert here.tenant("shop").adds.waiting
        assert not pending[-1].done()
        for future in pending:
            future.cancel()


async def test_recovery_is_not_held_up_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", in_entries_per_s=50)
        writer = await here.writer("shop")
        pending = hog(writer, 2000)
        await until(lambda: writer.last_confirmed >= 0 and bool(here.tenant("shop").adds.waiting))
        async with (
            asyncio.timeout(10),
            connect(here.kit.metadata, config=QUIET) as other,
            other.recover(writer.ledger_id) as reader,
        ):
            assert reader.last_confirmed >= writer.last_confirmed
        for future in pending:
            future.cancel()


async def test_a_full_namespace_is_refused_by_name_and_amount_until_something_is_deleted(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop", "log") as here:
        await here.limit("shop", stored_bytes=50_000)
        writer, other = await here.writer("shop"), await here.writer("log")
        with pytest.raises(QuotaExceeded) as error:
            await fill(writer)
        assert (error.value.namespace, error.value.quota, error.value.limit) == ("shop", "stored_bytes", 50_000)
        assert error.value.used is not None
        assert 50_000 <= error.value.used <= 52_000
        assert 40 <= writer.last_confirmed + 1 <= 50
        await other.append(PAYLOAD)
        async with here.client.recover(writer.ledger_id) as reader:
            assert len(await reader.read_payloads(0, reader.last_confirmed)) >= writer.last_confirmed + 1
        await here.client.delete(writer.ledger_id)
        await pass_time(15.0)
        await until(lambda: here.tenant("shop").stored_left > 0, "the quota did not come back")
        assert await (await here.writer("shop")).append(PAYLOAD) == 0


async def test_a_quota_that_is_raised_or_taken_back_counts_at_once(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", stored_bytes=0)
        with pytest.raises(QuotaExceeded):
            await (await here.writer("shop")).append(PAYLOAD)
        await here.limit("shop", stored_bytes=None)
        await (await here.writer("shop")).append(PAYLOAD)


async def test_clients_that_know_no_quotas_are_told_that_they_may_not(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", stored_bytes=0)
        ledger, key = await connected_ledger(here.kit, "shop")
        for protocol in (2, 3):
            wire = await here.kit.wire(protocol)
            assert (await wire.call(add(ledger, 0, key))).code is Code.UNAUTHORIZED
            assert (await wire.call(add(ledger, 0, key, recovery=True))).code is Code.OK


async def test_a_client_that_knows_no_quotas_is_not_held_back_for_longer_than_it_waits(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", in_entries_per_s=10)
        ledger, key = await connected_ledger(here.kit, "shop")
        wire = await here.kit.wire()
        wire.writer.write(add_frames(ledger, 0, 20, key))
        assert code_of(await wire.frame()) == 0
        wire.writer.write(add_frames(ledger, 20, 200, key))
        await until(lambda: here.tenant("shop").adds.entries > 0)
        wire.writer.write(add_frames(ledger, 220, 1, key))
        codes = [0]
        while codes[-1] != Code.TOO_MANY_REQUESTS.v2:
            codes.append(code_of(await wire.frame()))


async def test_a_namespace_has_so_many_connections(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", connections=1)
        writer = await here.writer("shop")
        await writer.append(PAYLOAD)
        async with connect(here.kit.metadata, config=QUIET) as other:
            one_more = await other.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"})
            with pytest.raises(QuotaExceeded, match="connections"):
                await one_more.append(PAYLOAD)
        assert await writer.append(PAYLOAD) == 1


async def test_readers_get_their_rate_and_others_theirs(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop", "log") as here:
        writers = [await here.writer(name) for name in ("shop", "log")]
        for writer in writers:
            await writer.append_many([PAYLOAD] * 1500)
            await writer.close()
        await here.limit("shop", out_bytes_per_s=200_000)
        limited = await here.client.open(writers[0].ledger_id)
        free = await here.client.open(writers[1].ledger_id)
        reading = asyncio.ensure_future(limited.read_payloads(0, 1499))
        async with asyncio.timeout(10):
            assert len(await free.read_payloads(0, 1499)) == 1500
        assert not reading.done()
        await pass_time(12.0)
        assert len(await reading) == 1500


async def test_of_two_that_compete_neither_fills_the_disks_queue(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with tenants(tmp_path, "shop", "log", disk=disk) as here:
        await here.limit("shop", stored_bytes=2**40)
        greedy, modest = await here.writer("shop"), await here.writer("log")
        await greedy.append(PAYLOAD)
        await modest.append(PAYLOAD)
        disk.holding = True
        small = modest.append_nowait(PAYLOAD)
        pending = hog(greedy, 4000)
        await until(lambda: here.tenant("shop").adds.held_bytes > 0, "nothing is held back")
        assert here.tenant("shop").in_flight <= FLIGHT_BYTES + 256 * 1024
        last = modest.append_nowait(PAYLOAD)
        await until(lambda: here.tenant("log").in_flight > 0)
        disk.release()
        await asyncio.gather(small, last, *pending)
        assert not here.tenant("shop").adds.waiting
        assert all(session.requests_held == 0 for session in here.kit.bookie.server.sessions)


async def test_one_that_is_alone_is_not_held_back(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with tenants(tmp_path, "shop", disk=disk) as here:
        await here.limit("shop", stored_bytes=2**40)
        writer = await here.writer("shop")
        await writer.append(PAYLOAD)
        disk.holding = True
        pending = hog(writer, 3000)
        await until(lambda: here.tenant("shop").tally().stored > 2 * FLIGHT_BYTES, "it is held back")
        disk.release()
        await asyncio.gather(*pending)


async def test_answers_are_small_while_others_compete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "MIXED_S", 60.0)  # however long the machine takes between two requests
    async with tenants(tmp_path, "shop", "log") as here:
        await here.limit("shop", stored_bytes=2**40)
        writers = [await here.writer(name) for name in ("shop", "log")]
        await writers[0].append_many([PAYLOAD] * 1500)
        reply: Any = await here.client.services.pool.call(here.kit.id, BatchRead(writers[0].ledger_id, 0, 0, 4 << 20))
        assert len(reply.bodies) > 1000
        await writers[1].append(PAYLOAD)
        await writers[0].append(PAYLOAD)
        reply = await here.client.services.pool.call(here.kit.id, BatchRead(writers[0].ledger_id, 0, 0, 4 << 20))
        assert 0 < len(reply.bodies) < 300


async def test_without_quotas_nothing_is_looked_at(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        writer = await here.writer("shop")
        await writer.append(PAYLOAD)
        assert not here.limiter.active
        assert not here.limiter.tenants
        assert all(
            session.add_run == here.kit.bookie.service.adds.add  # type: ignore[union-attr]
            for session in here.kit.bookie.server.sessions
        )


async def test_namespaces_cost_little(tmp_path: Path) -> None:
    """A thousand namespaces with quotas take less than 5 MB of a bookie."""
    names = [f"ns-{number}" for number in range(1000)]
    async with tenants(tmp_path) as here:
        await here.limit("default", stored_bytes=2**40)
        store = TenantStore(here.kit.metadata)
        for name in names:
            await store.set_quotas(name, {"stored_bytes": 2**40, "in_bytes_per_s": 2**30, "in_entries_per_s": 2**20})
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        seen = here.accounting.rounds
        here.accounting._changed.set()
        await until(lambda: here.accounting.rounds > seen + 1 and len(here.limiter.tenants) >= 1000, seconds=30)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 5_000_000, f"{grown} bytes"


async def test_what_competes_by_lanes_shares_no_connection(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop", "log") as here:
        await here.limit("shop", stored_bytes=2**40)
        for name in ("shop", "log"):
            await (await here.writer(name)).append(PAYLOAD)
        shop, log = here.tenant("shop").sessions, here.tenant("log").sessions
        assert shop
        assert log
        assert not set(shop) & set(log)
