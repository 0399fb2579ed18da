"""Writers against scripted bookies on loopback: ids, acknowledgements, limits, explicit ids, deferred sync, the end."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial

import pytest
from tests.unit.scripted_bookie import NET, eventually, scripted

from buckram.config import ClientConfig
from buckram.core.entry import Digest
from buckram.errors import (
    BookieIOError,
    BufferFull,
    Code,
    DuplicateEntry,
    EntryTooLarge,
    ForkedClient,
    HandleClosed,
    InvalidArgument,
    InvariantViolation,
    LedgerClosed,
    LedgerExists,
    LedgerFenced,
    NotEnoughBookies,
    WriteFailed,
)
from buckram.types import DigestType, LedgerState


async def test_appends_are_numbered_stored_everywhere_and_sealed() -> None:
    async with scripted() as (cluster, client):
        async with client.create(password="secret", custom_metadata={"k": "v"}) as writer:
            assert await writer.append(b"zero") == 0
            assert await writer.append_many([b"one", bytearray(b"two"), memoryview(b"three")]) == range(1, 4)
            future = writer.append_nowait(b"")
            assert await future == 4
            assert (writer.last_confirmed, writer.last_pushed, writer.length) == (4, 4, 15)
            assert writer.metadata.state is LedgerState.OPEN
        stored = cluster["b1"].entries[writer.ledger_id]
        digest = Digest(DigestType.CRC32C, b"secret")
        entries = [digest.open(writer.ledger_id, i, stored[i]) for i in range(5)]
        assert [e.payload for e in entries] == [b"zero", b"one", b"two", b"three", b""]
        assert [e.length for e in entries] == [4, 7, 10, 15, 15]
        assert [e.last_add_confirmed for e in entries] == [-1, 0, 0, 0, 3]
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 4, 15)
        assert (metadata.digest_type, metadata.custom_metadata["k"]) == (DigestType.CRC32C, b"v")


async def test_one_turn_is_one_run() -> None:
    """What many tasks append in one turn of the loop carries one LAC and arrives in call order."""
    async with scripted() as (cluster, client), client.create() as writer:
        ids = await asyncio.gather(*(writer.append(bytes([i])) for i in range(50)))
        assert ids == list(range(50))
        stored = cluster["b0"].entries[writer.ledger_id]
        assert [Digest(DigestType.CRC32C, b"").open(writer.ledger_id, i, stored[i]).payload for i in range(50)] == [
            bytes([i]) for i in range(50)
        ]


async def test_acknowledged_by_qa_and_in_order() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        for name in ("b1", "b2"):
            cluster[name].held = []
        first = writer.append_nowait(b"a")
        await eventually(lambda: all(len(cluster[n].held or ()) == 1 for n in ("b1", "b2")), "first run arrived")
        second = writer.append_nowait(b"b")
        await eventually(lambda: len(cluster["b1"].held or ()) == 2, "second run arrived")
        assert not first.done()
        assert not second.done()
        cluster["b1"].release(1, 0)  # answers in the wrong order
        assert await second == 1
        assert first.done()
        assert writer.last_confirmed == 1
        cluster["b2"].release()


@pytest.mark.parametrize("shape", ["1/1/1", "5/3/2", "4/2/1", "5/5/3", "3/2/2"])
async def test_striping_gives_each_entry_its_write_set(shape: str) -> None:
    async with scripted(5) as (cluster, client), client.create(ensemble=shape) as writer:
        e, w, _ = map(int, shape.split("/"))
        await writer.append_many([b"x%d" % i for i in range(23)])
        for i in range(3):
            await writer.append(b"y%d" % i)
        members = writer.metadata.last_fragment.ensemble
        want = {entry: sorted(members[(entry + i) % e] for i in range(w)) for entry in range(26)}
        await eventually(
            lambda: {entry: cluster.holders(writer.ledger_id, entry) for entry in range(26)} == want, "all copies"
        )


async def test_v3_wire() -> None:
    async with scripted(config=ClientConfig(wire_protocol=3)) as (cluster, client), client.create() as writer:
        await writer.append_many([b"a", b"b"])
        await eventually(lambda: all(b.ids(writer.ledger_id) == [0, 1] for b in cluster.bookies.values()), "stored")


# -- limits ---------------------------------------------------------------------------------------------------


async def test_too_large_and_wrong_types_are_refused_before_anything_is_sent() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        limit = NET.max_frame_bytes - 256
        with pytest.raises(EntryTooLarge, match=str(limit)):
            await writer.append(bytes(limit + 1))
        with pytest.raises(EntryTooLarge):
            await writer.append_many([b"fine", bytes(limit + 1)])
        for wrong in ("text", None, 7):
            with pytest.raises(InvalidArgument, match="bytes"):
                await writer.append(wrong)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(InvalidArgument, match="append_many"):
            await writer.append_many(b"one payload")  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(InvalidArgument, match="explicit_ids"):
            await writer.append(b"x", entry_id=3)
        assert await writer.append_many([]) == range(0)
        assert await writer.append(bytes(limit)) == 0
        await eventually(lambda: all(b.ids(writer.ledger_id) == [0] for b in cluster.bookies.values()), "stored")


async def test_room_is_bounded_waits_are_in_call_order_and_cancelled_ones_leave_no_hole() -> None:
    config = ClientConfig(max_pending_bytes=100, max_pending_entries=1000)
    async with scripted(config=config) as (cluster, client), client.create(ensemble=1) as writer:
        bookie = cluster[writer.metadata.last_fragment.ensemble[0]]
        bookie.held = []
        assert isinstance(writer.append_nowait(bytes(90)), asyncio.Future)
        with pytest.raises(BufferFull, match="limit is 100") as full:
            writer.append_nowait(bytes(20))
        assert full.value.retryable
        tasks = [asyncio.ensure_future(writer.append(bytes(60))) for _ in range(4)]
        big = asyncio.ensure_future(writer.append_many([bytes(50)] * 7))
        huge = asyncio.ensure_future(writer.append(bytes(500)))
        await asyncio.sleep(0)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"")  # nobody overtakes those that wait
        tasks[1].cancel()
        flush = asyncio.ensure_future(writer.flush())
        await asyncio.sleep(0)
        assert writer.last_pushed == 0
        while not flush.done():
            assert writer.pending_bytes <= 100 or writer.pending_entries == 1
            await eventually(lambda: bool(bookie.held) or flush.done(), "more arrived")
            bookie.release()
            bookie.held = []
            await asyncio.sleep(0)
        bookie.held = None
        assert [task.result() for task in (tasks[0], tasks[2], tasks[3])] == [1, 2, 3]
        assert big.result() == range(4, 11)
        assert huge.result() == 11


async def test_entries_are_limited_too() -> None:
    config = ClientConfig(max_pending_entries=3)
    async with scripted(config=config) as (_, client), client.create() as writer:
        for _ in range(3):
            writer.append_nowait(b"x")
        with pytest.raises(BufferFull, match="3 entries"):
            writer.append_nowait(b"x")
        assert await writer.append(b"waits") == 3


async def test_cancelling_an_append_abandons_the_wait_not_the_write() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        task = asyncio.ensure_future(writer.append(b"kept"))
        await asyncio.sleep(0)
        task.cancel()
        assert await writer.append(b"next") == 1
        await eventually(lambda: cluster["b0"].ids(writer.ledger_id) == [0, 1], "both stored")


async def test_a_bookie_that_takes_nothing_makes_appends_wait_and_not_memory_grow() -> None:
    config = ClientConfig(max_pending_bytes=64 * 1024)
    async with scripted(config=config) as (cluster, client), client.create() as writer:
        slow = cluster["b2"]
        await writer.append(b"connected")
        await eventually(lambda: slow.ids(writer.ledger_id) == [0], "connected")
        for transport in slow._transports:
            transport.pause_reading()
        pool = client.services.pool
        peak = 0
        with pytest.raises(BufferFull, match="slow"):  # noqa: PT012
            for _ in range(100_000):
                await writer.append(bytes(32 * 1024))
                writer.append_nowait(b"")
                peak = max(peak, pool.pending_bytes("b2"))
        assert peak < 2 * 4 * config.max_pending_bytes
        assert writer.pending_bytes == 0, "it waits for the slow one although the others acknowledged"
        assert await writer.append(b"after the timeout of the slow one") > 0
        assert writer.degraded


# -- explicit ids ---------------------------------------------------------------------------------------------


async def test_explicit_ids() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create(explicit_ids=True)
        late = writer.append_nowait(b"two", entry_id=2)
        assert await writer.append(b"zero", entry_id=0) == 0
        assert writer.last_confirmed == 0
        for taken in (0, 2):
            with pytest.raises(DuplicateEntry, match=f"entry id {taken}"):
                await writer.append(b"again", entry_id=taken)
        with pytest.raises(InvalidArgument, match="entry_id"):
            await writer.append(b"no id")
        with pytest.raises(InvalidArgument, match="2\\*\\*63"):
            await writer.append(b"x", entry_id=-1)
        with pytest.raises(InvalidArgument):
            await writer.append_many([b"x"])
        assert not late.done()
        assert await writer.append(b"one", entry_id=1) == 1
        assert await late == 2
        gap = writer.append_nowait(b"five", entry_id=5)
        with pytest.raises(LedgerClosed):
            await writer.close()
        assert isinstance(gap.exception(), LedgerClosed)
        assert (writer.metadata.last_entry, writer.metadata.length) == (2, 10)
        assert cluster["b0"].ids(writer.ledger_id) == [0, 1, 2, 5]


async def test_the_id_that_fills_the_gap_never_waits_for_room() -> None:
    config = ClientConfig(max_pending_entries=4)
    async with scripted(config=config) as (_, client), client.create(explicit_ids=True) as writer:
        waiting = [asyncio.ensure_future(writer.append(b"x", entry_id=i)) for i in (5, 4, 3, 2, 1, 7, 6)]
        await asyncio.sleep(0)
        assert writer.pending_entries == 4
        assert await writer.append(b"x", entry_id=0) == 0
        assert await asyncio.gather(*waiting) == [5, 4, 3, 2, 1, 7, 6]


# -- deferred sync --------------------------------------------------------------------------------------------


async def test_deferred_sync_confirms_by_force() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create(deferred_sync=True)
        assert await writer.force() == -1
        await writer.append_many([b"abc"] * 3)
        assert writer.last_confirmed == -1
        await eventually(lambda: all(b.deferred == {0, 1, 2} for b in cluster.bookies.values()), "flag on every add")
        cluster["b1"].force_code = Code.IO_ERROR
        with pytest.raises(BookieIOError, match="b1"):
            await writer.force()
        assert writer.last_confirmed == -1, "one failure fails the force"
        with pytest.raises(BookieIOError):
            await writer.close()
        cluster["b1"].force_code = Code.OK
        await writer.close()
        assert (writer.metadata.last_entry, writer.metadata.length) == (2, 9)


async def test_deferred_sync_ends_with_a_failed_bookie() -> None:
    async with scripted(5) as (cluster, client):
        writer = await client.create(deferred_sync=True)
        await writer.append(b"abc")
        assert await writer.force() == 0
        await cluster[writer.metadata.last_fragment.ensemble[0]].kill()
        with pytest.raises(WriteFailed, match="deferred-sync"):  # noqa: PT012
            while True:
                await writer.append(b"x")
        with pytest.raises(WriteFailed):
            await writer.close()
        assert len(writer.metadata.fragments) == 1
        assert (writer.metadata.last_entry, writer.metadata.length) == (0, 3)


async def test_a_bookie_that_restarted_between_acknowledgement_and_force_ends_the_writer() -> None:
    """What it acknowledged and had not synced may be gone, and the sync it does now covers nothing of it (M2)."""
    async with scripted(1) as (cluster, client):
        writer = await client.create(ensemble=1, deferred_sync=True)
        await writer.append(b"abc")
        assert await writer.force() == 0
        cluster["b0"].reset()  # nothing is unforced: no harm
        await asyncio.sleep(0.01)
        await writer.append(b"abc")
        assert await writer.force() == 1
        await writer.append(b"gone")
        del cluster["b0"].entries[writer.ledger_id][2]
        cluster["b0"].reset()
        await asyncio.sleep(0.01)
        with pytest.raises(WriteFailed, match="b0"):
            await writer.force()
        assert writer.last_confirmed == 1
        with pytest.raises(WriteFailed, match="b0"):
            await writer.append(b"x")
        with pytest.raises(WriteFailed, match="b0"):
            await writer.close()
        assert (writer.metadata.last_entry, writer.metadata.length) == (1, 6)


async def test_a_force_is_no_success_when_the_writer_ended_meanwhile() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create(deferred_sync=True)
        await writer.append(b"abc")
        cluster["b0"].add_code = lambda entry: Code.IO_ERROR
        lost = writer.append_nowait(b"x")
        with pytest.raises(WriteFailed):  # its own LAC is what close seals, so nothing beyond it may be promised
            await writer.force()
        assert isinstance(lost.exception(), WriteFailed)
        assert writer.last_confirmed == -1
        with pytest.raises(WriteFailed):
            await writer.close()
        assert writer.metadata.last_entry == -1


# -- the explicit LAC -----------------------------------------------------------------------------------------


async def test_an_idle_writer_publishes_its_last_entry_once() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        loop = asyncio.get_running_loop()
        await writer.append_many([b"x"] * 5)
        start = loop.time()
        await eventually(lambda: all(4 in b.lacs for b in cluster.bookies.values()), "explicit LAC")
        assert loop.time() - start < 1.0
        await asyncio.sleep(0.05)
        assert [b.lacs for b in cluster.bookies.values()] == [[4]] * 3
        await writer.append(b"y")
        await eventually(lambda: all(b.lacs == [4, 5] for b in cluster.bookies.values()), "the next one")


def _all_end_with(lacs: list[list[int]], last: int) -> bool:
    return all(published[-1] == last for published in lacs)


async def test_a_hung_bookie_does_not_hold_up_the_next_explicit_lac() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        await eventually(lambda: all(0 in b.lacs for b in cluster.bookies.values()), "explicit LAC")
        cluster["b2"].silent = True  # its timeout is a second away
        others = [cluster["b0"].lacs, cluster["b1"].lacs]
        for _ in range(3):
            last = await writer.append(b"y")
            await eventually(partial(_all_end_with, others, last), "published at the others", 0.2)
        cluster["b2"].silent = False


async def test_no_explicit_lac_when_it_is_off() -> None:
    async with scripted(config=ClientConfig(idle_lac_ms=0)) as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        await asyncio.sleep(0.05)
        assert [b.lacs for b in cluster.bookies.values()] == [[]] * 3


# -- the end --------------------------------------------------------------------------------------------------


async def test_close_twice_and_append_after_close() -> None:
    async with scripted() as (_, client):
        writer = await client.create()
        await writer.append(b"x")
        closing = asyncio.gather(writer.close(), writer.close())
        await asyncio.sleep(0)
        with pytest.raises(LedgerClosed):
            writer.append_nowait(b"late")
        await closing
        await writer.close()
        with pytest.raises(LedgerClosed):
            await writer.append(b"late")
        await writer.flush()
        assert (writer.metadata.state, writer.metadata.last_entry) == (LedgerState.CLOSED, 0)


async def test_close_waits_for_what_was_appended() -> None:
    config = ClientConfig(max_pending_entries=2)
    async with scripted(config=config) as (_, client):
        writer = await client.create()
        tasks = [asyncio.ensure_future(writer.append(b"x")) for _ in range(9)]
        await asyncio.sleep(0)
        await writer.close()
        assert [task.result() for task in tasks] == list(range(9))
        assert writer.metadata.last_entry == 8


async def test_close_without_waiting_fails_what_is_pending() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create()
        await writer.append(b"abc")
        for bookie in cluster.bookies.values():
            bookie.silent = True
        futures = [writer.append_nowait(b"pending") for _ in range(3)]
        await asyncio.sleep(0.01)
        await writer.close(wait=False)
        assert all(isinstance(f.exception(), LedgerClosed) for f in futures)
        assert (writer.metadata.last_entry, writer.metadata.length, writer.length) == (0, 3, 3)


async def test_the_end_of_with_raises_the_first_failure_nobody_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as (cluster, client):
        with pytest.raises(LedgerFenced):  # noqa: PT012
            async with client.create() as writer:
                await writer.append(b"fine")
                for bookie in cluster.bookies.values():
                    bookie.add_code = lambda entry: Code.FENCED
                writer.append_nowait(b"dropped")
        with pytest.raises(LedgerFenced):
            await writer.close()
        gc.collect()
        assert "never retrieved" not in caplog.text


async def test_an_error_in_the_body_is_not_masked() -> None:
    async with scripted() as (cluster, client):
        with pytest.raises(KeyError) as caught:  # noqa: PT012
            async with client.create() as writer:
                await writer.append(b"x")
                for bookie in cluster.bookies.values():
                    bookie.add_code = lambda entry: Code.FENCED
                writer.append_nowait(b"x")
                raise KeyError("body")
        assert "closing ledger" in caught.value.__notes__[0]


async def test_fenced_ends_the_writer_for_good() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create()
        await writer.append(b"fine")
        cluster["b0"].add_code = cluster["b2"].add_code = lambda entry: Code.FENCED
        with pytest.raises(LedgerFenced):
            await writer.append(b"x")
        for bookie in cluster.bookies.values():
            bookie.add_code = lambda entry: Code.OK
        with pytest.raises(LedgerFenced):
            await writer.append(b"y")
        assert writer.closed
        with pytest.raises(LedgerFenced):
            await writer.flush()


async def test_closing_the_client_leaves_no_task_and_no_waiter() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create()
        await writer.append(b"x")
        for bookie in cluster.bookies.values():
            bookie.silent = True
        pending = asyncio.ensure_future(writer.append(b"y"))
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(HandleClosed):
            await pending
        with pytest.raises(HandleClosed):
            await closing
        with pytest.raises(HandleClosed):
            await client.create()
        metadata = (await cluster.store.read_ledger(writer.ledger_id)).metadata
        assert metadata.state is LedgerState.OPEN, "open ledgers are left to recovery"


async def test_a_cancelled_end_of_with_leaves_no_append_waiting() -> None:
    async with scripted() as (cluster, client):
        pending: list[asyncio.Future[int]] = []

        async def body() -> None:
            async with client.create() as writer:
                await writer.append(b"x")
                for bookie in cluster.bookies.values():
                    bookie.silent = True
                pending.append(writer.append_nowait(b"y"))

        task = asyncio.ensure_future(body())
        await eventually(lambda: bool(pending), "the body has ended")
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pending[0].done(), "nobody works for it any more"
        assert isinstance(pending[0].exception(), HandleClosed)
        for bookie in cluster.bookies.values():
            bookie.reset()  # late failures find a writer that has ended
        await asyncio.sleep(0.01)


async def test_closing_the_client_again_finishes_what_a_cancelled_close_began() -> None:
    async with scripted() as (_, client):
        writer = await client.create()
        await writer.append(b"x")
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await client.close()
        assert client.services.pool.closed


# -- create ---------------------------------------------------------------------------------------------------


async def test_create_never_takes_fewer_bookies() -> None:
    async with scripted(2) as (_, client):
        with pytest.raises(NotEnoughBookies, match=r"3.*2"):
            await client.create()
        async with client.create(ensemble=2) as writer:
            assert await writer.append(b"x") == 0


async def test_create_checks_its_arguments() -> None:
    async with scripted(1) as (_, client):
        for wrong in (
            {"ensemble": "2/3/2"}, {"ensemble": (3, 3)}, {"ensemble": 3, "ack_quorum": 4}, {"digest": "md5"},
            {"password": 3}, {"custom_metadata": {"a": 1}}, {"ledger_id": -1}, {"ledger_id": 2**63},
        ):  # fmt: skip
            with pytest.raises(InvalidArgument):
                client.create(**wrong)
        async with client.create(ensemble=1, ledger_id=77, digest="mac", password="p") as writer:
            assert writer.ledger_id == 77
            assert writer.metadata.digest_type is DigestType.MAC
        with pytest.raises(LedgerExists, match="77"):
            await client.create(ensemble=1, ledger_id=77)
        async with client.create(ensemble=1) as other:
            assert other.ledger_id != 77


async def test_a_fork_is_told_to_connect_again() -> None:
    async with scripted(1) as (_, client):
        child = os.fork()
        if child == 0:
            try:
                client.create(ensemble=1).__await__().send(None)
            except ForkedClient:
                os._exit(0)
            except BaseException:
                os._exit(2)
            os._exit(3)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0


async def test_a_broken_invariant_ends_the_writer_and_seals_nothing() -> None:
    async with scripted() as (cluster, client):
        writer = await client.create()
        await writer.append(b"x")
        with pytest.raises(InvariantViolation, match="S9"):
            writer.acked(0, "b0", 0, 9)
        with pytest.raises(WriteFailed, match="internal error"):
            await writer.append(b"y")
        with pytest.raises(WriteFailed):
            await writer.close()
        assert not (await cluster.store.read_ledger(writer.ledger_id)).metadata.closed
