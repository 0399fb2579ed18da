"""A cluster that commit 6930de3f wrote, killed in the middle of it: all of it is read, and writes go on.

`make_cluster_0_2.py` says what is in it. The bookies are started from their directories, on free ports.
"""

from __future__ import annotations

import asyncio
import json
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.formats.make_0_2 import Counter, record
from tests.formats.make_cluster_0_2 import SPACES, row

from buckram import MirrorStream, NoSuchLedger, Reader
from buckram.bookie.process import Bookie
from buckram.bookie.storage.superblock import FORMAT, decode
from buckram.cli.cluster.metadata_backup import open_tree
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, NetConfig, StoreConfig
from buckram.core.cluster.store_history import WitnessStatement, parse_statement
from buckram.core.security.acl import Grant
from buckram.core.security.tokens import verify
from buckram.metadata.maintain.acceptance import accept
from buckram.metadata.maintain.backup import read_file, restore
from buckram.metadata.maintain.checkup import examine
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.layout import WITNESSES
from buckram.metadata.uri import open_store
from buckram.replication.promotion import promote
from buckram.replication.sides import side_of
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime

HERE = Path(__file__).parent / "cluster_0_2"
FACTS: dict[str, Any] = json.loads((HERE / "content.json").read_text())
BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
STORE = StoreConfig(segment_bytes=1 << 20, tail_cache_bytes=0, reserved_bytes=0, writable_again_bytes=0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of that `up`."""
    with tarfile.open(HERE / "cluster.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@asynccontextmanager
async def started(place: Path, *, restored: bool = False) -> AsyncIterator[Client]:
    """A client of the cluster in this directory, whose bookies run as long. `restored`: its metadata are accepted."""
    uri, runtime = f"sqlite://{place}/metadata.db", production_runtime()
    async with AsyncExitStack() as cleanup:
        for name in BOOKIES:
            metadata = await open_store(uri, runtime)
            cleanup.push_async_callback(metadata.close)
            disk = LocalDisk(place / name, "inline")
            cleanup.callback(disk.close)
            bookie = Bookie(runtime, disk, metadata, BookieConfig(port=0, bookie_id=name), STORE, NetConfig())
            await bookie.start()
            cleanup.push_async_callback(bookie.stop)
        if restored:
            store = await open_tree(uri)
            await accept(store, random.Random(1), ())
            await store.close()
        yield await cleanup.enter_async_context(connect(uri, runtime=runtime))


async def statements(place: Path) -> dict[str, WitnessStatement]:
    """What the store says of whose each id is."""
    store = await open_tree(f"sqlite://{place}/metadata.db")
    try:
        keys = {name: f"{store.own}/{WITNESSES}/{name}" for name in BOOKIES}
        return {name: parse_statement(key, (await store.keys.get(key)).value) for name, key in keys.items()}
    finally:
        await store.close()


# -- what is in it ----------------------------------------------------------------------------------------------------


async def payloads(reader: Reader) -> list[bytes]:
    return [bytes(entry.payload) for entry in await reader.read(0, reader.last_confirmed)]


async def check_ledgers(client: Client) -> None:
    for ledger, digest in FACTS["closed"]:
        async with client.open(ledger, password=b"old", digest=digest) as reader:
            found = await payloads(reader)
        assert found == [row(number) for number in range(FACTS["closed_entries"])]
    with pytest.raises(NoSuchLedger):
        await client.open(FACTS["deleted"], password=b"old")
    live = FACTS["live"]
    for ledger, least in (
        (FACTS["open"], FACTS["open_least"]),
        (live["ledger"]["id"], live["ledger"]["known"]),
        (live["deferred"]["id"], live["deferred"]["known"]),
    ):
        # The first open closes it, as nobody writes it any more.
        async with client.open(ledger, password=b"old") as reader:
            found = await payloads(reader)
        assert len(found) >= least, f"ledger {ledger}: {least} entries were acknowledged"
        assert found == [row(number) for number in range(len(found))]


async def check_streams(client: Client) -> None:
    shop = client.namespace("shop")
    orders = [one async for one in shop.read("orders")][: FACTS["records"]]
    assert [one.value for one in orders] == [record(number) for number in range(FACTS["records"])]
    assert [one.offset for one in orders] == list(range(FACTS["records"]))
    for number, one in enumerate(orders[:40]):
        assert (one.key, dict(one.headers)) == (b"k%d" % (number % 3), {"n": b"%d" % number})
        assert (one.timestamp, one.producer, one.sequence) == (1_700_000_000_000_000 + number, "till", number)
    (cursor,) = await shop.cursors("orders")
    assert (cursor.name, cursor.offset) == ("billing", FACTS["cursor"])
    info = await shop.info("orders")
    assert info.transactions["counts"].version == 4
    assert dict(info.properties) == {"owner": "billing"}
    assert (info.policy.retention_s, info.policy.retention_cursors) == (10**9, True)
    fork = [one.value async for one in shop.read("orders-then")]
    assert fork == [record(number) for number in range(FACTS["fork"])]
    earliest, end = FACTS["ended"]
    ended = [(one.offset, one.value) async for one in shop.read("ended", start="earliest")]
    assert ended == [(number, record(number)) for number in range(earliest, end)]
    assert (await shop.info("ended")).ended
    assert [one.value async for one in shop.read("packed")] == [record(7)] * 50


async def check_live_stream(client: Client) -> None:
    """The stream whose writer was killed: the next one takes over, and the producer's sequence goes on."""
    shop = client.namespace("shop")
    async with shop.writer("live", takeover=True) as writer:
        end = writer.next_offset
        assert end >= FACTS["live"]["stream"]["known"]
        assert await writer.append(row(end - 1), producer="till", sequence=end - 1) == end - 1, "sent before"
        assert await writer.append(row(end), producer="till", sequence=end) == end
    found = [one.value async for one in shop.read("live")]
    assert found == [row(number) for number in range(end + 1)]


async def check_machines(client: Client) -> None:
    shop = client.namespace("shop")
    async with shop.machine("counter", Counter) as machine:
        await machine.lead()
        assert await machine.execute(0) == FACTS["counter"]
    async with shop.database("main") as database:
        await database.lead()
        rows = (await database.execute("SELECT b, c, d FROM t WHERE b LIKE 'row %' ORDER BY a")).rows
        assert [tuple(one) for one in rows] == [
            (f"row {number}", number / 8, bytes([number])) for number in range(FACTS["rows"])
        ]
    async with client.objects("shop") as objects:
        assert await objects.get("small") == b"a few bytes"
        assert dict((await objects.info("small")).metadata) == {"kind": "note"}
        assert await objects.get("folder/large") == b"0123456789" * 20_000


async def check_tenants(client: Client) -> None:
    quotas = await client.namespaces.quotas("shop")
    assert {name: getattr(quotas, name) for name in SPACES} == SPACES
    store = client.services.store
    security = SecurityStore(store)
    state, cluster = await security.state(), await store.instance_id()
    assert Grant("token:alice", "shop", frozenset({"read", "append"})) in (await security.acl()).grants
    assert verify(FACTS["token"], state.keys, cluster, 1_800_000_000.0, state.revoked).subject == "alice"
    assert "mallory" in (state.revoked.subjects or {})


async def check_all(client: Client) -> None:
    """All that can be looked at without changing it."""
    await check_ledgers(client)
    await check_streams(client)
    await check_machines(client)
    await check_tenants(client)


# -- the tests --------------------------------------------------------------------------------------------------------


async def test_everything_is_read_at_the_first_start_and_at_the_second(place: Path) -> None:
    async with started(place) as client:
        await check_all(client)
        await check_live_stream(client)
        async with client.create(ensemble=(3, 3, 2)) as writer:
            await writer.append_many([b"new"] * 10)
        async with client.namespace("shop").writer("orders") as stream:
            assert await stream.append(b"new", producer="till", sequence=40) == FACTS["records"]
        async with client.objects("shop") as objects:
            upload = FACTS["upload"]
            assert [one.number for one in await objects.parts(upload)] == [0]
            await objects.put_part(upload, 1, b"second part")
            await objects.complete_upload(upload, 2)
    async with started(place) as client:
        await check_all(client)
        async with client.open(writer.ledger_id) as reader:
            assert await payloads(reader) == [b"new"] * 10
        assert [one.value async for one in client.namespace("shop").read("orders")][FACTS["records"] :] == [b"new"]
        async with client.objects("shop") as objects:
            assert await objects.get("folder/parts") == b"first part, " * 1000 + b"second part"


async def test_an_id_gets_its_generation_at_the_first_start_and_once(place: Path) -> None:
    assert {one.generation for one in (await statements(place)).values()} == {0}
    cookies = {name: (place / name / "VERSION").read_bytes() for name in BOOKIES}
    found = []
    for _ in range(2):
        async with started(place) as client:
            assert (await examine(client.services.store)).problems == []  # type: ignore[arg-type]
        found.append(await statements(place))
        assert {one.generation for one in found[-1].values()} == {1}
    before, after = found
    assert {name: one.incarnation for name, one in before.items()} == {n: one.incarnation for n, one in after.items()}
    assert {name: (place / name / "VERSION").read_bytes() for name in BOOKIES} == cookies, "Apache's software reads it"
    for name in BOOKIES:
        assert decode((place / name / "superblock").read_bytes(), "superblock").format == FORMAT


async def test_a_query_of_spark_goes_on(place: Path) -> None:
    pytest.importorskip("pyspark")
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType
    from tests.spark.fixtures.make_records_0_2 import run

    from buckram.spark.sink.stream_sink import stream_writer

    uri = f"sqlite://{place}/metadata.db"
    given = {"metadata": uri, "stream": "shop/from-spark", "checkpointLocation": FACTS["location"]}

    def batch(number: int) -> None:
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % number], pa.binary())})
        run(stream_writer(given, StructType([StructField("value", BinaryType())]), False), number, rows)

    async with started(place) as client:
        for number in (1, 2):  # The last one comes again, as after a driver was killed.
            await asyncio.to_thread(batch, number)
        found = [one.value async for one in client.namespace("shop").read("from-spark")]
    assert found == [b"0", b"1", b"2"]


async def test_a_mirror_stays_one_until_it_is_promoted(place: Path) -> None:
    async with started(place) as client:
        copied = client.namespace("copied")
        with pytest.raises(MirrorStream):
            await copied.writer("news")
        await promote(await side_of(client), "copied", None, force=True)
        async with copied.writer("news") as writer:
            assert await writer.append(b"own") == FACTS["mirror_records"]
        expected = [record(number) for number in range(FACTS["mirror_records"])]
        assert [one.value async for one in copied.read("news")] == [*expected, b"own"]


@pytest.mark.share(3)
async def test_its_backup_is_restored(place: Path) -> None:
    """What was written after the backup was made is kept by the bookies; what it has is read."""
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
        (place / name).unlink()
    store = await open_tree(f"sqlite://{place}/metadata.db")
    await restore(store, read_file(HERE / "backup"))
    await store.close()
    async with started(place, restored=True) as client:
        await check_streams(client)
        await check_machines(client)
        await check_tenants(client)
