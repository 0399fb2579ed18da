"""KazooSession beyond the contract of key stores: lost answers, servers that are away, expiry, access lists."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time

import pytest
from tests.support.polling import eventually, until
from tests.support.zk_kit import DEADLINE_S, folder, proxied, session

from buckram.errors import (
    AccessRefused,
    ConfigError,
    ForkedClient,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    ValueTooLarge,
    VersionConflict,
)
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.metadata.zookeeper import kazoo_link
from buckram.metadata.zookeeper.session import ANY_VERSION, create_with_parents
from buckram.types import CheckVersion, Create, Delete, SetValue


async def test_nodes_from_birth_to_death(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk:
        assert await zk.create(f"{top}/a", b"1") == (f"{top}/a", 0)
        value, stat = await zk.get(f"{top}/a")
        assert (value, stat.version, stat.owner, stat.children) == (b"1", 0, 0, 0)
        assert abs(stat.ctime_ms - time.time() * 1000) < 60_000
        assert await zk.set(f"{top}/a", b"2", 0) == 1
        with pytest.raises(VersionConflict):
            await zk.delete(f"{top}/a", 0)
        await zk.create(f"{top}/a/b", ephemeral=True)
        found = await zk.exists(f"{top}/a/b")
        assert found is not None
        assert found.owner == zk.session_id != 0
        with pytest.raises(KeyNotEmpty):
            await zk.delete(f"{top}/a", ANY_VERSION)
        with pytest.raises(InvalidArgument, match="bound to a session"):
            await zk.create(f"{top}/a/b/c")
        assert await zk.children(f"{top}/a") == ["b"]
        await zk.delete(f"{top}/a/b", ANY_VERSION)
        await zk.delete(f"{top}/a", ANY_VERSION)
        assert await zk.exists(f"{top}/a") is None
        await zk.sync(top)


async def test_sequence_numbers_count_births_only(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk:
        for expected in range(3):
            made, _ = await zk.create(f"{top}/ID-", ephemeral=True, sequence=True)
            assert made == f"{top}/ID-{expected:010d}"
            await zk.delete(made, ANY_VERSION)
        stat = await zk.exists(top)
        assert stat is not None
        assert stat.cversion == 6


async def test_parents_are_made_while_others_delete_them(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk, session(hosts) as other:

        async def tidy() -> int:
            """What a deletion of the last ledger below does: as many parents as are empty, from below."""
            paths = (f"{top}/a/b/c", f"{top}/a/b", f"{top}/a")
            results = await asyncio.gather(
                *(other.delete(path, ANY_VERSION) for _ in range(5) for path in paths), return_exceptions=True
            )
            assert all(result is None or isinstance(result, NoSuchKey | KeyNotEmpty) for result in results)
            return results.count(None)

        gone = number = 0
        async with asyncio.timeout(DEADLINE_S):
            while gone < 30:
                path = f"{top}/a/b/c/{number}"
                (made, _), removed = await asyncio.gather(zk.create(path, b"x", parents=True), tidy())
                gone, number = gone + removed, number + 1
                assert (await zk.get(made))[0] == b"x"
                await zk.delete(path, 0)
        with pytest.raises(NoSuchKey) as error:
            await zk.create(f"{top}/n/o")
        assert error.value.key == f"{top}/n"


async def test_parents_that_never_stay_are_given_up() -> None:
    tries: list[str] = []

    async def create_one(path: str) -> str:
        tries.append(path)
        if path in ("/a", "/a/b"):
            return path
        raise NoSuchKey(path.rpartition("/")[0])

    with pytest.raises(MetadataUnavailable, match="/a/b/c: its parents vanish"):
        await create_with_parents("/a/b/c", create_one)
    assert tries[:4] == ["/a/b/c", "/a/b", "/a/b/c", "/a/b"]
    assert len(tries) < 100


async def test_a_multi_names_the_operation_that_failed(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk:
        await zk.multi([Create(f"{top}/a", b"1"), SetValue(f"{top}/a", b"2", 0), CheckVersion(f"{top}/a", 1)])
        good = Create(f"{top}/new", b"")
        with pytest.raises(KeyExists, match="/a"):
            await zk.multi([good, Create(f"{top}/a", b"")])
        with pytest.raises(NoSuchKey) as missing:
            await zk.multi([good, Create(f"{top}/x/y", b""), Delete(f"{top}/gone", 0)])
        assert missing.value.key == f"{top}/x"
        with pytest.raises(VersionConflict):
            await zk.multi([good, CheckVersion(f"{top}/a", 7), good])
        assert await zk.exists(f"{top}/new") is None
        await zk.multi([Delete(f"{top}/a", ANY_VERSION)])


async def test_a_lost_request_and_a_lost_answer_look_the_same_and_reading_tells(
    zookeeper_server: ZooKeeperServer,
) -> None:
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address) as zk:
        await zk.create(f"{top}/n", b"0")
        for what, happened in (("request", False), ("answer", True)):
            proxy.lose = what
            with pytest.raises(MetadataUnavailable, match="not known"):
                await zk.create(f"{top}/{what}", b"")
            assert (await zk.exists(f"{top}/{what}") is not None) is happened
            version = (await zk.get(f"{top}/n"))[1].version
            proxy.lose = what
            with pytest.raises(MetadataUnavailable, match="not known"):
                await zk.set(f"{top}/n", what.encode(), version)
            assert (await zk.get(f"{top}/n"))[1].version == version + happened
        proxy.lose = "answer"
        with pytest.raises(MetadataUnavailable):
            await zk.delete(f"{top}/n", ANY_VERSION)
        assert await zk.exists(f"{top}/n") is None


async def test_reads_are_sent_again_and_mutations_never(zookeeper_server: ZooKeeperServer) -> None:
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address) as zk:
        await zk.create(f"{top}/n", b"0")
        proxy.lose = "answer"
        reads = [zk.get(f"{top}/n"), zk.exists(f"{top}/n"), zk.children(top), zk.get(f"{top}/n")]
        changes = [zk.set(f"{top}/n", b"1", 0), zk.create(f"{top}/m")]
        found = await asyncio.gather(*reads, *changes, return_exceptions=True)
        assert [type(result).__name__ for result in found] == [
            "tuple", "ZkStat", "list", "tuple", "MetadataUnavailable", "MetadataUnavailable"
        ]  # fmt: skip
        sent = proxy.requests
        await zk.exists(top)
        assert proxy.requests == sent + 1, "nothing of before is sent any more"
        assert zk.operations.reads >= 9
        assert zk.operations.syncs == 2, "a connection begins with a sync"


async def test_what_failed_while_the_server_was_away_does_not_happen_later(zookeeper_server: ZooKeeperServer) -> None:
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address, operation_timeout_s=0.6) as zk:
        await zk.create(f"{top}/before")
        await proxy.stop()
        began = time.monotonic()
        for attempt in (zk.create(f"{top}/never"), zk.get(f"{top}/before")):
            with pytest.raises(MetadataUnavailable, match=proxy.address):
                await attempt
        assert time.monotonic() - began < 5
        await proxy.listen()
        await until(lambda: zk._connected)
        assert await zk.children(top) == ["before"]


async def test_a_first_connection_that_nobody_answers_fails_in_time(zookeeper_server: ZooKeeperServer) -> None:
    async with proxied(zookeeper_server.address) as proxy:
        nobody = proxy.address
    async with session(nobody, operation_timeout_s=0.3) as zk:
        with pytest.raises(MetadataUnavailable, match=f"waiting for a server at {nobody}"):
            await zk.exists("/")
        assert zk.session_id == 0


async def test_silent_server_is_waited_for_no_longer_than_the_timeout(
    zookeeper_server: ZooKeeperServer,
) -> None:
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address, operation_timeout_s=0.4) as zk:
        await zk.exists("/")
        proxy.silent = True
        with pytest.raises(MetadataUnavailable, match="no answer"):
            await zk.exists("/")
        proxy.cut()
        proxy.silent = False
        await until(lambda: zk._connected)
        assert await zk.exists("/") is not None


async def test_watches_survive_a_broken_connection(zookeeper_server: ZooKeeperServer) -> None:
    top = await folder(zookeeper_server.address)
    async with (
        proxied(zookeeper_server.address) as proxy,
        session(proxy.address) as zk,
        session(zookeeper_server.address) as other,
    ):
        fired: list[str] = []
        await zk.exists(f"{top}/a", lambda: fired.append("a"))
        await zk.children(top, lambda: fired.append("top"))
        before = zk.session_id
        await proxy.stop()
        await other.create(f"{top}/a")
        assert fired == [], "nobody could know"
        await proxy.listen()
        await until(lambda: sorted(fired) == ["a", "top"])
        assert zk.session_id == before


async def test_an_expired_session_is_reported_once_and_its_watches_fire(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk, session(hosts) as other:
        events: list[str] = []
        zk.on_session_lost(lambda: events.append("lost"))
        await zk.create(f"{top}/e", ephemeral=True)
        await zk.get(top, lambda: events.append("watch"))
        before = zk.session_id
        await other.end_other(zk.ticket)
        await until(lambda: len(events) >= 2)
        assert sorted(events) == ["lost", "watch"]
        assert zk.session_id not in (0, before)
        assert await zk.exists(f"{top}/e") is None
        await zk.create(f"{top}/e", ephemeral=True)


async def test_who_has_a_ticket_ends_that_session_and_no_other(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk, session(hosts) as other:
        await zk.create(f"{top}/z", ephemeral=True)
        await other.create(f"{top}/o", ephemeral=True)
        ticket = zk.ticket
        assert ticket not in ("", other.ticket)
        await other.end_other(ticket)
        assert await other.exists(f"{top}/z") is None
        assert await other.exists(f"{top}/o") is not None
        await other.end_other(ticket)  # it is over already
        for text in ("", "nonsense", "12-xyz"):
            with pytest.raises(InvalidArgument, match="no ticket"):
                await other.end_other(text)


async def test_unreadable_answer_ends_the_connection_and_not_the_session_object(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """A newer server may have an error code that kazoo does not know; its thread ends then."""
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address) as zk:
        await zk.exists("/")
        before, events = zk.session_id, list[str]()
        zk.on_session_lost(lambda: events.append("lost"))
        proxy.rewrite = lambda packet: packet[:12] + (-199).to_bytes(4, "big", signed=True) + packet[16:]
        with pytest.raises(MetadataUnavailable):
            await zk.set("/zookeeper", b"", 99)
        assert await zk.exists("/") is not None
        assert events == ["lost"]
        assert zk.session_id != before


async def test_thousands_at_once_keep_their_order(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    async with session(hosts) as zk:
        counted = asyncio.gather(*(zk.set(top, b"%d" % number, number) for number in range(3000)))
        assert await counted == list(range(1, 3001))
        assert zk.operations.writes == 3000
        started = [zk.create(f"{top}/a"), zk.exists(f"{top}/a"), zk.delete(f"{top}/a", 0), zk.exists(f"{top}/a")]
        made, there, _, gone = await asyncio.gather(*started)
        assert made == (f"{top}/a", 0)
        assert there is not None
        assert gone is None


async def test_more_than_ten_thousand_waiting_operations_are_refused(zookeeper_server: ZooKeeperServer) -> None:
    async with proxied(zookeeper_server.address) as proxy:
        nobody = proxy.address
    async with session(nobody, operation_timeout_s=0.5) as zk:
        results = await asyncio.gather(*(zk.exists("/") for _ in range(10_001)), return_exceptions=True)
        assert all(isinstance(result, MetadataUnavailable) for result in results)
        assert "the limit" in str(results[-1])
        assert "waiting for" in str(results[0])
        with pytest.raises(MetadataUnavailable, match="waiting for"):  # there is room again
            await zk.exists("/")


async def test_what_was_cancelled_before_it_was_sent_is_not_sent(zookeeper_server: ZooKeeperServer) -> None:
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address) as zk:
        await zk.exists(top)
        await proxy.stop()
        await until(lambda: not zk._connected)
        task = asyncio.create_task(zk.create(f"{top}/never"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await proxy.listen()
        assert await zk.children(top) == []


async def test_a_request_that_servers_do_not_take_is_refused_here(zookeeper_server: ZooKeeperServer) -> None:
    async with session(zookeeper_server.address) as zk:
        for attempt in (
            zk.create("/big", b"x" * 1_000_000),
            zk.set("/big", b"x" * 1_000_000, 0),
            zk.multi([Create(f"/big{number}", b"x" * 100_000) for number in range(10)]),
        ):
            with pytest.raises(ValueTooLarge, match="1000000"):
                await attempt
        assert zk.operations.writes == 0


async def test_nodes_of_their_creator_keep_others_out(zookeeper_server: ZooKeeperServer) -> None:
    hosts = zookeeper_server.address
    top = await folder(hosts)
    with pytest.raises(ConfigError, match="credentials"):
        async with session(hosts, acl="creator"):
            pass
    alice = {"acl": "creator", "auth": [("digest", "alice:secret")]}
    async with session(hosts, **alice) as zk, session(hosts) as stranger, session(hosts, **alice) as peer:
        await zk.create(f"{top}/mine/deep", b"1", parents=True)
        await zk.create(f"{top}/mine/open", b"", world_open=True)
        refused = (
            stranger.get(f"{top}/mine"), stranger.set(f"{top}/mine", b"", 0), stranger.children(f"{top}/mine"),
            stranger.create(f"{top}/mine/x"), stranger.delete(f"{top}/mine/deep", 0),
            stranger.multi([SetValue(f"{top}/mine/deep", b"", 0)]),
        )  # fmt: skip
        for attempt in refused:
            with pytest.raises(AccessRefused, match=f"{top}/mine") as error:
                await attempt
            assert "credentials" in str(error.value)
            assert not error.value.retryable
        assert await stranger.set(f"{top}/mine/open", b"2", 0) == 1
        assert (await peer.get(f"{top}/mine/deep"))[0] == b"1"


async def test_refused_credentials_are_an_error_of_their_own(zookeeper_server: ZooKeeperServer) -> None:
    async with session(zookeeper_server.address, auth=[("nosuch", "alice:secret")], operation_timeout_s=5.0) as zk:
        for _ in range(2):
            with pytest.raises(AccessRefused, match="refuse this session's credentials"):
                await zk.exists("/")


async def test_closing_leaves_no_thread_and_fails_what_waits(zookeeper_server: ZooKeeperServer) -> None:
    before = set(threading.enumerate())  # clusters of other tests have sessions, too

    def threads() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before if thread.name == "zookeeper"]

    async with proxied(zookeeper_server.address) as proxy:
        async with session(proxy.address) as zk:
            await zk.exists("/")
            assert threads()
            await proxy.stop()
            waiting = asyncio.create_task(zk.exists("/"))
            await asyncio.sleep(0)
        with pytest.raises(MetadataUnavailable, match="closed"):
            await waiting
        with pytest.raises(MetadataUnavailable, match="closed"):
            await zk.exists("/")
        assert threads() == []


async def test_a_forked_child_may_not_use_the_session(zookeeper_server: ZooKeeperServer) -> None:
    async with session(zookeeper_server.address) as zk:
        await zk.exists("/")
        zk._pid = os.getppid()  # as a child would find it
        with pytest.raises(ForkedClient, match="connect again"):
            await zk.exists("/")
        zk._pid = os.getpid()


async def test_who_was_refused_is_let_in_when_the_servers_know_better(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_link, "_REFUSED_S", 0.05)
    async with session(zookeeper_server.address, auth=[("nosuch", "alice:secret")], operation_timeout_s=5.0) as zk:
        with pytest.raises(AccessRefused, match="refuse this session's credentials"):
            await zk.exists("/")
        zk._link._auth = []  # as if the servers knew that scheme from now on

        async def let_in() -> bool:
            with contextlib.suppress(AccessRefused):
                return await zk.exists("/") is not None
            return False

        await eventually(let_in, "it is refused for ever")
