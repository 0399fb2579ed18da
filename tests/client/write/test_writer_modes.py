"""Writers against scripted bookies on loopback: explicit ids, deferred sync, the explicit LAC."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.scripted_bookie import scripted

from buckram.config import ClientConfig
from buckram.errors import (
    BookieIOError,
    Code,
    DuplicateEntry,
    InvalidArgument,
    LedgerClosed,
    WriteFailed,
)

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
        await until(lambda: all(b.deferred == {0, 1, 2} for b in cluster.bookies.values()), "flag on every add")
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


async def test_bookie_restarted_between_ack_and_force_ends_the_writer() -> None:
    """What it acknowledged and had not synced may be gone, and the sync it does now covers nothing of it (M2)."""
    async with scripted(1) as (cluster, client):
        writer = await client.create(ensemble=1, deferred_sync=True)
        await writer.append(b"abc")
        assert await writer.force() == 0
        cluster["b0"].reset()  # nothing is unforced: no harm
        await pass_time(0.01)
        await writer.append(b"abc")
        assert await writer.force() == 1
        await writer.append(b"gone")
        del cluster["b0"].entries[writer.ledger_id][2]
        cluster["b0"].reset()
        await pass_time(0.01)
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
        await until(lambda: all(4 in b.lacs for b in cluster.bookies.values()), "explicit LAC")
        assert loop.time() - start < 1.0
        await pass_time(0.05)
        assert [b.lacs for b in cluster.bookies.values()] == [[4]] * 3
        await writer.append(b"y")
        await until(lambda: all(b.lacs == [4, 5] for b in cluster.bookies.values()), "the next one")


def _all_end_with(lacs: list[list[int]], last: int) -> bool:
    return all(published[-1] == last for published in lacs)


async def test_a_hung_bookie_does_not_hold_up_the_next_explicit_lac() -> None:
    async with scripted() as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        await until(lambda: all(0 in b.lacs for b in cluster.bookies.values()), "explicit LAC")
        cluster["b2"].silent = True  # its timeout is a second away
        others = [cluster["b0"].lacs, cluster["b1"].lacs]
        for _ in range(3):
            last = await writer.append(b"y")
            await until(partial(_all_end_with, others, last), "published at the others", 0.2)
        cluster["b2"].silent = False


async def test_no_explicit_lac_when_it_is_off() -> None:
    async with scripted(config=ClientConfig(idle_lac_ms=0)) as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        await pass_time(0.05)
        assert [b.lacs for b in cluster.bookies.values()] == [[]] * 3
