"""A bookie's directory and a metadata file of release 0.1.0 (superblock format 2) are read in full by this one."""

from __future__ import annotations

import asyncio
import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.formats.make_0_1 import STORE, payload
from tests.support.store_kit import durable

from buckram.bookie.process import Bookie
from buckram.bookie.storage.store import Store
from buckram.cluster import connect
from buckram.config import BookieConfig, NetConfig
from buckram.core.entries.entry import Digest
from buckram.core.wire.adds import frame_add
from buckram.metadata.uri import open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.seams import Write
from buckram.types import NO_BIRTH, DigestType

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
    """All acknowledged entries are read, and deleted ledgers are tombstones."""
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


async def test_the_fixture_has_every_kind_of_file_and_ledger_state(place: Path) -> None:
    block = json.loads((place / "bookie" / "superblock").read_text().splitlines()[0])
    assert block["format"] == 2
    assert block["table"]
    assert not block["clean"]
    kinds = {(entry["states"], entry["log_end"] > 0) for entry in block["segments"]}
    assert kinds == {(False, True), (True, True), (True, False)}  # compacted, sealed, open
    assert {facts["state"] for facts in LEDGERS} == {"buried", "closed", "fenced", "open"}


async def test_all_entries_and_ledger_states_are_read(place: Path) -> None:
    disk, store = opened(place)
    await check(store)
    await store.close()
    disk.close()


def format_of(place: Path) -> int:
    found = json.loads((place / "bookie" / "superblock").read_text().splitlines()[0])["format"]
    assert isinstance(found, int)
    return found


class NothingWritten(LocalDisk):
    """A disk that records the log messages before the store's first change of the directory."""

    said: list[str] | None = None
    caplog: pytest.LogCaptureFixture

    def _note(self) -> None:
        if self.said is None:
            self.said = [record.getMessage() for record in self.caplog.records]

    def remove(self, name: str) -> None:
        self._note()
        super().remove(name)

    def rename(self, old: str, new: str) -> None:
        self._note()
        super().rename(old, new)

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        self._note()
        super().write_now(writes, sync=sync)


async def test_the_irreversible_upgrade_is_logged_once_before_the_first_write(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for time in range(2):
        caplog.clear()
        disk = NothingWritten(place / "bookie", "inline")
        disk.caplog = caplog
        store = Store.open(disk, STORE, NullStats(), random.Random(1))
        expected = [
            f"{place}/bookie has format 2 and is upgraded to format 3: "
            "releases that know only format 2 cannot read it any more"
        ]
        assert disk.said == (expected if time == 0 else [])
        assert format_of(place) == 3
        await check(store)
        await store.close()
        disk.close()


async def test_old_and_new_ledger_states_coexist_in_one_directory(place: Path) -> None:
    """In one log file, in footers of both versions, through the ledger table and a compaction of all of it."""
    births = {facts["ledger"]: bytes([facts["ledger"] + 1]) * 16 for facts in LEDGERS if facts["ledger"] % 3 != 1}
    disk, store = opened(place)
    for ledger, birth in births.items():
        store.learn_birth(ledger, birth)
    for step in ("log", "sealed", "table", "compacted"):
        if step == "sealed":
            store.put_ledger(10**6, b"k" * 20)
            for entry in range(40):
                body = frame_add(b"k" * 20, Digest(DigestType.CRC32C, b"").seal(10**6, entry, -1, 0, bytes(4000)))
                store.add_run(10**6, entry, 1, -1, body, 0, len(body))
                await durable(store)
        elif step == "table":
            await store._maintenance.checkpoint()
        elif step == "compacted":
            store.delete_ledger(10**6)
            assert await store.compact() > 0
        await store.close()
        disk.close()
        disk, store = opened(place)
        await check(store)
        for facts in LEDGERS:
            record = store.ledger(facts["ledger"])
            assert record is not None
            assert record.birth == births.get(facts["ledger"], NO_BIRTH)
    assert store.stats()["checkpoints"] == 0
    await store.close()
    disk.close()


async def test_a_cluster_continues_on_the_old_directory(place: Path) -> None:
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
