"""The rules of Hadoop's file systems: creating, renaming and deleting files and directories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.serve.webhdfs.kit import Remote, Web

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects
from buckram.testing import Cluster


async def refused(call: object, kind: str) -> str:
    assert asyncio.iscoroutine(call)
    with pytest.raises(Remote) as caught:
        await call
    assert caught.value.kind == kind, caught.value
    return caught.value.message


async def test_create_replaces_a_file_only_if_asked_to(web: Web) -> None:
    await web.create("/shop/file", b"1")
    await web.create("/shop/file", b"2")
    await refused(web.create("/shop/file", b"3", overwrite=False), "FileAlreadyExistsException")
    assert await web.open("/shop/file") == b"2"
    await web.mkdirs("/shop/dir")
    await refused(web.create("/shop/dir", b"3"), "FileAlreadyExistsException")
    await refused(web.create("/shop/file/below/x", b"3"), "ParentNotDirectoryException")
    await refused(web.create("/shop", b"3"), "FileAlreadyExistsException")
    message = await refused(web.create("/none/file", b"3"), "FileNotFoundException")
    assert "none" in message


async def test_directories_stay_when_their_last_file_goes(web: Web, client: Client) -> None:
    await web.create("/shop/a/b/file", b"")
    assert await web.delete("/shop/a/b/file")
    assert await web.list("/shop/a/b") == []
    async with client.objects("shop") as objects:
        await objects.put("x/y/file", b"")
    assert await web.rename("/shop/x/y/file", "/shop/a/b")
    assert await web.list("/shop/x/y") == []
    assert await web.list("/shop/a/b") == ["file"]


async def test_mkdirs_is_repeatable(web: Web) -> None:
    assert await web.mkdirs("/shop/a/b")
    assert await web.mkdirs("/shop/a/b")
    assert await web.mkdirs("/shop")
    assert await web.mkdirs("/")
    await web.create("/shop/file", b"")
    await refused(web.mkdirs("/shop/file"), "FileAlreadyExistsException")
    await refused(web.mkdirs("/shop/file/x"), "ParentNotDirectoryException")
    await refused(web.mkdirs("/none/x"), "FileNotFoundException")


async def test_delete(web: Web) -> None:
    await web.create("/shop/a/file", b"")
    await refused(web.delete("/shop/a"), "PathIsNotEmptyDirectoryException")
    assert await web.exists("/shop/a/file")
    assert await web.delete("/shop/a", recursive=True)
    assert not await web.exists("/shop/a")
    assert not await web.delete("/shop/a", recursive=True)
    await refused(web.delete("/shop", recursive=True), "AccessControlException")
    await refused(web.delete("/", recursive=True), "AccessControlException")


async def test_what_another_process_put_is_deleted_by_one_that_leads_no_more(
    web: Web, gateway: Gateway, three_bookies: Cluster
) -> None:
    await web.create("/shop/old", b"1")
    async with gateway.objects.shelf.use("shop") as objects:
        machine = objects._index.machine
        engine = (await machine._replica.leading()).engine
        assert engine._lease is not None
        await engine._lease.close()  # as the end of its session does, of which nobody tells it
        async with three_bookies.client() as other, other.objects("shop") as theirs:
            await theirs.put("new", b"2")
            assert machine.role == "leader", "it is to believe that it leads"
            assert await web.delete("/shop/new")
            assert [one.name for one in await theirs.list()] == ["old"]


async def test_a_directory_with_an_empty_one_in_it_is_not_empty(web: Web) -> None:
    await web.mkdirs("/shop/a/b")
    await refused(web.delete("/shop/a"), "PathIsNotEmptyDirectoryException")
    assert await web.exists("/shop/a/b")
    assert await web.delete("/shop/a/b")
    assert await web.delete("/shop/a")


async def test_a_file_in_the_place_of_a_directory_is_refused_in_either_step(web: Web) -> None:
    """A directory may be made between the steps of CREATE."""
    await web.mkdirs("/shop/a")
    for step in ("false", "true"):
        for overwrite in ("false", "true"):
            call = web.ask("PUT", "/shop/a", "CREATE", data=step, overwrite=overwrite)
            await refused(call, "FileAlreadyExistsException")


@contextmanager
def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[Objects], Awaitable[object]]) -> Iterator[None]:
    """Have somebody make a change between the first look at paths and what follows it."""
    statuses, made = Objects.statuses, list[bool]()

    async def look(self: Objects, *paths: str, **more: bool) -> list[ObjectInfo | DirectoryInfo | None]:
        found = await statuses(self, *paths, **more)
        if not made:
            made.append(True)
            await change(self)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "statuses", look)
        yield
    assert made


async def test_what_changes_between_look_and_change_is_told_as_it_is(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    await web.create("/shop/a", b"1")
    with meanwhile(monkeypatch, lambda objects: objects.put("m", b"")):
        await refused(web.mkdirs("/shop/m"), "FileAlreadyExistsException")
    with meanwhile(monkeypatch, lambda objects: objects.mkdirs("b")):
        await refused(web.rename2("/shop/a", "/shop/b"), "FileAlreadyExistsException")
    with meanwhile(monkeypatch, lambda objects: objects.mkdirs("c")):
        assert await web.rename("/shop/a", "/shop/c")
    assert await web.list("/shop/c") == ["a"]
    with meanwhile(monkeypatch, lambda objects: objects.delete("c/a")):
        assert not await web.rename("/shop/c/a", "/shop/d")


async def test_rename2_replaces_nothing(web: Web) -> None:
    await web.create("/shop/a", b"1")
    await web.create("/shop/b", b"2")
    await web.mkdirs("/shop/dir/below")
    await refused(web.rename2("/shop/a", "/shop/b"), "FileAlreadyExistsException")
    await refused(web.rename2("/shop/a", "/shop/a"), "FileAlreadyExistsException")
    await refused(web.rename2("/shop/a", "/shop/dir"), "FileAlreadyExistsException")
    await refused(web.rename2("/shop/none", "/shop/c"), "FileNotFoundException")
    await refused(web.rename2("/shop/a", "/shop/none/c"), "FileNotFoundException")
    await refused(web.rename2("/shop/a", "/shop/b/c"), "ParentNotDirectoryException")
    await refused(web.rename2("/shop/dir", "/shop/dir/below/x"), "IOException")
    await refused(web.rename2("/shop/a", "/default/a"), "IOException")
    await refused(web.rename2("/shop", "/other"), "AccessControlException")
    assert await web.open("/shop/a") == b"1"
    await web.rename2("/shop/a", "/shop/dir/c")
    await web.rename2("/shop/dir", "/shop/moved")
    assert await web.open("/shop/moved/c") == b"1"
    assert await web.list("/shop") == ["b", "moved"]


async def test_rename2_replaces_where_asked_to(web: Web) -> None:
    await web.create("/shop/a", b"1")
    await web.create("/shop/b", b"2")
    await web.rename2("/shop/a", "/shop/b", "OVERWRITE")
    assert (await web.open("/shop/b"), await web.list("/shop")) == (b"1", ["b"])
    await web.mkdirs("/shop/d")
    await web.create("/shop/e/file", b"")
    await refused(web.rename2("/shop/b", "/shop/d", "OVERWRITE"), "IOException")
    await refused(web.rename2("/shop/d", "/shop/e", "OVERWRITE"), "PathIsNotEmptyDirectoryException")
    await web.rename2("/shop/e", "/shop/d", "OVERWRITE")
    assert await web.list("/shop/d") == ["file"]
    await refused(web.rename2("/shop/b", "/shop/c", "SIDEWAYS"), "IllegalArgumentException")


async def test_plain_rename_says_whether_it_was_done(web: Web) -> None:
    await web.create("/shop/a", b"1")
    await web.create("/shop/b", b"2")
    await web.mkdirs("/shop/dir")
    assert not await web.rename("/shop/a", "/shop/b")
    assert not await web.rename("/shop/none", "/shop/c")
    assert not await web.rename("/shop/a", "/shop/none/c")
    assert not await web.rename("/shop/dir", "/shop/dir/x")
    assert not await web.rename("/shop/dir", "/shop/dir")
    assert await web.rename("/shop/a", "/shop/a")
    assert await web.rename("/shop/a", "/shop/dir")
    assert await web.open("/shop/dir/a") == b"1"


async def test_a_rename_whose_answer_was_lost_can_be_sent_again(web: Web) -> None:
    await web.create("/shop/d/.7.tmp", b"1")
    await web.rename2("/shop/d/.7.tmp", "/shop/d/7")
    await web.rename2("/shop/d/.7.tmp", "/shop/d/7")
    await web.create("/shop/d/.8.tmp", b"1")
    assert await web.rename("/shop/d/.8.tmp", "/shop/d/8")
    assert await web.rename("/shop/d/.8.tmp", "/shop/d/8")
    # Another one's file is no proof of it.
    await refused(web.rename2("/shop/d/.9.tmp", "/shop/d/8"), "FileNotFoundException")


async def test_a_file_that_comes_again_is_known(web: Web) -> None:
    place = await web.redirected(f"PUT {web.place('/shop/file', 'CREATE', overwrite='false')}")
    mine = {"Buckram_Attempt": "mine-1"}
    for _ in range(2):
        assert (await web.answer(f"PUT {place}", b"x", **mine)).status == 201
    await refused(web.answer(f"PUT {place}", b"y", Buckram_Attempt="mine-2"), "FileAlreadyExistsException")
    await refused(web.answer(f"PUT {place}", b"y", Buckram_Repeated="true"), "FileAlreadyExistsException")
    # It is the same file under another name.
    await web.rename2("/shop/file", "/shop/other")
    other = place.replace("file", "other")
    assert (await web.answer(f"PUT {other}", b"x", **mine)).status == 201
    # What is no name is none.
    await web.delete("/shop/other")
    nameless = {"Buckram_Attempt": "a b"}
    assert (await web.answer(f"PUT {other}", b"x", **nameless)).status == 201
    await refused(web.answer(f"PUT {other}", b"x", **nameless), "FileAlreadyExistsException")


async def test_changes_that_come_again_say_that_they_were_done(web: Web) -> None:
    await web.create("/shop/d/file", b"x")
    again = Web(web._raw, web.url, {**web.headers, "Buckram_Repeated": "true"})
    assert await again.rename("/shop/d", "/shop/e")
    assert await again.rename("/shop/d", "/shop/e")
    await again.rename2("/shop/d", "/shop/e")
    await refused(again.rename2("/shop/d", "/shop/none"), "FileNotFoundException")
    assert not await again.rename("/shop/d", "/shop/none")
    for _ in range(2):
        assert await again.delete("/shop/e", recursive=True)
    assert not await web.delete("/shop/e", recursive=True)


async def test_of_renames_at_once_to_one_name_one_is_done(gateway: Gateway, web: Web) -> None:
    others = [await Web.to(gateway.url) for _ in range(4)]
    for number in range(4):
        await web.create(f"/shop/log/.{number}.tmp", str(number).encode())
    done = await asyncio.gather(
        *(one.rename2(f"/shop/log/.{n}.tmp", "/shop/log/0") for n, one in enumerate(others)), return_exceptions=True
    )
    won = [number for number, found in enumerate(done) if found is None]
    assert len(won) == 1
    assert {found.kind for found in done if isinstance(found, Remote)} == {"FileAlreadyExistsException"}
    assert await web.open("/shop/log/0") == str(won[0]).encode()
    for one in others:
        await one.close()


async def test_files_of_a_namespace_that_is_deleted_meanwhile(web: Web, client: Client) -> None:
    await client.namespaces.create("brief")
    await web.create("/brief/file", b"")
    await web.delete("/brief/file")
    async with client.objects("brief") as objects:
        await objects.sweep()
    for stream in await client.namespace("brief").list():
        await client.namespace("brief").delete(stream, purpose="objects")
    await client.namespaces.delete("brief")
    message = await refused(web.create("/brief/file", b""), "FileNotFoundException")
    assert "brief" in message


async def test_two_gateways_see_each_others_files_at_once(web: Web, three_bookies: object, gateway: Gateway) -> None:
    from tests.serve.gateway.kit import serving

    from buckram.testing import Cluster

    assert isinstance(three_bookies, Cluster)
    async with three_bookies.client() as second, serving(second) as beside:
        other = await Web.to(beside.url)
        await web.create("/shop/log/0", b"a")
        assert await other.list("/shop/log") == ["0"]
        await other.create("/shop/log/1", b"b")
        assert await web.list("/shop/log") == ["0", "1"]
        assert await web.open("/shop/log/1") == b"b"
        await other.close()
