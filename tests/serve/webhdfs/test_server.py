"""Requests as Hadoop's client sends them: redirects, answers without a content type, refusals by Java's names."""

from __future__ import annotations

import pytest
from tests.serve.webhdfs.kit import Remote, Web
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.serve.webhdfs.limits import FileLimits


async def test_a_file_goes_in_and_out_in_two_steps(web: Web) -> None:
    await web.create("/shop/a/b/file", b"0123456789", pieces=3)
    assert await web.open("/shop/a/b/file") == b"0123456789"
    assert await web.open("/shop/a/b/file", offset=3) == b"3456789"
    assert await web.open("/shop/a/b/file", offset=3, length=4) == b"3456"
    assert await web.open("/shop/a/b/file", offset=10, length="null") == b""
    found = await web.status("/shop/a/b/file")
    assert (found["type"], found["length"], found["pathSuffix"]) == ("FILE", 10, "")
    with pytest.raises(Remote, match="offset='11': needs at most 10"):
        await web.open("/shop/a/b/file", offset=11)
    with pytest.raises(Remote, match="FileNotFoundException: /shop/a/b is a directory"):
        await web.open("/shop/a/b")


async def test_an_empty_file_and_a_large_one(web: Web) -> None:
    await web.create("/shop/empty", b"")
    assert await web.open("/shop/empty") == b""
    large = bytes(range(256)) * 16_384
    await web.create("/shop/large", large, pieces=50)
    assert await web.open("/shop/large") == large
    assert await web.open("/shop/large", offset=3_000_001, length=1_000_000) == large[3_000_001:4_000_001]


async def test_other_clients_get_a_content_type_and_may_ask_for_no_redirect(gateway: Gateway) -> None:
    web = await Web.to(gateway.url, User_Agent="curl/8")
    answer = await web.answer(f"GET {web.place('/shop', 'GETFILESTATUS')}")
    assert answer.headers["content-type"] == "application/json"
    answer = await web.answer(f"PUT {web.place('/shop/x', 'CREATE', noredirect='true')}")
    assert answer.value["Location"].endswith("data=true")
    await web.close()


async def test_a_body_that_is_cut_leaves_nothing(web: Web, gateway: Gateway) -> None:
    place = await web.redirected(f"PUT {web.place('/shop/cut', 'CREATE', overwrite='true')}")
    head = f"PUT {place} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    await web._raw.send(head.encode() + b"3\r\nabc\r\n")
    await until(lambda: gateway.files.transfers.now == 1)
    await web.close()
    await until(lambda: gateway.files.transfers.now == 0)
    other = await Web.to(gateway.url)
    assert not await other.exists("/shop/cut")
    await other.close()


async def test_paths_come_raw_or_encoded(web: Web) -> None:
    await web.create("/shop/a b/ü%+", b"x")
    assert await web.list("/shop/a b") == ["ü%+"]
    raw = "GET /webhdfs/v1/shop/a%20b/ü%25+?op=GETFILESTATUS"
    assert (await web.answer(raw)).value["FileStatus"]["length"] == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/shop/a/../b", '".."'),
        ("/shop/a//b", "empty part"),
        ("/shop/%ff", "no UTF-8"),
        ("/shop/" + "x" * 2000, "2000 bytes"),
        ("//x", "empty part"),
    ],
)
async def test_bad_paths_are_refused(web: Web, path: str, why: str) -> None:
    with pytest.raises(Remote, match="InvalidPathException") as caught:
        await web.answer(f"GET /webhdfs/v1{path}?op=GETFILESTATUS")
    assert why in caught.value.message


async def test_what_files_cannot_do_is_refused_with_the_reason(web: Web) -> None:
    await web.create("/shop/file", b"x")
    for method, op in (("POST", "APPEND"), ("POST", "TRUNCATE"), ("POST", "CONCAT")):
        with pytest.raises(Remote, match=f"UnsupportedOperationException: .*{op}.*files are immutable"):
            await web.answer(f"{method} {web.place('/shop/file', op)}")
    with pytest.raises(Remote, match=r"UnsupportedOperationException: .*there are: .*GETFILESTATUS"):
        await web.answer(f"GET {web.place('/shop/file', 'GETXATTRS')}")
    with pytest.raises(Remote, match="IllegalArgumentException: op=''"):
        await web.answer("GET /webhdfs/v1/shop/file")
    with pytest.raises(Remote, match="IllegalArgumentException: overwrite='maybe': needs true or false"):
        await web.answer(f"PUT {web.place('/shop/file', 'CREATE', overwrite='maybe')}")
    with pytest.raises(Remote, match="IllegalArgumentException: offset='-1'"):
        await web.open("/shop/file", offset=-1)
    with pytest.raises(Remote, match="to be given once"):
        await web.answer(f"GET {web.place('/shop/file', 'GETFILESTATUS')}&op=OPEN")


async def test_what_is_known_of_a_server_and_a_file(web: Web, client: Client) -> None:
    await web.create("/shop/file", b"x")
    said = await web.ask("GET", "/", "GETSERVERDEFAULTS")
    assert said["FsServerDefaults"]["encryptDataTransfer"] is False
    assert said["BuckramCluster"] == client.services.identities.cluster != ""
    assert (await web.ask("GET", "/", "GETHOMEDIRECTORY")) == {"Path": "/default"}
    located = await web.ask("GET", "/shop/file", "GETFILEBLOCKLOCATIONS", offset=0, length=1)
    assert [one["length"] for one in located["BlockLocations"]["BlockLocation"]] == [1]
    assert await web.ask("GET", "/shop/file", "CHECKACCESS", fsaction="rw-") is None
    assert await web.ask("PUT", "/shop/file", "SETPERMISSION", permission=600) is None
    assert await web.ask("PUT", "/shop/file", "SETTIMES", modificationtime=0) is None
    assert await web.ask("PUT", "/shop/file", "SETREPLICATION", replication=2) == {"boolean": True}
    with pytest.raises(Remote, match="FileNotFoundException"):
        await web.ask("PUT", "/shop/none", "SETOWNER", owner="ann")
    assert await web.ask("GET", "/", "GETDELEGATIONTOKEN") == {"Token": None}


async def test_lists_of_the_root_of_files_and_in_batches(web: Web, client: Client) -> None:
    assert await web.list("/") == await client.namespaces.list()
    for name in ("c", "a", "b"):
        await web.create(f"/shop/d/{name}", name.encode())
    await web.mkdirs("/shop/d/aa/x")
    assert await web.list("/shop/d") == ["a", "aa", "b", "c"]
    assert await web.list("/shop/d/b") == [""]
    assert (await web.status("/shop/d"))["childrenNum"] == 4
    listing = (await web.ask("GET", "/shop/d", "LISTSTATUS_BATCH", startAfter="aa"))["DirectoryListing"]
    found = [one["pathSuffix"] for one in listing["partialListing"]["FileStatuses"]["FileStatus"]]
    assert (found, listing["remainingEntries"]) == (["b", "c"], 0)
    listing = (await web.ask("GET", "/shop/d", "LISTSTATUS_BATCH", startAfter="ab"))["DirectoryListing"]
    found = [one["pathSuffix"] for one in listing["partialListing"]["FileStatuses"]["FileStatus"]]
    assert found == ["b", "c"]
    summary = (await web.ask("GET", "/shop/d", "GETCONTENTSUMMARY"))["ContentSummary"]
    assert (summary["fileCount"], summary["directoryCount"], summary["length"]) == (3, 3, 3)


async def test_a_long_list_comes_in_pages(web: Web, gateway: Gateway) -> None:
    gateway.files.files._limits = FileLimits(page=2)
    for name in ("a", "b", "c", "d", "e"):
        await web.create(f"/shop/d/{name}", b"")
    assert await web.list("/shop/d") == ["a", "b", "c", "d", "e"]
    listing = (await web.ask("GET", "/shop/d", "LISTSTATUS_BATCH", startAfter="a"))["DirectoryListing"]
    assert listing["remainingEntries"] == 1
    await web.mkdirs("/shop/none")
    assert await web.list("/shop/none") == []


async def test_too_many_transfers_are_sent_elsewhere(web: Web, gateway: Gateway) -> None:
    await web.create("/shop/file", b"x")
    gateway.files.transfers.share.limit = 0
    for ask in (web.open("/shop/file"), web.create("/shop/other", b"")):
        with pytest.raises(Remote, match="StandbyException: 0 files are read or written"):
            await ask
    gateway.files.transfers.share.limit = 1
    assert await web.list("/shop") == ["file"]


async def test_a_client_that_takes_nothing_is_cut_off(web: Web, gateway: Gateway) -> None:
    gateway.files._limits = FileLimits(stuck_s=0.2)
    await web.create("/shop/large", bytes(32 * 1024 * 1024), pieces=64)
    place = await web.redirected(f"GET {web.place('/shop/large', 'OPEN')}")
    other = await Web.to(gateway.url)
    other._raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await other._raw.send(f"GET {place} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await until(lambda: gateway.files.transfers.now == 1)
    await until(lambda: gateway.files.transfers.now == 0)
    await other.close()
