"""How tests/formats/0.2 was made: all that release 0.2.0 writes (superblock format 3), small.

Run with the sources of that release: `PYTHONPATH=RELEASE/src:. python -m tests.formats.make_0_2 OUTPUT`. It writes
`directory.tar.xz` (the data directory of a bookie that was killed, its metadata.db beside it) and `content.json` (what
is in it). It is kept to say what the files are; the tests read what it wrote once.
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

from buckram import UnknownCommand
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
BOOKIE = "old-2"
ENSEMBLE = "1/1/1"


class Counter:
    """The machine whose log and snapshot are kept."""

    def __init__(self) -> None:
        self.value = 0

    def apply(self, command: Any) -> int:
        if not isinstance(command, int):
            raise UnknownCommand(str(command))
        self.value += command
        return self.value

    def snapshot(self) -> bytes:
        return str(self.value).encode()

    def restore(self, data: bytes) -> None:
        self.value = int(data)


def record(number: int) -> bytes:
    return f"record {number} ".encode() * (1 + number % 5)


async def fill(client: Client) -> dict[str, Any]:
    """Something of everything that has a format of its own."""
    async with client.create(ensemble=(1, 1, 1), password=b"old", digest="mac") as writer:
        for number in range(30):
            await writer.append(record(number))
    ledger = writer.ledger_id
    await client.namespaces.create("shop", ensemble=ENSEMBLE)
    shop = client.namespace("shop")
    async with shop.writer("orders") as stream:
        for number in range(20):
            await stream.append(record(number), key=b"k%d" % (number % 3), headers=[("n", b"%d" % number)])
    async with shop.read("orders", cursor="billing") as reader:
        async for one in reader:
            if one.offset == 6:
                break
        await reader.commit()
    step = await shop.bulk("orders", application="counts", version=3)
    bulk = await step.create_ledger()
    await bulk.append_many([record(number) for number in range(20, 25)])
    await step.publish([await bulk.close()])
    await shop.create("packed", compression="zstd")
    async with shop.writer("packed") as stream:
        await asyncio.gather(*[stream.append(record(7)) for _ in range(50)])
    async with shop.machine("counter", Counter) as machine:
        await machine.lead()
        for number in range(1, 11):
            await machine.execute(number)
        await machine.snapshot()
        await machine.execute(45)
    async with shop.database("main") as database:
        await database.lead()
        await database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        for number in range(5):
            await database.execute("INSERT INTO t (b) VALUES (?)", [f"row {number}"])
    async with client.objects("shop") as objects:
        await objects.put("small", b"a few bytes")
        await objects.put("folder/large", b"0123456789" * 2000)
    return {"ledger": ledger, "records": 25, "cursor": 7, "counter": 100, "rows": 5}


async def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        metadata = await open_store(f"sqlite://{place}/metadata.db")
        await init_cluster(metadata)
        runtime = production_runtime()
        disk = LocalDisk(place / "bookie", "inline")
        bookie = Bookie(runtime, disk, metadata, BookieConfig(port=0, bookie_id=BOOKIE), STORE, NetConfig())
        await bookie.start()
        async with connect(metadata, runtime=runtime) as client:
            content = await fill(client)
        shutil.copytree(place / "bookie", place / "killed" / "bookie")
        await bookie.stop()
        await metadata.close()
        disk.close()
        shutil.copy(place / "metadata.db", place / "killed" / "metadata.db")
        with tarfile.open(output / "directory.tar.xz", "w:xz", preset=9) as archive:
            for file in sorted((place / "killed").rglob("*")):
                if file.is_file() and file.name != "lock":
                    archive.add(file, str(file.relative_to(place / "killed")))
        (output / "content.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
