"""The end of writers against scripted bookies on loopback: closed, fenced, cancelled, failed, never begun."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.scripted_bookie import scripted

from buckram.client.write.writer import engine_of
from buckram.config import ClientConfig
from buckram.errors import (
    Code,
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
        await pass_time(0.01)
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
        await pass_time(0.01)
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
        await until(lambda: bool(pending), "the body has ended")
        await pass_time(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pending[0].done(), "nobody works for it any more"
        assert isinstance(pending[0].exception(), HandleClosed)
        for bookie in cluster.bookies.values():
            bookie.reset()  # late failures find a writer that has ended
        await pass_time(0.01)


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
            engine_of(writer).acked(0, "b0", 0, 9)
        with pytest.raises(WriteFailed, match="internal error"):
            await writer.append(b"y")
        with pytest.raises(WriteFailed):
            await writer.close()
        assert not (await cluster.store.read_ledger(writer.ledger_id)).metadata.closed
