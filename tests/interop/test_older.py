"""An older release line: its client on our bookies, and clusters of three generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from javakit.programs import OLDER
from tests.interop.apache import Java, outcome
from tests.interop.catalogue import Row, rows
from tests.interop.clusters import PASSWORD, Cluster, payload
from tests.interop.words import each_wire

from buckram.cluster import connect
from buckram.config import ClientConfig
from buckram.errors import LedgerClosed, LedgerFenced

pytestmark = pytest.mark.share(5)

CHOSEN = {
    "LedgerChecks": {
        "addAndReadBack", "asyncAddsAreAcknowledgedInOrder", "emptyEntries", "largestEntries", "readUnconfirmed",
    },
    "LacChecks": {"readLastConfirmed", "explicitLastConfirmedOfAnIdleWriter", "longPollGetsTheNextEntry"},
    "RecoveryChecks": {"recoveryFencesTheWriter", "recoveryOfStripedLedgers", "wrongPassword", "deleteLedger"},
    "IdChecks": {"explicitIdsInOrder", "chosenLedgerId", "customMetadata"},
    "HandleChecks": {"appendAndReadBack", "deferredSyncAndForce", "listLedgers", "customMetadataAndItsRecord"},
}  # fmt: skip
ONE_DIGEST = {"v3": ("CRC32C",), "v2": ("CRC32", "MAC")}
SMALLER_SET = [row for row in rows(*CHOSEN) if row.name in CHOSEN[row.room] and row.digest in ONE_DIGEST[row.wire]]


@pytest.mark.parametrize("row", SMALLER_SET, ids=str)
def test_the_older_client_passes_its_checks_on_our_bookies(older_java: Java, ours: Cluster, row: Row) -> None:
    older_java.call(f"{row.room}.{row.name}", uri=ours.uri, wire=row.wire, digest=row.digest, bookies=ours.bookies)


@pytest.fixture(scope="module")
def generations(zookeeper: str, workdir: Path, older_java: Java) -> Iterator[Cluster]:
    """An older bookie of Apache's, a newest one and one of ours; set up by the older shell."""
    cluster = Cluster(f"zk+hierarchical://{zookeeper}/generations", workdir / "generations")
    try:
        cluster.init_with_apache(older_java)
        cluster.add(theirs=1, line=OLDER)
        cluster.add(ours=1, theirs=1)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def ask(older_java: Java, java: Java, generations: Cluster) -> Callable[..., Any]:
    async def call(step: str, *, newest: bool = False, **args: object) -> Any:
        process = java if newest else older_java
        return await outcome(process.start(f"Handles.{step}", uri=generations.uri, **args))

    return call


@each_wire
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
async def test_we_write_all_read(generations: Cluster, ask: Callable[..., Any], wire: int, digest: str) -> None:
    async with connect(generations.uri, config=ClientConfig(wire_protocol=wire)) as client:
        async with client.create(digest=digest.lower(), password=PASSWORD) as writer:
            await writer.append_many(payload(number) for number in range(90))
        for newest in (False, True):
            read = await ask("read", newest=newest, wire=f"v{wire}", digest=digest, ledger=writer.ledger_id)
            assert (read["last"], read["closed"]) == (89, True)


@each_wire
async def test_the_older_client_writes_all_read(generations: Cluster, ask: Callable[..., Any], wire: int) -> None:
    made = await ask("create", wire=f"v{wire}")
    await ask("add", writer=made["writer"], count=60)
    await ask("closeWriter", writer=made["writer"])
    assert (await ask("read", newest=True, wire=f"v{wire}", ledger=made["ledger"]))["last"] == 59
    async with (
        connect(generations.uri, config=ClientConfig(wire_protocol=wire)) as client,
        client.open(made["ledger"], password=PASSWORD) as reader,
    ):
        assert [entry.payload for entry in await reader.read(0, 59)] == [payload(number) for number in range(60)]


@each_wire
async def test_we_fence_the_older_client(generations: Cluster, ask: Callable[..., Any], wire: int) -> None:
    made = await ask("create", wire=f"v{wire}")
    await ask("startWriting", writer=made["writer"])
    await ask("awaitAcknowledged", writer=made["writer"], entry=100)
    async with (
        connect(generations.uri, config=ClientConfig(wire_protocol=wire)) as client,
        client.recover(made["ledger"], password=PASSWORD) as reader,
    ):
        state = await ask("stopWriting", writer=made["writer"])
        assert state["failed"] != 0
        assert reader.last_confirmed >= state["acknowledged"]


@each_wire
async def test_the_older_client_fences_us(generations: Cluster, ask: Callable[..., Any], wire: int) -> None:
    async with connect(generations.uri, config=ClientConfig(wire_protocol=wire)) as client:
        writer = await client.create(password=PASSWORD)
        await writer.append_many(payload(number) for number in range(40))
        read = await ask("read", wire=f"v{wire}", ledger=writer.ledger_id, recover=True)
        assert (read["last"], read["closed"]) == (39, True)
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await writer.append(payload(40))
        await writer.abandon()


@each_wire
async def test_all_tail_our_idle_writer(generations: Cluster, ask: Callable[..., Any], wire: int) -> None:
    async with (
        connect(generations.uri, config=ClientConfig(wire_protocol=wire)) as client,
        client.create(password=PASSWORD) as writer,
    ):
        tails = [
            asyncio.ensure_future(ask("tail", newest=newest, wire=f"v{wire}", ledger=writer.ledger_id, until=19))
            for newest in (False, True)
        ]
        await writer.append_many(payload(number) for number in range(20))
        async with asyncio.timeout(30):
            assert [found["last"] for found in await asyncio.gather(*tails)] == [19, 19]
