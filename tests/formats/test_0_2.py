"""A bookie's directory and a metadata file of release 0.2.0 (superblock format 3) are read in full by this one.

Streams, cursors, bulk steps, compressed entries, a machine with a snapshot, a database and objects are in them.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.formats.make_0_2 import BOOKIE, STORE, Counter, record

from buckram.bookie.process import Bookie
from buckram.bookie.storage.superblock import FORMAT, decode
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, NetConfig
from buckram.metadata.uri import open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime

HERE = Path(__file__).parent / "0.2"
FACTS: dict[str, Any] = json.loads((HERE / "content.json").read_text())


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """Of a cluster that goes on where that release was killed."""
    with tarfile.open(HERE / "directory.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    metadata = await open_store(f"sqlite://{tmp_path}/metadata.db")
    runtime = production_runtime()
    disk = LocalDisk(tmp_path / "bookie", "inline")
    bookie = Bookie(runtime, disk, metadata, BookieConfig(port=0, bookie_id=BOOKIE), STORE, NetConfig())
    await bookie.start()
    try:
        async with connect(metadata, runtime=runtime) as found:
            yield found
    finally:
        await bookie.stop()
        await metadata.close()
        disk.close()


def test_the_directory_has_the_format_that_is_meant() -> None:
    with tarfile.open(HERE / "directory.tar.xz") as archive:
        file = archive.extractfile("bookie/superblock")
        assert file is not None
        assert decode(file.read(), "superblock").format == 3 <= FORMAT


async def test_ledgers_and_streams(client: Client) -> None:
    async with client.open(FACTS["ledger"], password=b"old", digest="mac") as ledger:
        assert [entry.payload for entry in await ledger.read(0, 29)] == [record(number) for number in range(30)]
    shop = client.namespace("shop")
    async with shop.read("orders") as reader:
        found = [one async for one in reader]
    assert [one.value for one in found] == [record(number) for number in range(FACTS["records"])]
    assert (found[4].key, dict(found[4].headers)) == (b"k1", {"n": b"4"})
    (cursor,) = await shop.cursors("orders")
    assert (cursor.name, cursor.offset) == ("billing", FACTS["cursor"])
    assert (await shop.info("orders")).transactions["counts"].version == 3
    async with shop.read("packed") as reader:
        assert [one.value async for one in reader] == [record(7)] * 50
    async with shop.writer("orders") as writer:
        assert await writer.append(b"new") == FACTS["records"]


async def test_a_machine_a_database_and_objects(client: Client) -> None:
    shop = client.namespace("shop")
    async with shop.machine("counter", Counter) as machine:
        await machine.lead()
        assert await machine.execute(1) == FACTS["counter"] + 1
    async with shop.database("main") as database:
        await database.lead()
        result = await database.execute("SELECT b FROM t ORDER BY a")
        assert [row[0] for row in result.rows] == [f"row {number}" for number in range(FACTS["rows"])]
        await database.execute("INSERT INTO t (b) VALUES ('new')")
    async with client.objects("shop") as objects:
        assert await objects.get("small") == b"a few bytes"
        assert await objects.get("folder/large") == b"0123456789" * 2000
        assert [one.name for one in await objects.list()] == ["folder/large", "small"]
