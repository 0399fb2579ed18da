"""How tests/formats/cluster_0_2 was made: a cluster of `buckram up` of commit 6930de3f, killed while it was written.

Run with the sources of that commit: `PYTHONPATH=SOURCES/src:. python -m tests.formats.make_cluster_0_2 OUTPUT`. It
writes `cluster.tar.xz` (the directory of `up` with three bookies and the metadata, all of them killed with SIGKILL in
the same moment as their writers), `backup` (the metadata as `buckram cluster backup` writes them) and `content.json`
(what was written and acknowledged). It is kept to say what the files are; the tests read what it wrote once.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.formats.make_0_2 import Counter, record
from tests.support.polling import wait_until

from buckram import sync
from buckram.cluster import Client, connect
from buckram.testing import cluster

SETTINGS = {
    "BUCKRAM_STORE_SEGMENT_BYTES": str(1 << 20),
    "BUCKRAM_STORE_COMMIT_MAX_BYTES": str(64 << 10),
    "BUCKRAM_STORE_TAIL_CACHE_BYTES": "0",
    "BUCKRAM_STORE_RESERVED_BYTES": "0",
    "BUCKRAM_STORE_WRITABLE_AGAIN_BYTES": "0",
}
"""Of the bookies: small files, of which several are sealed."""
LIVE_RECORDS = 300
"""The writers have got at least so many acknowledgements when everything is killed."""
SPACES = {"stored_bytes": 1 << 30, "in_entries_per_s": 100_000, "streams": 50}


def row(number: int) -> bytes:
    """What entry or record `number` of a log that is being written holds."""
    return b"%08d " % number * (1 + number % 7)


# -- what writes until it is killed -----------------------------------------------------------------------------------


async def write_on(uri: str, log: Path) -> None:
    """Write a ledger, one with deferred sync and a stream for ever, and tell each acknowledgement in a line."""
    with log.open("w", buffering=1) as told:

        async def ledger(client: Client, what: str, deferred: bool) -> None:
            writer = await client.create(ensemble=(3, 3, 2), password=b"old", deferred_sync=deferred)
            print(what, "id", writer.ledger_id, file=told)
            number = 0
            while True:
                await asyncio.gather(*[writer.append(row(number + more)) for more in range(5)])
                number += 5
                if deferred:
                    if number % 25:
                        continue
                    await writer.force()
                print(what, "known", number, file=told)

        async def stream(client: Client) -> None:
            number = 0
            async with client.namespace("shop").writer("live", name="the one that was killed") as writer:
                while True:
                    await asyncio.gather(
                        *[writer.append(row(n), producer="till", sequence=n) for n in range(number, number + 5)]
                    )
                    number += 5
                    print("stream", "known", number, file=told)

        async with connect(uri) as client:
            await asyncio.gather(ledger(client, "ledger", False), ledger(client, "deferred", True), stream(client))


def progress(log: Path) -> dict[str, dict[str, int]]:
    """Return what the writers were told: ids, and how many of their entries are acknowledged."""
    found: dict[str, dict[str, int]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        words = line.split()
        if len(words) == 3:
            found.setdefault(words[0], {})[words[1]] = int(words[2])
    return found


# -- what is whole ----------------------------------------------------------------------------------------------------


async def ledgers(client: Client) -> dict[str, Any]:
    """Ledgers that are closed, deleted, and open with a writer that went away."""
    closed = []
    for digest in ("crc32c", "mac"):
        async with client.create(ensemble=(3, 2, 2), password=b"old", digest=digest) as writer:
            for number in range(40):
                await writer.append(row(number))
        closed.append([writer.ledger_id, digest])
    gone = await client.create(ensemble=(3, 3, 2), password=b"old")
    await gone.append_many([row(number) * 200 for number in range(400)])
    await gone.close()
    await client.delete(gone.ledger_id, password=b"old")
    left = await client.create(ensemble=(3, 3, 2), password=b"old")
    for number in range(25):
        await left.append(row(number))
    return {"closed": closed, "closed_entries": 40, "deleted": gone.ledger_id, "open": left.ledger_id, "open_least": 25}


async def streams(client: Client) -> dict[str, Any]:
    """A stream with all that a stream has, one that was truncated and ended, a fork, and one that is compressed."""
    await client.namespaces.create("shop", ensemble="3/3/2", roll_bytes=1 << 20)
    await client.namespaces.set_quotas("shop", **SPACES)
    shop = client.namespace("shop")
    await shop.create("orders", properties={"owner": "billing"}, retention_s=10**9, retention_cursors=True)
    async with shop.writer("orders") as writer:
        for number in range(40):
            await writer.append(
                record(number),
                key=b"k%d" % (number % 3),
                headers=[("n", b"%d" % number)],
                timestamp=1_700_000_000_000_000 + number,
                producer="till",
                sequence=number,
            )
    async with shop.read("orders", cursor="billing") as reader:
        async for one in reader:
            if one.offset == 16:
                break
        await reader.commit()
    for version in (3, 4):
        step = await shop.bulk("orders", application="counts", version=version)
        bulk = await step.create_ledger()
        await bulk.append_many([record(number) for number in range(25 + 5 * version, 30 + 5 * version)])
        await step.publish([await bulk.close()])
    await shop.fork_stream("orders", "orders-then", offset=30)
    async with shop.writer("ended") as writer:
        await writer.append_many([record(number) for number in range(30)])
        await writer.end()
    await shop.truncate("ended", before=10)
    await shop.create("packed", compression="zstd")
    async with shop.writer("packed") as writer:
        await writer.append_many([record(7)] * 50)
    return {"records": 50, "cursor": 17, "ended": [10, 30], "fork": 30}


async def machines(client: Client) -> dict[str, Any]:
    """A machine with a snapshot and commands after it, a database, and objects, one of them half put."""
    shop = client.namespace("shop")
    async with shop.machine("counter", Counter) as machine:
        await machine.lead()
        for number in range(1, 11):
            await machine.execute(number)
        await machine.snapshot()
        await machine.execute(45)
    async with shop.database("main") as database:
        await database.lead()
        await database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c REAL, d BLOB)")
        for number in range(20):
            await database.execute(
                "INSERT INTO t (b, c, d) VALUES (?, ?, ?)", [f"row {number}", number / 8, bytes([number])]
            )
        await database.execute("CREATE INDEX by_b ON t (b)")
    async with client.objects("shop") as objects:
        await objects.put("small", b"a few bytes", metadata={"kind": "note"})
        await objects.put("folder/large", b"0123456789" * 20_000)
        upload = await objects.begin_upload("folder/parts")
        await objects.put_part(upload, 0, b"first part, " * 1000)
    return {"counter": 100, "rows": 20, "upload": upload}


async def mirror(uri: str) -> dict[str, Any]:
    """The namespace `copied` of another cluster, which is there no more."""
    async with cluster(bookies=1, metadata="sqlite") as other, other.client() as client:
        await client.namespaces.create("copied", ensemble="1/1/1")
        async with client.namespace("copied").writer("news") as writer:
            await writer.append_many([record(number) for number in range(12)])
        await asyncio.to_thread(command, "replicate", "run", "--from", other.uri, "--to", uri, "copied", "--once")
        return {"mirror_records": 12}


def spark(uri: str) -> dict[str, Any]:
    """Two batches of a streaming query, whose checkpoint's place is a digest of its gateway's URL."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType
    from tests.spark.fixtures.make_records_0_2 import LOCATION, QUERY, run

    from buckram.spark.sink.stream_sink import stream_writer

    given = {"metadata": uri, "stream": "shop/from-spark", "checkpointLocation": LOCATION}
    with sync.connect(uri) as client:
        client.namespace("shop").create("from-spark")
    for number in range(2):
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % number], pa.binary())})
        run(stream_writer(given, StructType([StructField("value", BinaryType())]), False), number, rows)
    return {"location": LOCATION, "query": QUERY}


def command(*words: str) -> str:
    """Run a command of that release."""
    ran = subprocess.run([sys.executable, "-m", "buckram", *words], capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise SystemExit(f"buckram {' '.join(words)}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def security(uri: str) -> dict[str, Any]:
    """Grants, and tokens of which one was taken back."""
    given = ("--metadata", uri)
    command("acl", "grant", *given, "--principal", "token:alice", "--permission", "read,append", "shop")
    kept = command("token", "create", *given, "--subject", "alice", "--expires", "36500d").strip()
    command("token", "create", *given, "--subject", "mallory", "--expires", "36500d")
    command("token", "revoke", *given, "--subject", "mallory")
    return {"token": kept}


async def fill(uri: str) -> dict[str, Any]:
    async with connect(uri) as client:
        found = await ledgers(client) | await streams(client) | await machines(client)
    found |= await asyncio.to_thread(spark, uri)
    return found | await mirror(uri) | await asyncio.to_thread(security, uri)


# -- the cluster ------------------------------------------------------------------------------------------------------


def descendants(process: int) -> list[int]:
    """Return all processes below this one."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [one for child in children for one in (int(child), *descendants(int(child)))]


def start(place: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `buckram up` and return its process and the URI of its metadata."""
    words = ("up", "--bookies", "3", "--data", str(place), "--janitor", "never", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "buckram", *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **SETTINGS}
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    return process, str(ready["uri"])


def killed_while_written(up: subprocess.Popen[str], uri: str, log: Path) -> dict[str, Any]:
    """Write, kill all processes when enough is acknowledged, and return what the writers knew."""
    writer = subprocess.Popen([sys.executable, "-m", __spec__.name, "--write", uri, str(log)])

    def enough() -> bool:
        assert writer.poll() is None, "the writer ended"
        known = progress(log)
        return all(known.get(what, {}).get("known", 0) > LIVE_RECORDS for what in ("ledger", "stream"))

    wait_until(enough, "too little was acknowledged")
    for one in [*descendants(up.pid), up.pid, writer.pid]:
        os.kill(one, signal.SIGKILL)
    up.wait(), writer.wait()
    return progress(log)


def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "cluster"
        up, uri = start(place)
        try:
            content = asyncio.run(fill(uri))
            command("cluster", "backup", str(output / "backup"), "--metadata", uri)
            content["live"] = killed_while_written(up, uri, Path(name) / "log")
        finally:
            up.terminate()
            up.wait()
        for file in place.rglob("lock"):
            file.unlink()
        with tarfile.open(output / "cluster.tar.xz", "w:xz", preset=9) as archive:
            for one in sorted(place.rglob("*")):
                if one.is_file() and one.suffix != ".log" and one.name not in ("up.lock", "gateway.url"):
                    archive.add(one, str(one.relative_to(place)), filter=_nobody)
        (output / "content.json").write_text(json.dumps(content, indent=1) + "\n")
        shutil.rmtree(place)


def _nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        asyncio.run(write_on(sys.argv[2], Path(sys.argv[3])))
    else:
        main(Path(sys.argv[1]))
