"""Objects on a real cluster: put, get, ranges, lists, several processes, parts, space."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from buckram.cluster import Client
from buckram.errors import (
    DirectoryNotEmpty,
    InvalidArgument,
    NameBlocked,
    NoSuchObject,
    ObjectChanged,
    ObjectExists,
    UploadIncomplete,
)
from buckram.namespace import Namespace
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo
from buckram.testing import Cluster

MIB = 1024 * 1024


async def test_objects_of_every_size_come_back_whole_and_in_ranges(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        for size in (0, 1, 1000, MIB, MIB + 1, 3 * MIB + 7):
            data = os.urandom(size)
            info = await objects.put(f"size/{size}", data, metadata={"kind": "random"})
            assert (info.size, info.digest) == (size, f"sha256:{hashlib.sha256(data).hexdigest()}")
            assert await objects.get(f"size/{size}") == data
            assert (
                await objects.get(f"size/{size}", start=size // 3, length=size // 2) == data[size // 3 :][: size // 2]
            )
            assert await objects.get(f"size/{size}", start=size) == b""
            found = await objects.info(f"size/{size}")
            assert found == info
            assert found.metadata == {"kind": "random"}


async def test_conditions_names_and_deletion(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        first = await objects.put("a/b", b"one", if_absent=True)
        with pytest.raises(ObjectExists):
            await objects.put("a/b", b"two", if_absent=True)
        await objects.put("a/b", b"two", if_match=first.version)
        with pytest.raises(ObjectChanged):
            await objects.put("a/b", b"three", if_match=first.version)
        await objects.copy("a/b", "c")
        await objects.rename("a", "z/y")
        assert [info.name for info in await objects.list()] == ["c", "z/y/b"]
        assert [info.name for info in await objects.list(prefix="z/", after="z/x", limit=1)] == ["z/y/b"]
        await objects.delete("c")
        assert await objects.get("z/y/b") == b"two"
        with pytest.raises(NoSuchObject):
            await objects.get("c")
        for name in ("", "/a", "a//b", "a/../b", "a\n", 7):
            with pytest.raises(InvalidArgument):
                await objects.put(name, b"")  # type: ignore[arg-type]


async def test_two_processes_write_in_turns_and_see_what_the_other_did(three_bookies: Cluster, ns: Namespace) -> None:
    async with (
        three_bookies.client() as one,
        one.objects("shop") as first,
        three_bookies.client() as other,
        other.objects("shop") as second,
    ):
        await first.put("a", b"1")
        assert await second.get("a") == b"1"
        await second.put("b", b"2")
        assert await first.get("b") == b"2"
        await first.delete("b")
        assert [info.name for info in await second.list()] == ["a"]
        upload = await first.begin_upload("big")
        await asyncio.gather(first.put_part(upload, 0, b"x" * 10), second.put_part(upload, 1, b"y" * (MIB + 5)))
        with pytest.raises(UploadIncomplete):
            await second.complete_upload(upload, 3)
        info = await second.complete_upload(upload, 2)
        assert (info.name, info.size) == ("big", MIB + 15)
        assert await first.get("big", start=5, length=10) == b"x" * 5 + b"y" * 5


async def test_a_put_that_is_cut_leaves_nothing(client: Client, ns: Namespace) -> None:
    async def cut(pieces: int) -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield bytes(MIB)
        raise OSError("the source is gone")

    async with client.objects("shop") as objects:
        await objects.put("a", b"before")
        for pieces in (1, 3):
            with pytest.raises(OSError, match="the source is gone"):
                await objects.put("a", cut(pieces))
        assert await objects.get("a") == b"before"


async def test_space_returns_after_deletion_and_small_ones_share_ledgers(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        await objects.put("kept", b"kept" * MIB)  # its ledger is sealed, and no sweep may take it
        before = len([ledger async for ledger in client.list()])
        await asyncio.gather(*(objects.put(f"small/{number:03}", b"%d" % number * 100) for number in range(300)))
        await objects.put("large", bytes(2 * MIB))
        ledgers = [ledger async for ledger in client.list()]
        assert len(ledgers) - before <= 3
        await objects.delete("large")
        await asyncio.gather(*(objects.delete(f"small/{number:03}") for number in range(299)))
        # The large one's ledger goes at once; the pack is sparse, so its last object moves and the ledger goes, too.
        assert await objects.sweep() >= 2
        assert await objects.get("small/299") == b"299" * 100
        assert await objects.get("kept") == b"kept" * MIB
        assert len([ledger async for ledger in client.list()]) <= len(ledgers) - 1


async def test_objects_outlive_the_process_that_put_them(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as one:
        objects = await one.objects("shop")
        await objects.put("a", b"1", expires_s=3600.0)
        await objects._packs.put(b"of nobody")
    async with three_bookies.client() as other, other.objects("shop") as again:
        assert await again.get("a") == b"1"
        assert (await again.info("a")).expires is not None


async def test_directories_are_made_listed_and_deleted_in_one_step(client: Client, ns: Namespace) -> None:
    async with client.objects("shop") as objects:
        assert await objects.mkdirs("a/empty")
        assert not await objects.mkdirs("a")
        for number in range(5):
            await objects.put(f"a/{number}", b"x" * number)
        found: list[str] = []
        page = await objects.entries("a", limit=2)
        while page:
            found += [info.name for info in page]
            page = await objects.entries("a", after=page[-1], limit=2)
        assert found == [*(f"a/{number}" for number in range(5)), "a/empty"]
        directory, whole, small = await objects.status("a"), await objects.status(), await objects.status("a/3")
        assert isinstance(directory, DirectoryInfo)
        assert isinstance(whole, DirectoryInfo)
        assert isinstance(small, ObjectInfo)
        assert (directory.children, directory.kept, whole.children, small.size) == (6, True, 1, 3)
        assert directory.time >= small.time > 0
        with pytest.raises(NameBlocked):
            await objects.mkdirs("a/3/x")
        with pytest.raises(DirectoryNotEmpty):
            await objects.remove("a")
        with pytest.raises(NoSuchObject):
            await objects.entries("a/3")
        await objects.remove("a/0")
        await objects.remove("a", recursive=True)
        with pytest.raises(NoSuchObject):
            await objects.status("a")
        assert await objects.sweep() >= 0
        assert (await objects._index.look(lambda state: (state.objects, state.trash))) == (0, [])


async def test_one_of_two_renames_and_puts_wins(three_bookies: Cluster, ns: Namespace) -> None:
    """As two drivers do that use one checkpoint: each step that must not replace anything is given to one of them."""
    async with (
        three_bookies.client() as one,
        one.objects("shop") as first,
        three_bookies.client() as other,
        other.objects("shop") as second,
    ):
        await asyncio.gather(first.put("t/1", b"first"), second.put("t/2", b"second"))
        results = await asyncio.gather(
            first.rename("t/1", "offsets/0", if_absent=True),
            second.rename("t/2", "offsets/0", if_absent=True),
            return_exceptions=True,
        )
        assert sorted(map(type, results), key=str) == sorted([type(None), ObjectExists], key=str)
        results = await asyncio.gather(
            first.put("c", b"first", if_absent=True), second.put("c", b"second", if_absent=True), return_exceptions=True
        )
        assert sum(isinstance(result, ObjectExists) for result in results) == 1
        version = (await first.info("c")).version
        changes = await asyncio.gather(
            first.put("c", b"third", if_match=version),
            second.copy("offsets/0", "c", if_match=version),
            second.delete("c", if_match=version),
            return_exceptions=True,
        )
        assert sum(isinstance(result, ObjectChanged | NoSuchObject) for result in changes) == 2
        assert await first.list() == await second.list()
