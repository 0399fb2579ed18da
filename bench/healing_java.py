"""The same ledgers made whole again by Apache's auditor and replication worker, and by ours, each on its own bookies.

Both write 3/3/2 with our client, get an empty fourth bookie, and lose one. Times count from the first mark that an
onlooker sees to the last, because Apache's worker reports nothing. One worker each; Apache's has no rate limit and
reads and writes 500 entries at a time (rereplicationEntryBatchSize; 10 by default).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from javakit import programs

from bench.harness import data_root
from bench.healing import ENTRY, LEDGERS, Figures, check_copies, fill, healer, looking, until_healed
from bench.java.loads import JVM, classes
from bench.java.sides import OURS, ApacheBookie, ApacheSide, OurSide
from bench.machine import Watch
from bench.machines import bookie_place, helpers, zookeeper
from buckram.launch.processes import BookieProcess

LEDGER_MB = float(os.environ.get("BENCH_HEAL_JAVA_MB", "1"))
MAIN = "org.apache.bookkeeper.replication.AutoRecoveryMain"
SETTINGS = {
    "lostBookieRecoveryDelay": 0, "rereplicationEntryBatchSize": 500, "rwRereplicateBackoffMs": 200,
    "httpServerEnabled": "false", "allowLoopback": "true",
}  # fmt: skip


def measure() -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    try:
        with zookeeper(folder / "zookeeper") as server:
            theirs, foreign_theirs = _theirs(server, folder)
            ours, foreign_ours = _ours(server, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "ledgers": LEDGERS, "mb_per_ledger": LEDGER_MB, "ours_s": round(ours, 2), "apache_s": round(theirs, 2),
        "times_as_fast": round(theirs / ours, 2), "foreign_cpu": max(foreign_ours, foreign_theirs),
    }  # fmt: skip


def _entries() -> int:
    return max(1, round(LEDGER_MB * 1e6 / ENTRY))


def _theirs(server: str, folder: Path) -> tuple[float, float]:
    side = ApacheSide(server, folder / "apache")
    try:
        side.start()
        ledgers = asyncio.run(fill(side.uri, LEDGERS, _entries()))
        spare = ApacheBookie(side.uri, folder / "apache" / "bookie-3", place=bookie_place(3))
        spare.start()
        spare.wait_ready()
        side.bookies.append(spare)
        with _apache_recovery(side.uri, folder) as worker:
            dead = side.bookies[0]
            with Watch(folder, [*side.pids[1:], worker, *helpers()]) as watch:
                dead.kill()
                took = asyncio.run(_healed(side.uri, ledgers, f"{dead.place.host}:{dead.port}"))
        return took, watch.foreign_share
    finally:
        side.close()


def _ours(server: str, folder: Path) -> tuple[float, float]:
    side = OurSide(server, folder / "ours")
    try:
        side.start()
        ledgers = asyncio.run(fill(side.uri, LEDGERS, _entries()))
        place = bookie_place(OURS + 3)
        spare = BookieProcess(side.uri, folder / "ours" / "bookie-3", host=place.host, launcher=place.launcher)
        side.bookies.append(spare)
        spare.start()
        spare.wait_ready()
        with healer(side.uri) as worker:
            dead = side.bookies[0]
            assert dead.ready is not None
            with Watch(folder, [*side.pids[1:], worker.pid, *helpers()]) as watch:
                dead.kill()
                took = asyncio.run(_healed(side.uri, ledgers, dead.ready.bookie_id))
        return took, watch.foreign_share
    finally:
        side.close()


async def _healed(uri: str, ledgers: list[int], dead: str) -> float:
    async with looking(uri) as store:
        seen = await until_healed(store, time.monotonic(), len(ledgers), reports=False)
        await check_copies(store, ledgers, dead)
        return seen.end - seen.marked


@contextlib.contextmanager
def _apache_recovery(uri: str, folder: Path) -> Iterator[int]:
    """Apache's auditor and worker in one process; its id."""
    conf, log = folder / "autorecovery.conf", folder / "autorecovery.log"
    conf.write_text("".join(f"{key}={value}\n" for key, value in {**SETTINGS, "metadataServiceUri": uri}.items()))
    process = programs.spawn(classes(), JVM, [MAIN, "--conf", str(conf)], log, talks=False)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
