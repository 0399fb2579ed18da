"""EtcdKeys where it differs from other stores: lost answers, limits, foreign values, compaction, who may come in."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.conftest import Watch
from tests.support.etcd_kit import new_root, opened, post, proxied
from tests.support.polling import until

from buckram.errors import (
    AccessRefused,
    ConfigError,
    ForkedClient,
    InvalidArgument,
    KeyNotEmpty,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    ValueTooLarge,
    VersionConflict,
)
from buckram.launch.etcd_server import EtcdServer, EtcdSettings, start_etcd
from buckram.metadata.etcd.key_records import coded
from buckram.metadata.uri import ETCD_AUTH, open_store
from buckram.seams import MAX_MULTI_BYTES
from buckram.types import CheckVersion, Create, KeyOp, SetValue


async def test_a_change_whose_answer_was_lost_is_seen_by_the_next_read(etcd_server: EtcdServer) -> None:
    async with proxied(etcd_server.address) as way, opened(way.address) as keys:
        await keys.create("/a", b"")
        way.lose_answer = "kv/txn"
        with pytest.raises(MetadataUnavailable, match="whether it happened is not known"):
            await keys.set("/a", b"1", 0)
        assert (await keys.get("/a")).value == b"1"
        assert await keys.set("/a", b"2", 1) == 2


async def test_a_change_that_a_read_did_not_see_cannot_happen_any_more(etcd_server: EtcdServer) -> None:
    """A request that the network delays arrives after its session has read that it did not happen."""
    async with proxied(etcd_server.address) as way, opened(way.address) as keys:
        await keys.create("/a", b"")
        way.hold = "kv/txn"
        with pytest.raises(MetadataUnavailable):
            await keys.set("/a", b"late", 0)
        assert (await keys.get("/a")).value == b""
        assert b'"succeeded"' not in await way.deliver()
        assert (await keys.get("/a")).value == b""
        assert await keys.set("/a", b"1", 0) == 1


async def test_a_change_that_was_given_up_cannot_happen_after_the_next_one(etcd_server: EtcdServer) -> None:
    async with proxied(etcd_server.address) as way, opened(way.address) as keys:
        await keys.create("/a", b"")
        way.hold = "kv/txn"
        with pytest.raises((TimeoutError, MetadataUnavailable)):
            await asyncio.wait_for(keys.create("/b", b"late"), 0.3)
        await keys.set("/a", b"1", 0)
        assert b'"succeeded"' not in await way.deliver()
        with pytest.raises(NoSuchKey):
            await keys.get("/b")


async def test_a_registration_of_an_ended_session_is_somebody_elses(etcd_server: EtcdServer) -> None:
    """The next session makes a key of the same name and version: nobody changes it in the name of the one before."""
    root = new_root()
    async with opened(etcd_server.address, root, session_ttl_s=60) as keys, opened(etcd_server.address, root) as other:
        await keys.create("/live/a", b"mine", ephemeral=True)
        assert (await keys.get("/live/a")).owned
        await other.session.revoke(keys.session.lease)
        await other.create("/live/a", b"theirs", ephemeral=True)
        for attempt in (keys.set("/live/a", b"", 0), keys.delete("/live/a", 0)):
            with pytest.raises(NoSuchKey):
                await attempt
        assert (await other.get("/live/a")).value == b"theirs"


async def test_a_session_that_is_over_is_noticed_by_a_change(etcd_server: EtcdServer) -> None:
    root, lost = new_root(), Watch()
    async with opened(etcd_server.address, root, session_ttl_s=60) as keys, opened(etcd_server.address, root) as other:
        keys.on_session_lost(lost)
        await keys.create("/a", b"")
        first = keys.session.lease
        await other.session.revoke(first)
        await keys.create("/live/a", b"", ephemeral=True)
        assert keys.session.lease not in (0, first)
        assert lost.times == 1
        assert (await keys.get("/live/a")).owned


async def test_what_a_multi_may_hold_is_said(etcd_server: EtcdServer) -> None:
    async with opened(etcd_server.address) as keys:
        await keys.multi([Create(f"/many/{n:05d}", b"") for n in range(4000)])
        checks: list[KeyOp] = [CheckVersion(f"/many/{n:05d}", 0) for n in range(100)]
        await keys.multi([*checks, Create("/one", b"")])
        await keys.multi([SetValue(f"/many/{n:05d}", b"1", 0) for n in range(100)])
        over: list[KeyOp] = [SetValue(f"/many/{n:05d}", b"2", 0) for n in range(100, 400)]
        with pytest.raises(InvalidArgument, match=r"multi of 300 operations.*limited to 128.*--max-txn-ops.*do less"):
            await keys.multi(over)
        assert (await keys.get("/many/00200")).version == 0


async def test_a_multi_that_is_taken_together_happens_on_nothing_newer(etcd_server: EtcdServer) -> None:
    """Two of them with one key in common: the conditions of absent keys are ranges there, which hold all the same."""
    root = new_root()
    async with opened(etcd_server.address, root) as keys, opened(etcd_server.address, root) as other:
        jobs = [
            one.multi([Create(f"/m/{n:04d}", b"%d" % start) for n in range(start, start + 300)])
            for one, start in ((keys, 0), (other, 299))
        ]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert len(await keys.children("/m")) == 300


@pytest.mark.usefixtures("etcd_server")  # leaves it out where there is no etcd
async def test_a_server_that_takes_less_is_named(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "etcd", sync=False, options=("--max-request-bytes=65536",)) as server:
        async with opened(server.address) as keys:
            await keys.create("/a", b"x" * 50_000)
            with pytest.raises(ValueTooLarge, match="--max-request-bytes"):
                await keys.create("/b", b"x" * 500_000)
            await keys.create("/b", b"small")


async def test_the_largest_multi_passes(etcd_server: EtcdServer) -> None:
    async with opened(etcd_server.address) as keys:
        half = MAX_MULTI_BYTES // 2 - 2
        await keys.multi([Create("/a", b"x" * half), Create("/b", b"y" * half)])
        assert len((await keys.get("/b")).value) == half


async def test_foreign_values_are_said(etcd_server: EtcdServer) -> None:
    async with opened(etcd_server.address) as keys:
        for value in (b"", b"foreign", b"-1 x", b" x"):
            await asyncio.to_thread(
                post, etcd_server.address, "kv/put", {"key": coded(keys.places.of("/f")), "value": coded(value)}
            )
            with pytest.raises(MalformedRecord, match=r"restore it from a backup"):
                await keys.get("/f")


async def test_watches_go_on_after_a_lost_connection_and_miss_nothing(etcd_server: EtcdServer) -> None:
    root = new_root()
    async with (
        proxied(etcd_server.address) as way, opened(way.address, root) as keys,
        opened(etcd_server.address, root) as other,
    ):  # fmt: skip
        await other.create("/a", b"")
        watch, folder = Watch(), Watch()
        await keys.get("/a", watch)
        await keys.children("/", watch=folder)
        await until(lambda: "/v3/watch" in way.paths)
        way.silent = True
        await other.set("/a", b"1", 0)
        await other.create("/b", b"")
        assert (watch.times, folder.times) == (0, 0)
        way.silent = False
        way.cut()
        await watch.fired()
        await folder.fired()


async def test_a_compacted_history_leads_to_reading_again(etcd_server: EtcdServer) -> None:
    root = new_root()
    async with (
        proxied(etcd_server.address) as way, opened(way.address, root) as keys,
        opened(etcd_server.address, root) as other,
    ):  # fmt: skip
        await other.create("/a", b"")
        watch, quiet = Watch(), Watch()
        await keys.get("/a", watch)
        with pytest.raises(NoSuchKey):
            await keys.get("/never", quiet)
        await until(lambda: "/v3/watch" in way.paths)
        way.silent = True
        for n in range(5):
            await other.set("/a", b"%d" % n, n)
        revision = (await other.client.call("kv/range", {"key": coded("/")}, "", repeat=True))["header"]["revision"]
        await asyncio.to_thread(post, etcd_server.address, "kv/compaction", {"revision": revision})
        way.silent = False
        way.cut()
        await watch.fired()
        await quiet.fired()
        again = Watch()
        assert (await keys.get("/a", again)).value == b"4"
        await other.set("/a", b"5", 5)
        await again.fired()


async def test_a_cancelled_read_leaves_no_watch(etcd_server: EtcdServer) -> None:
    async with opened(etcd_server.address) as keys:
        await keys.create("/a", b"")
        watch, after = Watch(), Watch()
        reading = asyncio.create_task(keys.get("/a", watch))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await keys.get("/a", after)
        await keys.set("/a", b"", 0)
        await after.fired()
        assert watch.times == 0


async def test_nobody_there(unused_tcp_port: int) -> None:
    began = time.monotonic()
    async with opened(f"127.0.0.1:{unused_tcp_port}", timeout_s=0.5) as keys:
        for attempt in (keys.get("/a"), keys.create("/a", b"")):
            with pytest.raises(MetadataUnavailable, match=f"127.0.0.1:{unused_tcp_port}.*gave up after 0.5 s"):
                await attempt
    assert time.monotonic() - began < 5


async def test_somebody_else_there() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with opened(f"127.0.0.1:{port}", timeout_s=0.5) as keys:
            with pytest.raises(MetadataUnavailable, match="is not the beginning of an HTTP answer"):
                await keys.get("/a")


@pytest.mark.usefixtures("etcd_server")  # leaves it out where there is no etcd
async def test_a_server_without_the_gateway_is_named(tmp_path: Path) -> None:
    settings = EtcdSettings(sync=False, options=("--enable-grpc-gateway=false",))
    with EtcdServer(tmp_path / "etcd", settings) as server:
        server.start()
        async with opened(server.address, timeout_s=5) as keys:
            with pytest.raises(ConfigError, match="--enable-grpc-gateway"):
                await keys.get("/a")


async def test_a_forked_child_may_not_use_the_store(etcd_server: EtcdServer) -> None:
    async with opened(etcd_server.address) as keys:
        await keys.create("/a", b"")
        keys.client._pid = os.getppid()  # as a child would find it
        for attempt in (keys.get("/a"), keys.multi([]), keys.sync()):
            with pytest.raises(ForkedClient, match="connect again"):
                await attempt
        await keys.close()
        keys.client._pid = os.getpid()
        assert (await keys.get("/a")).value == b""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, etcd_server: EtcdServer) -> Iterator[EtcdServer]:
    """A server that wants to know who asks: root has the password "r", ann has "p/w" and the keys below /ann."""
    with start_etcd(tmp_path_factory.mktemp("guarded"), sync=False) as server:

        def ask(path: str, **body: object) -> None:
            post(server.address, path, body)

        ask("auth/user/add", name="root", password="r")
        ask("auth/user/grant", user="root", role="root")
        ask("auth/role/add", name="ann")
        permission = {"permType": 2, "key": coded("/ann/"), "range_end": coded("/ann0")}
        ask("auth/role/grant", name="ann", perm=permission)
        ask("auth/user/add", name="ann", password="p/w")
        ask("auth/user/grant", user="ann", role="ann")
        ask("auth/enable")
        yield server


async def test_user_and_password(guarded: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(f"etcd://ann:p%2Fw@{guarded.address}/ann")
    assert store.uri == f"etcd://ann@{guarded.address}/ann", "passwords are not shown"
    instance = await store.initialise()
    watch = Watch()
    await store.history(watch)
    token = store.keys.client._token  # type: ignore[attr-defined]
    # As after a restart of the servers, which forget the tokens that they gave.
    store.keys.client._token = "stale.1"  # type: ignore[attr-defined]
    assert await store.instance_id() == instance
    assert token != "stale.1"
    await store.close()
    monkeypatch.setenv(ETCD_AUTH, "ann:p/w")
    store = await open_store(f"etcd://{guarded.address}/ann")
    assert await store.instance_id() == instance
    await store.close()


@pytest.mark.parametrize(("who", "said"), [("ann:wrong@", "authentication failed"), ("", "needs a user")])
async def test_who_has_no_password_is_kept_out(guarded: EtcdServer, who: str, said: str) -> None:
    store = await open_store(f"etcd://{who}{guarded.address}/ann")
    began = time.monotonic()
    for attempt in (store.initialise, store.instance_id):
        with pytest.raises(AccessRefused, match=said):
            await attempt()
    assert time.monotonic() - began < 5
    await store.close()


async def test_keys_of_others_are_refused(guarded: EtcdServer) -> None:
    store = await open_store(f"etcd://ann:p%2Fw@{guarded.address}/bob")
    with pytest.raises(AccessRefused, match="permission denied"):
        await store.initialise()
    await store.close()


async def test_a_version_that_was_read_long_ago_is_found_out(etcd_server: EtcdServer) -> None:
    """Nothing is remembered of the key, so it has to be read first."""
    root = new_root()
    async with opened(etcd_server.address, root) as keys, opened(etcd_server.address, root) as other:
        await keys.create("/a", b"")
        assert await other.set("/a", b"1", 0) == 1
        with pytest.raises(VersionConflict):
            await other.set("/a", b"1", 0)
        assert await keys.children("/") == ["a"]


async def test_a_child_that_appears_keeps_its_parent(etcd_server: EtcdServer) -> None:
    """The deletion is held back on its way until the child is there."""
    root = new_root()
    async with (
        proxied(etcd_server.address) as way, opened(way.address, root) as keys,
        opened(etcd_server.address, root) as other,
    ):  # fmt: skip
        await keys.create("/a", b"")
        way.hold = "kv/txn"
        with pytest.raises(MetadataUnavailable):
            await keys.delete("/a", 0)
        await other.create("/a/b", b"")
        assert b'"succeeded"' not in await way.deliver()
        assert await other.children("/") == ["a"]
        with pytest.raises(KeyNotEmpty):
            await keys.delete("/a", 0)


async def test_a_watch_does_not_fire_for_what_was_read_with_it(etcd_server: EtcdServer) -> None:
    """Events of the time before the read come over a stream that is late."""
    root = new_root()
    async with (
        proxied(etcd_server.address) as way, opened(way.address, root) as keys,
        opened(etcd_server.address, root) as other,
    ):  # fmt: skip
        await other.create("/a", b"")
        early, watch, last = Watch(), Watch(), Watch()
        await keys.get("/a", early)
        await until(lambda: "/v3/watch" in way.paths)
        way.on_time.clear()
        await other.set("/a", b"1", 0)
        assert (await keys.get("/a", watch)).value == b"1"
        way.on_time.set()
        await early.fired()
        await keys.get("/a", last)
        assert watch.times == 0
        await other.set("/a", b"2", 1)
        await last.fired()
        assert watch.times == 1


@pytest.mark.usefixtures("etcd_server")  # leaves it out where there is no etcd
async def test_servers_that_were_put_back_are_noticed_by_watches(tmp_path: Path) -> None:
    """Revisions begin anew there, so what a stream waits for would not come for long."""
    with start_etcd(tmp_path / "a", sync=False) as first:
        async with opened(first.address, "/r") as keys:
            async with opened(first.address, "/r") as other:  # not itself: it would notice the loss of its session
                for n in range(20):
                    await other.create(f"/a{n}", b"")
            watch = Watch()
            await keys.get("/a0", watch)
            folder = keys._watches._folders["/"]
            await until(lambda: folder.connected)
            await asyncio.to_thread(first.stop)
            with start_etcd(tmp_path / "b", sync=False, port=first.port):
                await watch.fired()
                with pytest.raises(NoSuchKey):
                    await keys.get("/a0")
                again = Watch()
                with pytest.raises(NoSuchKey):
                    await keys.get("/a0", again)
                await keys.create("/a0", b"")
                await again.fired()


async def test_foreign_keys_do_not_end_watches(etcd_server: EtcdServer) -> None:
    root = new_root()
    async with opened(etcd_server.address, root) as keys, opened(etcd_server.address, root) as other:
        await other.create("/f/a", b"")
        watch = Watch()
        await keys.get("/f/a", watch)
        await until(lambda: keys._watches._folders["/f"].connected)
        foreign = {"key": coded(f"{root}/002/f/too/deep"), "value": coded("x")}
        await asyncio.to_thread(post, etcd_server.address, "kv/put", foreign)
        await other.set("/f/a", b"1", 0)
        await watch.fired()
