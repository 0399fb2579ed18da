"""How tests/formats/0.1 was made: a store and a metadata file as release 0.1.0 (superblock format 2) writes them.

Run with the sources of that release: `PYTHONPATH=RELEASE/src python make_0_1.py OUTPUT`. It writes `directory.tar.xz`
(the data directory of a bookie that was killed, its metadata.db beside it) and `content.json` (what is in it). It is
kept to say what the files are; the tests read what it wrote once.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from buckram.bookie.process import Bookie
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, NetConfig, StoreConfig
from buckram.metadata.uri import init_cluster, open_store
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime

STORE = StoreConfig(
    segment_bytes=64 << 10,
    commit_max_bytes=64 << 10,
    tail_cache_bytes=0,
    reserved_bytes=0,
    writable_again_bytes=0,
    disk_mode="inline",
    compaction_threshold=0.9,
)


def payload(ledger: int, entry: int) -> bytes:
    return (f"ledger {ledger} entry {entry} " * 40).encode()[: 300 + 7 * (entry % 50)]


async def write(client: Client, count: int, *, close: bool) -> tuple[int, Any]:
    handle = await client.create(ensemble=(1, 1, 1), password=b"old")
    ledger = handle.ledger_id
    for first in range(0, count, 10):
        await asyncio.gather(*[handle.append(payload(ledger, n)) for n in range(first, min(count, first + 10))])
    if close:
        await handle.close()
    return ledger, handle


async def fill(client: Client, bookie: Bookie) -> list[dict[str, Any]]:
    store = bookie.store
    assert store is not None
    found = []
    buried, kept = [], []
    for number in range(12):
        ledger, _ = await write(client, 60, close=True)
        (buried if number % 2 else kept).append(ledger)
    for ledger in buried:
        await client.delete(ledger, password=b"old")
        store.bury(ledger)
    await asyncio.sleep(0.3)
    await store.compact()  # writes the ledger table and one file sorted by ledger
    found += [{"ledger": ledger, "state": "buried", "entries": 0} for ledger in buried]
    found += [{"ledger": ledger, "state": "closed", "entries": 60} for ledger in kept]
    for _ in range(3):
        ledger, _ = await write(client, 70, close=True)
        found.append({"ledger": ledger, "state": "closed", "entries": 70})
    await asyncio.sleep(0.3)
    ledger, _ = await write(client, 20, close=False)
    await client.recover(ledger, password=b"old")
    found.append({"ledger": ledger, "state": "fenced", "entries": 20})
    ledger, _ = await write(client, 25, close=False)
    await asyncio.sleep(0.3)
    found.append({"ledger": ledger, "state": "open", "entries": 25})
    return found


async def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        metadata = await open_store(f"sqlite://{place}/metadata.db")
        await init_cluster(metadata)
        runtime = production_runtime()
        disk = LocalDisk(place / "bookie", "inline")
        bookie = Bookie(runtime, disk, metadata, BookieConfig(port=0, bookie_id="old-1"), STORE, NetConfig())
        await bookie.start()
        client = await connect(metadata, runtime=runtime)
        ledgers = await fill(client, bookie)
        assert bookie.store is not None
        print(bookie.store.stats())
        incarnation = bookie.store.incarnation
        # As a kill leaves it: the last log file without a footer, and no orderly stop in the superblock.
        shutil.copytree(place / "bookie", place / "killed" / "bookie")
        await bookie.stop()
        await metadata.close()
        disk.close()
        shutil.copy(place / "metadata.db", place / "killed" / "metadata.db")
        with tarfile.open(output / "directory.tar.xz", "w:xz", preset=9) as archive:
            for file in sorted((place / "killed").rglob("*")):
                if file.is_file() and file.name != "lock":
                    archive.add(file, str(file.relative_to(place / "killed")))
        facts = {"bookie": "old-1", "incarnation": incarnation, "ledgers": ledgers}
        (output / "content.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
