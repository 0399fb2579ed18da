"""KazooSession among several servers: one that is silent, off or out of reach never keeps a session from the others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from tests.support.polling import until
from tests.support.zk_kit import folder, proxied, session

from buckram.errors import InvalidArgument, MetadataUnavailable, NoSuchKey
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.metadata.zookeeper.kazoo_handler import OneThreadHandler


@contextlib.contextmanager
def blackhole() -> Iterator[str]:
    """An address that neither takes nor refuses connections: its machine is off."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # its queue is full then
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_silent_server_is_left_although_requests_go_on(zookeeper_server: ZooKeeperServer) -> None:
    """Requests count as signs of life of the client only; kazoo alone would stay for as long as there are some."""
    async with (
        proxied(zookeeper_server.address) as first, proxied(zookeeper_server.address) as second,
        session(f"{first.address},{second.address}", session_timeout_s=3.0, operation_timeout_s=1.0) as zk,
    ):  # fmt: skip
        await zk.exists("/")
        before = zk.session_id
        silent = first if first.requests else second
        silent.silent = True
        began, answers = time.monotonic(), list[bool]()

        async def ask() -> None:
            with contextlib.suppress(MetadataUnavailable):
                await zk.exists("/zookeeper")
                answers.append(True)

        asking: list[asyncio.Task[None]] = []
        while not answers and time.monotonic() < began + 8:
            asking.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.1)
        await asyncio.gather(*asking)
        assert answers, "it never left the silent server"
        assert time.monotonic() - began < 5
        assert zk.session_id == before, "it came in time"


async def test_a_server_that_is_off_does_not_use_up_the_time_for_the_others(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.shuffle", lambda hosts: hosts.sort(key=lambda host: host[2] == zookeeper_server.port))
    with blackhole() as off:
        began = time.monotonic()
        async with session(f"{zookeeper_server.address},{off}", session_timeout_s=6.0) as zk:
            await zk.exists("/")
            assert time.monotonic() - began < 4.5


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), UnicodeError("label too long")])
async def test_a_thread_that_ends_before_the_first_connection_is_replaced(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    real, failed = socket.getaddrinfo, list[str]()

    def once(host: Any, *others: Any, **options: Any) -> Any:
        if not failed:
            failed.append(str(host))
            raise failure
        return real(host, *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    async with session(zookeeper_server.address, operation_timeout_s=5.0) as zk:
        assert await zk.exists("/") is not None
        assert failed


async def test_no_file_descriptors_when_the_connection_is_made_anew(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address, operation_timeout_s=5.0) as zk:
        await zk.exists("/")
        real, failed = socket.socketpair, list[int]()

        def twice() -> Any:
            if len(failed) < 2:
                failed.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return real()

        monkeypatch.setattr(socket, "socketpair", twice)
        proxy.rewrite = lambda packet: packet[:12] + (-199).to_bytes(4, "big", signed=True) + packet[16:]
        with pytest.raises(MetadataUnavailable):
            await zk.set("/zookeeper", b"", 99)
        assert await zk.exists("/") is not None
        assert len(failed) == 2


async def test_what_a_watcher_raises_stops_nothing(zookeeper_server: ZooKeeperServer) -> None:
    """Neither the answers that came together with the change nor the other watchers wait for ever."""
    top = await folder(zookeeper_server.address)
    told, said = list[str](), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(str(context["exception"])))

    def bad() -> None:
        told.append("bad")
        raise RuntimeError("a watcher's own mistake")

    async with proxied(zookeeper_server.address) as proxy, session(proxy.address, operation_timeout_s=3.0) as zk:
        zk.on_session_lost(bad)
        for watch in (bad, lambda: told.append("good")):
            await zk.exists(f"{top}/a", watch)
        await zk.create(f"{top}/a")
        await zk.exists(top)
        assert told == ["bad", "good"]
        for watch in (bad, lambda: told.append("again")):
            await zk.get(f"{top}/a", watch)
        proxy.rewrite = lambda packet: packet[:12] + (-199).to_bytes(4, "big", signed=True) + packet[16:]
        with pytest.raises(MetadataUnavailable):
            await zk.set(f"{top}/a", b"", 99)
        assert await zk.exists(top) is not None
        await until(lambda: told == ["bad", "good", "bad", "bad", "again"])
    assert set(said) == {"a watcher's own mistake"}


async def test_a_version_that_no_node_can_have_is_refused_here(
    zookeeper_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo's thread would end on it, and the session with its ephemeral nodes."""
    top = await folder(zookeeper_server.address)
    async with session(zookeeper_server.address) as zk:
        await zk.create(f"{top}/e", ephemeral=True)
        before = zk.session_id
        for attempt in (zk.set(top, b"", 2**31), zk.delete(top, 2**31), zk.delete(top, -2)):
            with pytest.raises(InvalidArgument, match=f"{top}.*version"):
                await attempt
        assert await zk.exists(f"{top}/e") is not None
        assert zk.session_id == before
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_session_begins_with_a_sync(zookeeper_server: ZooKeeperServer) -> None:
    """A server may lag behind: what somebody wrote before this process began must be there for it."""
    async with session(zookeeper_server.address) as zk:
        await zk.exists("/")
        assert zk.operations.syncs == 1


async def test_closing_while_no_server_is_there_says_nothing(
    zookeeper_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, connect = 0, OneThreadHandler.create_connection

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        return connect(*args, **options)

    monkeypatch.setattr(OneThreadHandler, "create_connection", counted)
    async with proxied(zookeeper_server.address) as proxy:
        nobody = proxy.address
    async with session(nobody, operation_timeout_s=0.5) as zk:
        with pytest.raises(MetadataUnavailable):
            await zk.exists("/")
        before = made
        await until(lambda: made >= before + 2)  # it goes on trying
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_watch_that_was_set_before_the_loop_heard_of_the_next_connection(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Its server is the next one, or a later one will not ask for it any more: it fires in both cases."""
    top = await folder(zookeeper_server.address)
    async with session(zookeeper_server.address) as zk:
        await zk.exists("/")
        client, fired = zk._link.client, list[str]()

        def meanwhile() -> None:
            """The loop is behind: it sends on the next connection before it hears of it."""
            lose_connection_in_the_loop(client)
            wait_in_the_loop(lambda: client.connected)

        syncs = zk.operations.syncs
        asyncio.get_running_loop().call_soon(meanwhile)
        assert await zk.exists(f"{top}/a", lambda: fired.append("a")) is None
        assert zk.operations.syncs == syncs + 1, "it heard of the next connection"
        await zk.create(f"{top}/a")
        await until(lambda: fired == ["a"])


async def test_a_change_between_an_answer_and_the_loops_next_step(zookeeper_server: ZooKeeperServer) -> None:
    """kazoo's thread may have seen the answer and the change after it before the loop goes on from its request."""
    top = await folder(zookeeper_server.address)
    async with session(zookeeper_server.address) as zk:
        await zk.create(f"{top}/a", b"0")
        client, fired = zk._link.client, list[str]()
        other = KazooClient(zookeeper_server.address)
        other.start()
        ask = client.get_async

        def ask_and_fall_behind(path: str, watch: Any) -> Any:
            result = ask(path, watch)
            wait_in_the_loop(lambda: bool(result.ready() and client._data_watchers[path]))
            other.set(path, b"1")
            wait_in_the_loop(lambda: not client._data_watchers[path])
            return result

        client.get_async = ask_and_fall_behind
        try:
            value, stat = await zk.get(f"{top}/a", lambda: fired.append("a"))
        finally:
            other.stop()
            other.close()
        assert (value, stat.version) == (b"0", 0)
        await until(lambda: fired == ["a"])


def wait_in_the_loop(condition: Callable[[], bool]) -> None:
    """Nothing else happens on the loop meanwhile."""
    limit = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < limit, "it did not happen within 5 s"
        time.sleep(0.001)


def lose_connection_in_the_loop(client: Any) -> None:
    """kazoo's thread knows then, and the loop does not."""
    client._connection._socket._sock.shutdown(socket.SHUT_RDWR)
    wait_in_the_loop(lambda: not client.connected)


async def test_requests_sent_before_the_loss_of_a_connection_is_noticed(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """It would wait in kazoo, and happen after its caller was told that it failed."""
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address, operation_timeout_s=0.4) as zk:
        await zk.exists("/")
        assert proxy._listener is not None
        proxy._listener.close()
        asyncio.get_running_loop().call_soon(lose_connection_in_the_loop, zk._link.client)
        with pytest.raises(MetadataUnavailable):
            await zk.create(f"{top}/never")
        await proxy.stop()
        await proxy.listen()
        await until(lambda: zk._connected)
        assert await zk.children(top) == []


async def test_what_is_bound_to_a_session_is_not_touched_by_the_next_one(zookeeper_server: ZooKeeperServer) -> None:
    top = await folder(zookeeper_server.address)
    async with proxied(zookeeper_server.address) as proxy, session(proxy.address) as zk:
        await zk.create(f"{top}/e", ephemeral=True)
        mine = zk.session_id
        assert await zk.set(f"{top}/e", b"1", 0, session=mine) == 1
        proxy.rewrite = lambda packet: packet[:12] + (-199).to_bytes(4, "big", signed=True) + packet[16:]
        with pytest.raises(MetadataUnavailable):
            await zk.set(top, b"", 99)
        attempts = [zk.delete(f"{top}/e", 1, session=mine), zk.set(f"{top}/e", b"2", 1, session=mine)]
        for answer in await asyncio.gather(*attempts, return_exceptions=True):
            assert isinstance(answer, NoSuchKey)
        assert zk.session_id != mine
        assert (await zk.get(f"{top}/e"))[0] == b"1", "the old session lives on for a while"
        await zk.delete(f"{top}/e", 1)
