"""Measurements that are made once a side: much data, cold reads, memory, starts. Not here: slices of load (runs.py)."""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.java.sides import ApacheSide, OurSide, Side, answers, settle
from bench.ledgers import add_entry
from bench.machine import disk_written, drop_caches, memory

if TYPE_CHECKING:
    from bench.java.runs import Run, Session

Figures = dict[str, Any]
ENTRY = 1024
FILL_BYTES = 10 * 10**9
"""Acknowledged bytes of the long fill: as much on each of three bookies."""
FILL_LEDGERS = 10
COLD_BYTES = 20 * 10**9
"""Over all bookies."""
RESTART_BYTES = 20 * 10**9
"""Bytes stored on the bookie that is restarted."""
STARTS = 5
IDLE_S = 10.0
MILLION = 1_000_000
COMPILED_S = 30.0
"""Seconds of load after which just-in-time compiled code is measured."""
COLD_READS: Mapping[str, object] = {
    "dbStorage_directIOEntryLogger": "false", "dbStorage_readAheadCacheBatchSize": 1, "numReadWorkerThreads": 8,
    "dbStorage_rocksDB_blockCacheSize": 2 << 30,
}  # fmt: skip
"""Apache's best settings for random reads: past the page cache its bookie reads 8 MB for an entry, 20 times slower; and
where a shard of the index's cache is smaller than a file's filter, as by default, it reads that for each entry."""
FREE_BYTES = 50 * 10**9
START_DEADLINE_S = 120.0


def check_room(session: Session) -> None:
    free, needed = shutil.disk_usage(session.folder).free, session.part(FREE_BYTES)
    if free < needed:
        lacks = f"{free / 1e9:.0f} GB are free, this needs {needed / 1e9:.0f}"
        raise RuntimeError(f"{session.folder}: {lacks}: set BENCH_DIR to a larger disk")


def tail(session: Session, run: Run) -> Figures:
    return session.slice(run)


def fill(session: Session, run: Run) -> Figures:
    """Ten ledgers at full speed; bytes on the disk until all of it is where it stays, memory of the largest bookie."""
    for key in list(session.filled):  # nobody has read it, and there may be no room for the data of both sides
        session.discard(type(run).parse(key), session.filled.pop(key))
    check_room(session)
    side = session.side(run.bookies)
    settle(session.folder)
    before = disk_written(session.folder)
    entries = session.part(FILL_BYTES) // ENTRY
    request = {**session.request(run), "load": "fill", "ledgers": FILL_LEDGERS, "entries": entries}
    figures = session.loaders[run.client].ask(request, session.folder, side.pids, session.beside(side))
    rss = max(memory(pid)["peak"] for pid in side.pids)
    if isinstance(side, ApacheSide):
        side.tidy()  # what is in memory only has to go to the disk, too
    settle(session.folder, 60.0)
    written = disk_written(session.folder) - before
    session.filled[run.key] = figures.pop("ledgers")
    per_byte = written / (len(side.pids) * figures["all_entries"] * ENTRY)
    return {**figures, "disk_per_byte": round(per_byte, 4), "rss_mb": round(rss / 1e6, 1)}


def cold(session: Session, run: Run) -> Figures:
    """Measure reads of single entries at random places of the filled ledgers, with nothing of them in the page
    cache."""
    side = session.side(run.bookies)
    key = run.key.replace("cold:", "fill:")
    if key not in session.filled:
        fill(session, type(run).parse(key))
    share = COLD_BYTES / (FILL_BYTES * len(side.pids))
    ledgers = session.filled.pop(key)
    chosen = ledgers[: max(1, round(share * len(ledgers)))]
    request = {**session.request(run), "load": "random", "ledgers": chosen, "outstanding": 64, "warm": 2}
    loader = session.loaders[run.client]
    if isinstance(side, ApacheSide):
        side.restart(COLD_READS)
        loader.ask({**request, "warm": COMPILED_S, "seconds": 1, "seed": 2}, session.folder)
    dropped = drop_caches()
    figures = loader.ask(request, session.folder, side.pids, session.beside(side))
    if isinstance(side, ApacheSide):
        side.restart({})
        session.cooled(side.name)
    session.discard(run, ledgers)
    return {**figures, "dropped": dropped}


@contextlib.contextmanager
def solo(session: Session, run: Run) -> Iterator[Side]:
    """Yield a side with one new bookie, which is removed at the end of the block."""
    folder = session.folder / f"{run.case}-{run.bookies}"
    kind = ApacheSide if run.bookies == "apache" else OurSide
    side = kind(session.zookeeper.address, folder, bookies=1)
    side.start()
    try:
        yield side
    finally:
        session.loaders.forget(side.uri)
        side.close()


def idle(session: Session, run: Run) -> Figures:
    """Measure a bookie that has started and is idle."""
    with solo(session, run) as side:
        time.sleep(IDLE_S)
        return {"rss_mb": round(memory(side.pids[0])["rss"] / 1e6, 1)}


def million(session: Session, run: Run) -> Figures:
    """Measure the peak memory with an entry in each of a million ledgers, and a second one in some at random."""
    with solo(session, run) as side:
        host, port, order = side.hosts[0], side.ports[0], list(range(session.part(MILLION)))
        began = time.monotonic()
        refused = add_entry(port, order, host=host)
        again = random.Random(1).sample(order, len(order) // 5)
        refused += add_entry(port, again, 1, host=host)
        took = time.monotonic() - began
        found = memory(side.pids[0])
        return {
            "rss_mb": round(found["peak"] / 1e6, 1),
            "rss_mb_after": round(found["rss"] / 1e6, 1),
            "per_s": round((len(order) + len(again)) / took),
            "refused": refused,
        }


def _first_answer(start: Callable[[], None], port: int, host: str) -> float:
    """Seconds from the start of a process to its first answer."""
    began = time.monotonic()
    start()
    while not answers(port, host):
        if time.monotonic() - began > START_DEADLINE_S:
            raise RuntimeError(f"no answer at {host}:{port} after {START_DEADLINE_S:g} s")
        time.sleep(0.002)
    return time.monotonic() - began


def start(session: Session, run: Run) -> Figures:
    """Start of a bookie on a directory without entries, a few times."""
    took = []
    with solo(session, run) as side:
        bookie, port, host = side.bookies[0], side.ports[0], side.hosts[0]
        for _ in range(STARTS):
            bookie.stop()
            settle(session.folder)
            took.append(_first_answer(bookie.start, port, host))
            bookie.wait_ready()
    return {"seconds": round(statistics.median(took), 3), "lowest": round(min(took), 3), "highest": round(max(took), 3)}


def restart(session: Session, run: Run) -> Figures:
    """Start after kill -9 in the middle of a load, with 20 GB on the bookie and nothing in the page cache."""
    check_room(session)
    with solo(session, run) as side:
        bookie, port, host = side.bookies[0], side.ports[0], side.hosts[0]
        load = {"uri": side.uri, "load": "fill", "ledgers": FILL_LEDGERS, "e": 1, "qw": 1, "qa": 1}
        began = time.monotonic()
        session.loaders["ours"].ask({**load, "entries": session.part(RESTART_BYTES) // ENTRY}, session.folder)
        filled = time.monotonic() - began
        command = [sys.executable, "-m", "buckram", "bench", "write", "--metadata", side.uri]
        writer = subprocess.Popen(
            [*command, "--ensemble", "1/1/1", "--seconds", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(5)
            bookie.kill()
        finally:
            writer.kill()
            writer.wait()
        dropped = drop_caches()
        took = _first_answer(bookie.start, port, host)
        bookie.wait_ready()
        return {
            "seconds": round(took, 3),
            "fill_seconds": round(filled, 1),
            "dropped": dropped,
            "rss_mb": round(memory(side.pids[0])["peak"] / 1e6, 1),
        }


ONCE: dict[str, Callable[[Session, Run], Figures]] = {
    one.__name__: one for one in (tail, start, idle, million, restart, fill, cold)
}
"""Measurements by case, in the order in which they are made: those that fill the disk come last."""
FILLING = ("fill", "cold")
"""The second reads what the first wrote."""
