"""Bookies that are away or read-only, bytes that are damaged, and objects that expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.errors import InvalidArgument, NoSuchObject, NotEnoughBookies, ObjectDamaged
from buckram.namespace import Namespace
from buckram.state.objects.objects import Objects
from buckram.testing import Cluster

MIB = 1024 * 1024


async def ledgers(client: Client) -> int:
    return len([ledger async for ledger in client.list()])


async def test_an_object_that_expires_is_gone_and_its_space_returns(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        await objects.put("kept", b"1")
        before = await ledgers(client)
        info = await objects.put("a/large", bytes(2 * MIB), expires_s=0.2)
        assert info.expires is not None
        assert info.expires > info.time
        assert await ledgers(client) == before + 1

        async def gone() -> bool:
            try:
                await objects.info("a/large")
            except NoSuchObject:
                return True
            return False

        await eventually(gone)
        assert await objects.sweep() >= 1
        assert [info.name for info in await objects.list()] == ["kept"]
        with pytest.raises(NoSuchObject):
            await objects.status("a")
        for seconds in (0, -1, float("nan"), "1"):
            with pytest.raises(InvalidArgument, match="expires_s"):
                await objects.put("b", b"", expires_s=seconds)  # type: ignore[arg-type]


async def _state(objects: Objects) -> tuple[int, int]:
    return await objects._index.look(lambda index: (len(index.space.open), index.objects))


def show_readonly(cluster: Cluster, readonly: bool) -> None:
    """Two of three bookies take no new ledgers, or do so again."""
    for node in cluster._nodes[1:]:
        assert node.bookie is not None
        assert node.bookie._registration is not None
        node.bookie._registration.set_readonly(readonly)


async def test_too_few_bookies_put_nothing_and_leave_nothing(
    three_bookies: Cluster, client: Client, ns: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """As when disks are full: a read-only bookie takes no new ledger. Who puts is told so, and no log beside it."""
    async with client.objects("shop") as objects:
        await objects.put("a", b"before")
        await objects._packs.seal()
        show_readonly(three_bookies, True)
        await eventually(lambda: _readable(client, 1))
        for size in (10, 3 * MIB):
            with pytest.raises(NotEnoughBookies):
                await objects.put("a", bytes(size))
        assert await objects.get("a") == b"before"
        assert [one for one in caplog.records if one.name == "buckram.tasks"] == []
        show_readonly(three_bookies, False)
        await eventually(lambda: _readable(client, 3))
        await objects.put("a", b"after")
        await objects.put("b", bytes(3 * MIB))
        await objects._packs.seal()
        await objects.sweep()
        assert await _state(objects) == (0, 2)
        assert await objects.get("a") == b"after"


async def test_space_that_could_not_be_given_up_at_once_returns(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stays, so no sweeper takes what it wrote for abandoned."""
    async with client.objects("shop") as objects:
        await objects.put("a", b"before")
        await objects._packs.seal()
        index, refused = objects._index, list[object]()
        execute = index.execute

        async def without_leader_at_first(command: list[object]) -> object:
            if command[0] == "seal" and not refused:
                refused.append(command)
                raise NotEnoughBookies(3, 0)  # as after half a minute in which nobody could lead the index
            return await execute(command)

        monkeypatch.setattr(index, "execute", without_leader_at_first)

        async def pieces() -> AsyncIterator[bytes]:
            yield bytes(3 * MIB)
            raise ValueError("the source is gone")

        with pytest.raises(ValueError, match="the source is gone"):
            await objects.put("large", pieces())
        await eventually(lambda: _nothing_open(objects), "it is open", 5.0)
        assert refused
        assert await objects.get("a") == b"before"


async def _nothing_open(objects: Objects) -> bool:
    return (await _state(objects))[0] == 0


async def _readable(client: Client, count: int) -> bool:
    return len(client.services.bookies.candidates()) == count


async def test_bytes_that_are_damaged_or_gone_are_never_given_out_as_whole(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        for size in (100, 2 * MIB):
            await objects.put("a", b"x" * size)
            row = await objects._index.look(lambda index: index.look("a"))
            assert row is not None
            put = {
                "size": size,
                "digest": "sha256:" + "0" * 64,
                "extents": row.extents,
                "sealed": [],
                "metadata": [],
                "expires_us": 0,
            }
            await objects._index.execute(["put", "a", put, None])
            with pytest.raises(ObjectDamaged, match="digest"):
                await objects.get("a")
            assert await objects.get("a", start=1, length=5) == b"xxxxx"
        await objects.put("gone", bytes(2 * MIB))
        row = await objects._index.look(lambda index: index.look("gone"))
        assert row is not None
        await objects._sweeper._drop(row.extents[0].ledger)
        with pytest.raises(ObjectDamaged, match="are gone"):
            await objects.get("gone")


async def test_a_put_that_is_cancelled_in_the_middle_changes_nothing(client: Client, ns: Namespace) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MIB)
            await asyncio.sleep(0)

    async with client.objects("shop") as objects:
        await objects.put("a", b"before")
        putting = asyncio.create_task(objects.put("a", endless()))
        await eventually(lambda: _two_open(objects))
        putting.cancel()
        await asyncio.wait((putting,))
        assert await objects.get("a") == b"before"


async def _two_open(objects: Objects) -> bool:
    return (await _state(objects))[0] == 2
