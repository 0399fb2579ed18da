"""States of the metadata store and of logins, each on a cluster of its own, seen at every door under one name."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from tests.health.kit import Doors, doors
from tests.health.telling import OWN
from tests.support.clock import DAY, SettableClock
from tests.support.polling import eventually
from tests.support.secure_kit import Files, guarded

from buckram.cluster import connect
from buckram.config import AuthConfig, TlsConfig
from buckram.core.cluster.believed_time import UNSTEADY_AFTER
from buckram.core.cluster.store_history import GONE
from buckram.core.health.states import removes
from buckram.errors import ConfigError
from buckram.health import gathering
from buckram.launch.etcd_server import EtcdServer, start_etcd
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.metadata.maintain.acceptance import accept, suspects
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.tree.key_operations import overwrite
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.testing import Cluster, cluster
from buckram.types import BookieAddress, BookieInfo

QUIET = ("auditor-missing",)
"""Nobody audits these clusters."""


@asynccontextmanager
async def opened(running: Cluster) -> AsyncIterator[tuple[Doors, TreeStore]]:
    """The doors of a cluster, and a session of its own on its store."""
    store = await open_store(running.uri)
    assert isinstance(store, TreeStore)
    try:
        async with running.client() as client, doors(running.uri, client) as found:
            yield found, store
    finally:
        await store.close()


async def test_restored_metadata_that_nobody_has_accepted() -> None:
    """Every running bookie loses its registration then, and nobody is told to take one of them out."""
    async with cluster(bookies=2, metadata="sqlite") as running, opened(running) as (shown, store):
        history = await store.history()
        await set_history(store, replace(history, accepted=False))

        async def doubted() -> bool:
            return len(await suspects(store)) == 2

        await eventually(doubted, "the bookies do not doubt it")
        found = await shown.expect("restore-not-accepted", running.uri, also=QUIET)
        assert "`buckram cluster accept-restore`" in found["do"]
        for seen in await shown.look():
            assert "bookie-down" not in seen.found, seen.door
            assert not any(removes(row["do"]) for rows in seen.found.values() for row in rows if row), seen
        await accept(store, random.Random(1))
        await shown.gone("restore-not-accepted")


async def test_a_bookie_that_is_younger_than_the_restored_metadata() -> None:
    """Its cookie went with the restore, and nobody is told that it is no member."""
    async with cluster(bookies=2, metadata="sqlite") as running, opened(running) as (shown, store):
        ghosts = await open_store(running.uri)
        try:
            await ghosts.register(BookieInfo("young", BookieAddress("127.0.0.1", 1), OWN), readonly=True)
            await set_history(store, replace(await store.history(), accepted=False))
            also = (*QUIET, "restore-not-accepted", "bookie-silent")
            found = await shown.expect("bookie-returns", "young", also=also)
            assert found["do"].startswith("let it run")
        finally:
            await ghosts.close()


async def test_metadata_that_were_moved() -> None:
    async with cluster(bookies=1, metadata="sqlite") as running, opened(running) as (shown, store):
        history = await store.history()
        await set_history(store, replace(history, accepted=False, moved=f"{GONE} zk://other/ledgers"))
        found = await shown.expect("metadata-moved", running.uri, also=QUIET)
        assert "zk://other/ledgers" in found["why"]


async def test_a_cluster_without_an_instance_id() -> None:
    """Bookies that know one do not start on it again."""
    async with cluster(bookies=1, metadata="sqlite") as running, opened(running) as (shown, store):
        key = store.layout.instance_id
        await overwrite(store.keys, key, b"")
        await shown.expect("no-instance-id", key, also=(*QUIET, "wrong-cookie", "bookie-silent"))


async def test_metadata_that_refuse_these_credentials(zookeeper_server: ZooKeeperServer) -> None:
    """One record only, or everything that a look begins with."""
    root = f"/health-{random.randrange(10**9)}"
    uri = f"zk://{zookeeper_server.address}{root}"
    async with cluster(bookies=1, metadata=uri) as running, running.client() as client, doors(uri, client) as shown:
        cookie = f"{root}/cookies/bookie-0"
        await asyncio.to_thread(_lock_out, zookeeper_server, cookie)
        assert "access list" in (await shown.expect("metadata-refused", cookie, also=QUIET))["why"]
        await asyncio.to_thread(_lock_out, zookeeper_server, f"{root}/INSTANCEID")
        await shown.expect("metadata-refused", running.uri, also=QUIET)


def _lock_out(server: ZooKeeperServer, node: str) -> None:
    """Let nobody use a node but somebody whom this test does not know."""
    client = KazooClient(server.address)
    client.start(30)
    try:
        client.set_acls(node, [make_digest_acl("somebody", "secret", all=True)])
    finally:
        client.stop()
        client.close()


async def test_a_store_that_went_back() -> None:
    async with cluster(bookies=1, metadata="sqlite") as running, opened(running) as (shown, _):
        bookie = running._nodes[0].bookie
        assert bookie is not None
        assert bookie.witness is not None
        assert bookie.witness.contradicted(10**9, b"x" * 16)
        found = await shown.expect("metadata-went-back", "bookie-0", also=QUIET)
        assert "ledger 1000000000" in found["why"]


async def test_clocks_that_most_bookies_doubt() -> None:
    """They were set again and again, and are right now."""
    clock = SettableClock()
    async with cluster(bookies=3, metadata="sqlite", clock=clock) as running, opened(running) as (shown, _):
        for ahead in (DAY, 0) * UNSTEADY_AFTER:
            clock.ahead = ahead
            for node in running._nodes:
                assert node.bookie is not None
                node.bookie.time.moment()
        found = await shown.expect("clock-jump", "cluster", also=QUIET)
        assert "3 bookies doubt the time" in found["why"]
        assert "`buckram cluster accept-time`" in found["do"]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server of these tests' own: they end it, and fill it."""
    try:
        server = start_etcd(tmp_path_factory.mktemp("etcd"), sync=False)
    except ConfigError as error:
        pytest.skip(f"needs a real etcd: {error}")
    with server:
        yield server


async def test_a_store_that_cannot_be_reached(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that begin then, and servers that were there before, say the same."""
    monkeypatch.setattr(gathering, "METADATA_S", 1.5)
    async with _on_etcd(etcd) as (running, shown):
        etcd.kill()
        try:
            found = await shown.expect("metadata-unreachable", running.uri)
            assert found["why"]
        finally:
            etcd.restart()
        await shown.gone("metadata-unreachable")


async def test_a_store_that_takes_no_changes(etcd: EtcdServer) -> None:
    """An etcd whose quota is used up answers reads, and refuses every change."""
    async with _on_etcd(etcd) as (running, shown):
        await asyncio.to_thread(_alarm, etcd, "ACTIVATE")
        try:
            found = await shown.expect("metadata-read-only", running.uri, also=QUIET)
            assert "no change" in found["why"]
        finally:
            await asyncio.to_thread(_alarm, etcd, "DEACTIVATE")


@asynccontextmanager
async def _on_etcd(server: EtcdServer) -> AsyncIterator[tuple[Cluster, Doors]]:
    uri = f"etcd://{server.address}/health-{random.randrange(10**9)}"
    async with cluster(bookies=1, metadata=uri) as running, running.client() as client, doors(uri, client) as shown:
        yield running, shown


def _alarm(server: EtcdServer, action: str) -> None:
    body = json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}).encode()
    request = urllib.request.Request(f"http://{server.address}/v3/maintenance/alarm", body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


async def test_a_token_that_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(tmp_path, auth=AuthConfig(logins="token", unix_admin=0)) as bookie:
        good = await bookie.token("operator", "admin")
        old = await bookie.token("janitor", lasts_s=-10.0)
        uri = f"sqlite://{tmp_path}/metadata.db"
        async with connect(uri, token=old) as late:
            await late.services.clocks.ask()
        monkeypatch.setenv("BUCKRAM_TOKEN", good)
        async with connect(uri, token=good) as client, doors(uri, client) as shown:
            assert bookie.bookie.info is not None
            found = await shown.expect("token-expired", bookie.bookie.info.bookie_id, also=QUIET)
            assert "`buckram token create --subject janitor`" in found["do"]


async def test_a_certificate_that_ends_in_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path / "ca")
    short = files.authority.bookie("bookie", ["127.0.0.1", "localhost"], days=7)
    tls = TlsConfig("required", files.bookie.ca, str(short.certificate), str(short.key))
    uri = f"sqlite://{tmp_path}/metadata.db"
    async with guarded(tmp_path, tls) as bookie:
        monkeypatch.setenv("BUCKRAM_CA", files.bookie.ca)
        async with connect(uri, tls=files.client) as client, doors(uri, client) as shown:
            assert bookie.bookie.info is not None
            name = bookie.bookie.info.bookie_id
            found = await shown.expect("certificate-ends", name, also=(*QUIET, "open-admission"))
            assert f"`buckram certificate renew {short.certificate}`" in found["do"]
            files.authority.bookie("bookie", ["127.0.0.1", "localhost"])
            await shown.gone("certificate-ends")
