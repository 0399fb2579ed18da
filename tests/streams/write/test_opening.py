"""Two writers, and openings after a crash at each step: no record is lost or stored twice, and no ledger is left."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clock import pass_time
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.streams.metadata.changes import claimed
from buckram.core.streams.metadata.head import WriterInfo
from buckram.core.streams.names import stream_name
from buckram.core.streams.policy import DEFAULTS
from buckram.errors import RecoveryFailed, WriterExists, WriterLost
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.ledgers import list_intents, make_ledger
from buckram.testing import Cluster

NAME = stream_name("s", "shop")


async def values(ns: Namespace) -> list[bytes | None]:
    return [record.value async for record in ns.read("s")]


async def no_orphans(ns: Namespace, client: Client) -> None:
    """Wait until the cluster has exactly the listed ledgers, and no intents."""
    head = (await ns.store.read(NAME)).head

    async def clean() -> bool:
        left = [ledger async for ledger in client.list()]
        listed = [row.ledger async for row in ns.store.segments((await ns.store.read(NAME)).head)]
        return sorted(left) == sorted(listed) and not await list_intents(ns.store, head.uid)

    await eventually(clean)


async def test_a_second_writer_gets_the_name_of_the_first(ns: Namespace) -> None:
    async with ns.writer("s", name="alice"):
        with pytest.raises(WriterExists, match=r"'alice', since \d{4}-.*takeover=True"):
            await ns.writer("s")
    async with ns.writer("s", name="bob") as bob:
        assert bob.name == "bob"


async def test_a_takeover_fences_the_old_writer(ns: Namespace, client: Client) -> None:
    old = await ns.writer("s", name="old")
    await old.append_many([b"1", b"2"])
    async with ns.writer("s", takeover=True, name="new") as new:
        assert new.next_offset == 2
        async with asyncio.timeout(10):
            await old.lost.wait()
        with pytest.raises(WriterLost):
            await old.append(b"never")
        assert "new" in old.lost_reason
        assert await new.append(b"3") == 2
    await old.close()
    assert await values(ns) == [b"1", b"2", b"3"]
    await no_orphans(ns, client)


async def test_appends_pending_at_a_takeover_fail_or_are_stored(ns: Namespace, three_bookies: Cluster) -> None:
    async with three_bookies.client() as other:
        old = await other.namespace("shop").writer("s")
        futures = [old.append_nowait(b"%d" % i) for i in range(500)]
        async with ns.writer("s", takeover=True) as new:
            found = await asyncio.gather(*futures, return_exceptions=True)
            acked = [offset for offset in found if isinstance(offset, int)]
            assert acked == list(range(len(acked)))
            assert new.next_offset >= len(acked)
            assert all(isinstance(error, WriterLost) for error in found[len(acked) :])
        kept = await values(ns)
        assert kept == [b"%d" % i for i in range(len(kept))]


async def test_waiting_writers_open_one_after_another(ns: Namespace) -> None:
    leader = await ns.writer("s")
    await leader.append(b"1")
    second = asyncio.create_task(ns.writer("s", wait=True).__aenter__())
    third = asyncio.create_task(ns.writer("s", wait=True).__aenter__())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    await leader.close()
    async with asyncio.timeout(10):
        (done,), _ = await asyncio.wait([second, third], return_when=asyncio.FIRST_COMPLETED)
        assert done.result().next_offset == 1
        await done.result().close()
        other = await (third if done is second else second)
        await other.close()


async def test_an_old_writer_that_rolls_after_the_claim_is_refused(ns: Namespace, client: Client) -> None:
    """The claim alone stops a roll, and records of the unlisted segment are never acknowledged."""
    w = await ns.writer("s")
    await w.append(b"1")
    await ns.store.change(NAME, lambda head: claimed(str(NAME), head, WriterInfo("thief", "x", 1)))
    with pytest.raises(WriterLost, match="thief"):
        await w.roll()
    with pytest.raises(WriterLost):
        await w.append(b"2")
    await w.close()
    async with ns.writer("s") as w:
        assert w.next_offset == 1
    await no_orphans(ns, client)


async def test_a_crash_after_the_claim(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    await w.append(b"1")
    await w.abandon()
    await ns.store.change(NAME, lambda head: claimed(str(NAME), head, WriterInfo("dead", "x", 1)))
    async with ns.writer("s") as w:
        assert await w.append(b"2") == 1
        assert w.epoch == 3
    await no_orphans(ns, client)


async def test_a_crash_after_the_fence(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    await w.append_many([b"1", b"2", b"3"])
    await w.abandon()
    row = (await ns.store.read(NAME)).head.open_segment
    assert row is not None
    await (await client.recover(row.ledger)).close()
    assert await values(ns) == [b"1", b"2", b"3"], "readers do not need the seal"
    async with ns.writer("s") as w:
        assert w.next_offset == 3
    await no_orphans(ns, client)


async def test_a_crash_with_prepared_ledgers(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    await w.append(b"1")
    await w.abandon()
    head = (await ns.store.read(NAME)).head
    for _ in range(3):
        ledger, _ = await make_ledger(client, ns.store, NAME, head.uid, DEFAULTS, epoch=head.epoch)
        await ledger.append(b"sent, never acknowledged")
        await ledger.abandon()
    async with ns.writer("s") as w:
        assert w.next_offset == 1
        await no_orphans_but(ns, client, w)
    await no_orphans(ns, client)


async def no_orphans_but(ns: Namespace, client: Client, writer: object) -> None:
    """A live writer has one prepared ledger."""
    head = (await ns.store.read(NAME)).head

    async def one() -> bool:
        return len(await list_intents(ns.store, head.uid)) == 1

    await eventually(one)


async def test_a_crash_with_an_empty_segment_leaves_no_row(ns: Namespace, client: Client) -> None:
    w = await ns.writer("s")
    await w.append(b"1")
    await w.roll()
    await w.abandon()
    before = (await ns.store.read(NAME)).head
    assert before.open_segment is not None
    async with ns.writer("s") as w:
        await w.append(b"2")
    assert [row.summary.records async for row in ns.segments("s") if row.summary] == [1, 1]
    await no_orphans(ns, client)


async def test_append_time_and_txid_never_go_back(ns: Namespace) -> None:
    times: list[int] = []
    for round_ in range(3):
        w = await ns.writer("s", takeover=True)
        await w.append(b"", txid=round_ * 10)
        if round_ == 1:
            await w.roll()
        times += [(await ns.info("s")).last_append]
        await w.abandon()
    records = [record async for record in ns.read("s")]
    assert [record.append_time for record in records] == sorted(record.append_time for record in records)
    assert times == sorted(times)
    async with ns.writer("s") as w:
        with pytest.raises(Exception, match="below the last one, 20"):
            await w.append(b"", txid=19)


async def test_idempotence_survives_a_crash(ns: Namespace) -> None:
    for sequence in range(5):
        w = await ns.writer("s", takeover=True)
        assert await w.append(b"%d" % sequence, producer="p", sequence=sequence) == sequence
        if sequence == 2:
            await w.roll()
        await w.abandon()
        async with ns.writer("s", takeover=True) as again:
            assert await again.append(b"%d" % sequence, producer="p", sequence=sequence) == sequence
            assert again.next_offset == sequence + 1
    assert await values(ns) == [b"%d" % i for i in range(5)]


async def test_bookies_come_and_go_while_it_writes_and_rolls(three_bookies: Cluster, ns: Namespace) -> None:
    await ns.create("s", roll_bytes=20_000)
    async with ns.writer("s") as w:

        async def full_strength() -> bool:
            return not w.degraded

        for number in range(3):
            await three_bookies.kill(number)
            for i in range(30):
                await w.append_many([b"%d.%d" % (number, i)] * 20)
            await three_bookies.restart(number)
            await eventually(full_strength, seconds=40.0)  # A writer retries failed bookies with growing delays.
    kept = await values(ns)
    assert kept == [b"%d.%d" % (number, i) for number in range(3) for i in range(30) for _ in range(20)]


async def test_a_writer_survives_the_loss_of_most_bookies(
    three_bookies: Cluster, ns: Namespace, client: Client
) -> None:
    """Its ledger ends, and the records in flight are sent again in another one, under the same offsets."""
    async with ns.writer("s") as w:
        await w.append(b"0", producer="p", sequence=0, txid=1)
        for round_ in range(1, 4):
            await three_bookies.kill(0)
            await three_bookies.kill(1)
            first = w.next_offset
            retried = asyncio.create_task(w.append(b"%d" % first, producer="p", sequence=round_, txid=round_ * 10))
            await asyncio.sleep(0)
            pending = [w.append_nowait(b"%d" % (first + 1 + i)) for i in range(50)]
            flushed = asyncio.create_task(w.flush())
            await pass_time(0.05 * round_)
            assert not flushed.done()
            await three_bookies.restart(0)
            await three_bookies.restart(1)
            async with asyncio.timeout(30):
                await flushed
                assert await retried == first
                assert await asyncio.gather(*pending) == list(range(first + 1, first + 51))
            assert await w.append(b"again", producer="p", sequence=round_) == first
        assert not w.lost.is_set()
    assert await values(ns) == [b"%d" % i for i in range(154)]
    async with ns.writer("s") as w:
        assert await w.append(b"again", producer="p", sequence=3) == 103
    await no_orphans(ns, client)


async def test_a_roll_goes_on_with_one_of_three_bookies_away(three_bookies: Cluster, ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append(b"1")
        await three_bookies.kill(0)
        assert await w.roll()
        await w.append(b"2")
        assert w.roll_trouble == ""
        await three_bookies.restart(0)

        async def whole() -> bool:
            return not w.degraded

        await eventually(whole, seconds=20.0)
    assert len(await values(ns)) == 2


async def test_a_roll_that_finds_no_bookies_is_put_off(three_bookies: Cluster, ns: Namespace, client: Client) -> None:
    """One of three bookies is away and has no cookie, so it cannot be an absent member of a new ledger."""
    store, name = client.services.store, three_bookies.bookies[0]
    async with ns.writer("s") as w:
        await w.append(b"1")
        await three_bookies.kill(0)
        cookie = await store.read_cookie(name)
        await store.delete_cookie(name, cookie.version)
        rolling = asyncio.create_task(w.roll())
        async with asyncio.timeout(20):
            while not w.roll_trouble:
                await w.append(b"still here")
            assert not rolling.done()
            await store.write_cookie(name, cookie.value, None)
            await three_bookies.restart(0)
            assert await rolling
        n = w.next_offset
        assert w.roll_trouble == ""
    assert len(await values(ns)) == n


async def test_a_deletion_that_cannot_fence_the_writer_deletes_nothing(
    three_bookies: Cluster, ns: Namespace, client: Client
) -> None:
    """A writer that still reaches its bookies could otherwise get acknowledgements for deleted records."""
    async with three_bookies.client() as other:
        writer = await other.namespace("shop").writer("s")
        await writer.append_many([b"1", b"2"])
        await writer.abandon()
    await three_bookies.kill(0)
    await three_bookies.kill(1)
    before = [ledger async for ledger in client.list()]
    with pytest.raises(RecoveryFailed, match=r"nothing of it was deleted yet.*force=True \(--force\)"):
        await ns.delete("s")
    assert before
    assert [ledger async for ledger in client.list()] == before
    report = await Janitor(client, JanitorSettings(grace_s=0)).clean()
    assert report.problems
    assert [ledger async for ledger in client.list()] == before, "a janitor was not asked to force it"
    await ns.delete("s", force=True)
    assert not [ledger async for ledger in client.list()]
    assert await ns.list() == []
