"""A bookie's directory and a metadata file of release 0.1.0 (superblock format 2) are read in full by this one."""

from __future__ import annotations

import asyncio
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.formats.make_0_1 import STORE, payload

from buckram.bookie.process import Bookie
from buckram.bookie.store import Store
from buckram.client.client import connect
from buckram.config import BookieConfig, NetConfig
from buckram.core.entry import Digest
from buckram.disk.local import LocalDisk
from buckram.metadata.uri import open_store
from buckram.net.runtime import production_runtime
from buckram.net.stats import NullStats
from buckram.types import DigestType

HERE = Path(__file__).parent / "0.1"
FACTS: dict[str, Any] = json.loads((HERE / "content.json").read_text())
LEDGERS: list[dict[str, Any]] = FACTS["ledgers"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`bookie/` and `metadata.db` as that release left them when its process was killed."""
    with tarfile.open(HERE / "directory.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def opened(place: Path) -> tuple[LocalDisk, Store]:
    disk = LocalDisk(place / "bookie", "inline")
    return disk, Store.open(disk, STORE, NullStats(), random.Random(1))


async def check(store: Store) -> None:
    """Everything that was acknowledged is there, and what was buried is not."""
    digest = Digest(DigestType.CRC32C, b"old")
    assert store.incarnation == FACTS["incarnation"]
    assert not store.limbo
    for facts in LEDGERS:
        ledger, count = facts["ledger"], facts["entries"]
        record = store.ledger(ledger)
        assert record is not None
        assert (record.tombstone, record.fenced) == (facts["state"] == "buried", facts["state"] in ("buried", "fenced"))
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        store.read([(ledger, entry) for entry in range(count + 1)], future.set_result)
        found = await future
        assert found[-1] is None
        for entry, body in enumerate(found[:-1]):
            assert digest.open(ledger, entry, body).payload == payload(ledger, entry)


async def test_the_files_have_all_that_a_directory_can_have(place: Path) -> None:
    block = json.loads((place / "bookie" / "superblock").read_text().splitlines()[0])
    assert block["format"] == 2
    assert block["table"]
    assert not block["clean"]
    kinds = {(entry["states"], entry["log_end"] > 0) for entry in block["segments"]}
    assert kinds == {(False, True), (True, True), (True, False)}  # compacted, sealed, open
    assert {facts["state"] for facts in LEDGERS} == {"buried", "closed", "fenced", "open"}


async def test_everything_in_it_is_read(place: Path) -> None:
    disk, store = opened(place)
    await check(store)
    await store.close()
    disk.close()


async def test_a_cluster_goes_on_with_it(place: Path) -> None:
    metadata = await open_store(f"sqlite://{place}/metadata.db")
    runtime = production_runtime()
    disk = LocalDisk(place / "bookie", "inline")
    bookie = Bookie(runtime, disk, metadata, BookieConfig(port=0, bookie_id="old-1"), STORE, NetConfig())
    await bookie.start()
    async with connect(metadata, runtime=runtime) as client:
        for facts in LEDGERS:
            if facts["state"] == "buried":
                continue
            read = client.recover if facts["state"] == "open" else client.open
            async with read(facts["ledger"], password=b"old") as reader:
                found = [entry.payload for entry in await reader.read(0, facts["entries"] - 1)]
            assert found == [payload(facts["ledger"], entry) for entry in range(facts["entries"])]
        async with client.create(ensemble=(1, 1, 1)) as writer:
            assert writer.ledger_id not in [facts["ledger"] for facts in LEDGERS]
            await writer.append(b"new")
    await bookie.stop()
    await metadata.close()
    disk.close()
