"""What processes leave behind that are killed while they put objects, and how the space returns."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.errors import DataLost, LedgerFenced, NoSuchLedger, NoSuchObject, ObjectExists, WriteFailed
from buckram.namespace import Namespace
from buckram.state.objects.objects import LOG, Objects
from buckram.testing import Cluster, cluster

MIB = 1024 * 1024
PROGRAM = Path(__file__).with_name("writing_process.py")


@pytest.fixture
async def three_bookies() -> AsyncIterator[Cluster]:
    """Of which other processes know, too."""
    async with cluster(bookies=3, metadata="sqlite") as running:
        yield running


@asynccontextmanager
async def writing(uri: str, what: str) -> AsyncIterator[str]:
    """A process that has got so far, and is killed then; its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), uri, what, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(2 if what == "part" else 1)]
        assert lines[-1], "the process ended by itself"
        yield lines[0]
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def ledgers(client: Client, ns: Namespace) -> list[int]:
    """The ledgers with data of objects, from their intents and from the list of all ledgers."""
    full = ns.log_name(LOG)
    uid = (await ns.store.read(full)).head.uid
    intents = [int(name) for name in await ns.store.keys.children(ns.store.layout.intents(uid))]
    found = [ledger async for ledger in client.list()]
    return [ledger for ledger in intents if ledger in found]


async def swept(objects: Objects, client: Client, ns: Namespace) -> list[int]:
    """The ledgers that are left when the dead process's session has ended and its ledgers are deleted."""

    async def done() -> bool:
        await objects.sweep()
        state = await objects._index.look(lambda index: (dict(index.space.open), dict(index.space.dead)))
        return state == ({}, {})

    await eventually(done)
    return await ledgers(client, ns)


@pytest.mark.parametrize(("what", "made"), [("large", 2), ("pack", 1), ("unknown", 2)])
async def test_ledgers_of_a_killed_process_are_deleted_and_its_objects_stay(
    three_bookies: Cluster, client: Client, ns: Namespace, what: str, made: int
) -> None:
    async with writing(three_bookies.uri, what):
        pass
    async with client.objects("shop") as objects:
        assert await objects.get("kept") == b"kept"
        assert len(await ledgers(client, ns)) == made
        # What is live in its pack was moved into a pack of this process, which is sealed by the next sweep.
        left = await swept(objects, client, ns)
        assert len(left) == 1
        assert await objects.get("kept") == b"kept"
        assert [info.name for info in await objects.list()] == ["kept"]
        for ledger in left:
            metadata = await client.metadata(ledger)
            assert metadata.closed
    assert await ledgers(client, ns) == left


async def test_parts_of_a_killed_process_can_be_completed_by_another(
    three_bookies: Cluster, client: Client, ns: Namespace
) -> None:
    async with writing(three_bookies.uri, "part") as upload:
        pass
    async with client.objects("shop") as objects:
        assert len(await ledgers(client, ns)) == 3
        assert len(await swept(objects, client, ns)) == 2
        await objects.put_part(int(upload), 1, b"the end")
        await objects.complete_upload(int(upload), 2)
        assert await objects.get("large", start=2 * MIB) == b"the end"


async def test_a_living_writer_is_left_alone(three_bookies: Cluster, ns: Namespace) -> None:
    async def slowly(go_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield bytes(2 * MIB)
        await go_on.wait()
        yield b"the end"

    async with (
        three_bookies.client() as one,
        one.objects("shop") as first,
        three_bookies.client() as other,
        other.objects("shop") as second,
    ):
        go_on = asyncio.Event()
        putting = asyncio.create_task(first.put("large", slowly(go_on)))
        await eventually(lambda: second._index.look(lambda index: bool(index.space.open)))
        assert await second.sweep() == 0
        go_on.set()
        await putting
        assert await second.get("large", start=2 * MIB) == b"the end"


async def test_a_writer_that_passed_for_dead_puts_nothing_and_can_put_again(
    three_bookies: Cluster, client: Client, ns: Namespace
) -> None:
    async def slowly(go_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield bytes(2 * MIB)
        await go_on.wait()
        yield bytes(2 * MIB)

    async with client.objects("shop") as first, client.objects("shop") as second:
        await first.put("small", b"1")
        go_on = asyncio.Event()
        putting = asyncio.create_task(first.put("large", slowly(go_on)))
        await eventually(lambda: second._index.look(lambda index: len(index.space.open) == 2))
        presence = first._maker.presence
        await presence._scope.close()
        await ns.store.keys.delete(presence._key, 0)
        assert len(await swept(second, client, ns)) == 1
        go_on.set()
        with pytest.raises((DataLost, WriteFailed, LedgerFenced, NoSuchLedger)):
            await putting
        with pytest.raises(NoSuchObject):
            await second.info("large")
        await first.put("small", b"2")
        assert await second.get("small") == b"2"


async def test_what_was_refused_or_cut_leaves_no_ledger(client: Client, ns: Namespace) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield bytes(3 * MIB)
        raise OSError("the source is gone")

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(3 * MIB)
        await asyncio.Event().wait()

    async with client.objects("shop") as objects:
        await objects.put("a", b"")
        for data in (bytes(2 * MIB), cut()):
            with pytest.raises((OSError, ObjectExists)):
                await objects.put("a", data, if_absent=True)
        putting = asyncio.create_task(objects.put("b", endless()))
        await eventually(lambda: objects._index.look(lambda index: bool(index.space.open)))
        putting.cancel()
        await asyncio.wait((putting,))
        assert await swept(objects, client, ns) == []


async def test_a_put_that_is_cancelled_as_its_ledger_begins_leaves_none(client: Client, ns: Namespace) -> None:
    """The process lives on, so that no sweeper takes the ledger for a dead writer's."""

    async def begun(objects: Objects) -> bool:
        return await objects._index.machine.read(lambda index: bool(index.space.open), "stale")

    async with client.objects("shop") as objects:
        await objects.put("a", b"")
        for turns in range(12):
            putting = asyncio.create_task(objects.put("b", bytes(2 * MIB)))
            for _ in range(1_000_000):
                if await begun(objects):
                    break
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            putting.cancel()
            await asyncio.wait((putting,))
            if not putting.cancelled():
                break
            assert await swept(objects, client, ns) == []
        assert turns


async def test_a_sweep_that_is_cancelled_while_it_seals_gives_its_pack_up(client: Client, ns: Namespace) -> None:
    """It waits for what is on its way to the pack, which nobody else remembers by then."""
    async with client.objects("shop") as objects:
        await objects.put("a", b"1")
        putting = asyncio.create_task(objects.put("b", b"2"))
        for _ in range(1_000_000):
            if objects._packs._appends:
                break
            await asyncio.sleep(0)
        sweeping = asyncio.create_task(objects.sweep())
        await asyncio.sleep(0)
        sweeping.cancel()
        await asyncio.wait((sweeping,))
        assert sweeping.cancelled()
        await putting
        assert await objects.get("b") == b"2"
        for name in ("a", "b"):
            await objects.delete(name)
        assert await swept(objects, client, ns) == []


async def test_a_sweep_that_was_killed_in_the_middle_is_done_again(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        await objects.put("a", bytes(2 * MIB))
        await objects.put("b", b"small")
        await objects.delete("a")
        (dead,) = await objects._index.look(lambda index: dict(index.space.dead))
        # It was deleted, and the index does not know that yet.
        await objects._sweeper._drop(dead)
        assert await objects.sweep() == 1
        # Bytes were copied to another pack, and the index still names the old ones.
        await objects._packs.put(b"small")
        assert await swept(objects, client, ns) == [
            (
                await objects._index.look(
                    lambda index: [extent.ledger for extent in index.listed("", "", 9)[0][1].extents]
                )
            )[0]
        ]
        assert await objects.get("b") == b"small"
