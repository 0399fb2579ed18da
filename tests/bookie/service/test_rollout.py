"""A cluster in use is made secure, step by step as docs/explanation/security.md says; and what must not stand beside
what else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.bookie_kit import CONFIG, STORE
from tests.support.polling import until
from tests.support.secure_kit import Files

from buckram import connect
from buckram.bookie.process import Bookie
from buckram.bookie.registration import check_others
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.cluster import Client
from buckram.config import AuthConfig, ClientConfig, NetConfig, TlsConfig
from buckram.core.security.acl import LOGIN_PROPERTY
from buckram.errors import BuckramError, ConfigError
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.types import BookieInfo

NO_TLS, NO_AUTH = TlsConfig(), AuthConfig()
QUIET = ClientConfig(local_read_bytes=0)


class Cluster:
    """Three bookies, each of which can be started anew with other settings at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri = folder, f"sqlite://{folder}/metadata.db"
        self.store: TreeStore
        self.running: dict[int, tuple[Bookie, LocalDisk]] = {}
        self.ports: dict[int, int] = {}

    async def start(self, number: int, tls: TlsConfig, auth: AuthConfig) -> None:
        place = self.folder / f"bookie-{number}"
        os.makedirs(place, exist_ok=True)
        disk = LocalDisk(str(place), "inline")
        config = replace(CONFIG, admission="known", port=self.ports.get(number, 0), bookie_id=f"bookie-{number}")
        door = ConnectionGate(tls, auth) if tls.mode != "off" or auth.logins else None
        made = Bookie(
            production_runtime(),
            disk,
            self.store,
            config,
            STORE,
            NetConfig(),
            door=door,
            open_store=lambda: open_store(self.uri),
            mixed_logins=auth.mixed == "allowed",
        )
        try:
            info = await made.start()
        except BaseException:
            disk.close()
            raise
        assert info.address is not None
        self.ports[number] = info.address.port
        self.running[number] = made, disk

    async def stop(self, number: int) -> None:
        made, disk = self.running.pop(number)
        await made.stop()
        disk.close()

    async def restart_all(self, tls: TlsConfig, auth: AuthConfig = NO_AUTH) -> None:
        """One after the other; the next one once the one before is registered again."""
        for number in list(self.running):
            await self.stop(number)
            await self.start(number, tls, auth)

    @property
    def service(self) -> str:
        return f"buckram+tls://{','.join(f'127.0.0.1:{port}' for port in self.ports.values())}/"


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    made = Cluster(tmp_path)
    made.store = await open_store(made.uri)
    await made.store.initialise()
    yield made
    for number in list(made.running):
        await made.stop(number)
    await made.store.close()


class Writing:
    """Appends numbers to a stream without a pause, and knows which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.next = 0

    @asynccontextmanager
    async def through(self, client: Client) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(client))
        before = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) > before or task.done(), "nothing is written", 30)
        try:
            yield
            after = len(self.acknowledged)
            await until(lambda: len(self.acknowledged) > after + 5 or task.done(), "writing does not go on", 30)
        finally:
            failed = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not failed

    async def _run(self, client: Client) -> None:
        while True:
            try:
                async with client.namespace("shop").writer("orders") as writer:
                    while True:
                        number, self.next = self.next, self.next + 1
                        await writer.append(b"%d" % number)
                        self.acknowledged.append(number)
            except BuckramError as error:
                if not error.retryable and not _is_moving(error):
                    raise


def _is_moving(error: BuckramError) -> bool:
    """What a writer is told while its bookies are started anew."""
    return type(error).__name__ in ("WriterLost", "WriteFailed", "NotEnoughBookies", "LedgerFenced", "HandleClosed")


async def test_a_live_cluster_is_made_secure_and_nothing_is_lost(cluster: Cluster) -> None:
    files = Files(cluster.folder / "ca")
    optional = replace(files.bookie, mode="optional")
    logins = AuthConfig(logins="token", mixed="allowed")
    writing = Writing()
    for number in (1, 2, 3):
        await cluster.start(number, NO_TLS, NO_AUTH)
    async with connect(cluster.uri, tls=NO_TLS, config=QUIET) as client:
        await client.namespaces.create("shop", ensemble="3/3/2")
        async with writing.through(client):
            await cluster.restart_all(optional)  # 1
    async with connect(cluster.uri, tls=files.client, config=QUIET) as client, writing.through(client):  # 2
        await cluster.restart_all(files.bookie)  # 3
    security = SecurityStore(cluster.store)
    _, alice = await security.create_token("alice", (), 1.0, 4e9)
    known = connect(cluster.uri, tls=files.client, token=alice, config=QUIET)  # 4
    async with known as client, writing.through(client):
        await cluster.restart_all(files.bookie, logins)  # 5
        with pytest.raises(BuckramError):  # who has no token is out
            async with connect(cluster.service, tls=files.client, config=QUIET):
                pass
    served = connect(cluster.service, tls=files.client, token=alice, config=QUIET)  # 6
    async with served as client, writing.through(client):
        allowed = ("read", "append", "create")
        await security.change_acl(lambda acl: acl.granting("token:alice", "shop", allowed))
        await cluster.restart_all(files.bookie, replace(logins, authorisation="on", mixed="refused"))  # 7
    async with connect(cluster.service, tls=files.client, token=alice, config=QUIET) as client:
        async with client.namespace("shop").read("orders") as reader:
            found = [int(record.value or b"-1") async for record in reader]
        with pytest.raises(BuckramError):
            await client.namespace("other").create("mine")
    assert len(writing.acknowledged) > 50
    assert [number for number in writing.acknowledged if found.count(number) != 1] == []


async def test_a_bookie_that_asks_does_not_stand_beside_one_that_does_not(cluster: Cluster) -> None:
    files = Files(cluster.folder / "ca")
    logins = AuthConfig(logins="token")
    await cluster.start(1, NO_TLS, NO_AUTH)
    with pytest.raises(ConfigError, match=r"asks for a login .*bookie-1.*mixed = 'allowed'"):
        await cluster.start(2, files.bookie, logins)
    await cluster.start(2, files.bookie, replace(logins, mixed="allowed"))
    with pytest.raises(ConfigError, match=r"bookie-3 asks for no login .*bookie-2"):
        await cluster.start(3, NO_TLS, NO_AUTH)
    await cluster.stop(1)
    await cluster.start(3, files.bookie, logins)
    assert {"bookie-2", "bookie-3"} == set((await cluster.store.bookies()).writable)


def test_a_bookie_is_not_compared_with_what_it_was_before() -> None:
    asking = {LOGIN_PROPERTY: "token"}
    check_others("a", asking, [BookieInfo("a", None, {}), BookieInfo("b", None, asking)])
    check_others("a", {}, [BookieInfo("b", None, {})])
    with pytest.raises(ConfigError, match="b, c, d and 2 more"):
        check_others("a", asking, [BookieInfo(name, None, {}) for name in "bcdef"])
