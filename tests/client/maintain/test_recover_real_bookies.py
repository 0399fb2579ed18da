"""Reading, tailing, recovery and repair with real bookies in this process: their stores, fences and long polls."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.bookie.service.entries.admission import Admission, Finding
from buckram.client.maintain.replica_audit import ReplicaAuditor
from buckram.client.read.reader import Reader
from buckram.config import ClientConfig
from buckram.core.ledgers.replica_audit import plan_pieces
from buckram.errors import LedgerFenced, RecoveryFailed
from buckram.runtime.production import production_runtime
from buckram.testing import cluster
from buckram.types import LedgerState

FAST = ClientConfig(speculative_read_ms=100.0)


def payloads(count: int, size: int = 200) -> list[bytes]:
    return [b"%d " % i + b"." * size for i in range(count)]


async def collect(reader: Reader, into: list[bytes]) -> None:
    async for entry in reader.tail():
        into.append(entry.payload)


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2"])
async def test_a_writer_that_vanishes_while_a_bookie_dies(shape: str) -> None:
    async with cluster(bookies=4) as c, c.client(FAST) as client:
        writer = await client.create(ensemble=shape)
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            tail = asyncio.ensure_future(collect(reader, got))
            await writer.append_many(payloads(300))
            first = writer.metadata.last_fragment.ensemble
            await c.kill(c.bookies.index(first[0]))
            await writer.append_many(payloads(300))
            await writer.abandon()
            async with client.recover(writer.ledger_id) as recovered:
                assert recovered.last_confirmed == 599
                assert await recovered.read_payloads(0, 599) == payloads(300) * 2
                assert recovered.length == sum(map(len, payloads(300))) * 2
            await asyncio.wait_for(tail, 10)
        assert got == payloads(300) * 2


async def test_a_bookie_that_looks_at_metadata_after_the_end_gets_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three have answered and the writer has sealed before the third has admitted the ledger."""
    decide, slow, sealed = Admission._decide, [], asyncio.Event()

    async def late(self: Admission, ledger_id: int, deadline: float) -> Finding:
        slow.append(self)
        if self is slow[0]:
            await sealed.wait()
        return await decide(self, ledger_id, deadline)

    monkeypatch.setattr(Admission, "_decide", late)
    async with cluster(bookies=3) as c, c.client() as client:
        writer = await client.create()
        await writer.append_many(payloads(50))
        await writer.close()
        assert len(slow) == 3
        sealed.set()
        await writer.replicated()
        registered = (await client.services.store.bookies()).writable.values()
        addresses = {info.bookie_id: info.address for info in registered}
        async with ReplicaAuditor(production_runtime(), addresses) as auditor:
            pieces = plan_pieces(writer.ledger_id, writer.metadata, 1024 * 1024)
            assert [(await auditor.check(piece)).good for piece in pieces] == [50] * 3


async def test_recovery_fences_a_live_writer_and_entries_stay() -> None:
    async with cluster(bookies=3) as c, c.client() as client, c.client() as other:
        writer = await client.create()
        acked = await writer.append_many(payloads(50))
        pending = [writer.append_nowait(b"racing %d" % i) for i in range(50)]
        async with other.recover(writer.ledger_id) as reader:
            outcomes = await asyncio.gather(*pending, return_exceptions=True)
            ok = [o for o in outcomes if isinstance(o, int)]
            assert all(isinstance(o, int | LedgerFenced) for o in outcomes)
            assert reader.last_confirmed >= max(ok, default=acked[-1])
            with pytest.raises(LedgerFenced):
                await writer.append(b"late")
            await writer.abandon()


async def test_concurrent_recoveries_from_several_clients() -> None:
    async with cluster(bookies=5) as c, c.client() as client:
        writer = await client.create(ensemble="5/3/2")
        await writer.append_many(payloads(200))
        await writer.abandon()
        others = [await c.client() for _ in range(4)]

        async def recover(number: int) -> tuple[int, int | None]:
            async with others[number].recover(writer.ledger_id) as reader:
                return reader.last_confirmed, reader.length

        ends = await asyncio.gather(*(recover(i) for i in range(4)))
        assert ends == [(199, sum(map(len, payloads(200))))] * 4


async def test_without_coverage_it_fails_and_succeeds_when_bookies_return() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        writer = await client.create()
        await writer.append_many(payloads(20))
        await writer.abandon()
        await c.kill(0)
        await c.kill(1)
        with pytest.raises(RecoveryFailed):
            await client.recover(writer.ledger_id)
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        await c.restart(0)
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 19) == payloads(20)


async def test_what_a_degraded_writer_left_out_is_repaired() -> None:
    async with cluster(bookies=3) as c, c.client(FAST) as client:
        async with client.create() as writer:
            await writer.append_many(payloads(100))
            await c.kill(2)
            await writer.append_many(payloads(100))
            await until(lambda: writer.degraded)  # two may have acknowledged before it hears of the third
        await c.restart(2)
        report = await client.repair(writer.ledger_id)
        assert report.healthy
        assert report.entries_copied >= 100
        assert (await client.repair(writer.ledger_id)).entries_copied == 0
        await c.kill(0)
        await c.kill(1)
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 199) == payloads(100) * 2


async def test_a_tail_sees_single_entries_of_an_idle_writer_at_once() -> None:
    async with cluster(bookies=3) as c, c.client() as client, client.create() as writer:
        reader = await client.open(writer.ledger_id)
        tail = reader.tail()
        loop = asyncio.get_running_loop()
        delays = []
        for i in range(10):
            waiting = asyncio.ensure_future(anext(tail))
            await pass_time(0.01)
            await writer.append(b"%d" % i)
            begun = loop.time()
            assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % i
            delays.append(loop.time() - begun)
        assert sorted(delays)[5] < 1.0, delays  # a quarter of a long poll
        await reader.close()


async def test_large_entries_and_empty_ones() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        bodies = [b"", b"x" * 3_000_000, b"", b"y" * 1_500_000, b"z"]
        writer = await client.create(digest="mac", password="p")
        for body in bodies:
            await writer.append(body)
        await writer.abandon()
        async with client.recover(writer.ledger_id, password="p") as reader:
            assert await reader.read_payloads(0, 4) == bodies
            assert [e.length for e in await reader.read(0, 4)] == [0, 3_000_000, 3_000_000, 4_500_000, 4_500_001]
