"""One function a case; each starts its own cluster, so each can be run alone. Figures are plain numbers in JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.harness import Bench, cluster, last_json
from bench.machine import Watch, cpu_seconds, drop_caches, memory
from bench.machines import helpers
from buckram import connect

Figures = dict[str, Any]
Case = Callable[[], Figures]
CASES: dict[str, Case] = {}
GIB = 1024**3
ENTRY = 1024
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
GROWING_GIB = float(os.environ.get("BENCH_GROWING_GIB", "10"))
RESTART_GIB = float(os.environ.get("BENCH_RESTART_GIB", "5"))


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def _written(bench: Bench, replicas: int = 3, **options: object) -> Figures:
    """A write load with what it cost: CPU of the bookies an add, bytes on the disk a payload byte and replica."""
    cpu, before = [cpu_seconds(pid) for pid in bench.pids], _stored_entries(bench)
    with Watch(bench.folder, [*bench.pids, *helpers()]) as watch:
        figures = bench.write(**options)
    figures.pop("ledgers", None)
    # Not `acked`: the generator's warm-up went to the disk as well.
    everything = _stored_entries(bench) - before
    spent = sum(cpu_seconds(pid) for pid in bench.pids) - sum(cpu)
    return {
        **figures,
        "bookie_cpu_us_per_add": round(spent / max(1, everything) / len(bench.pids) * 1e6, 2),
        "disk_bytes_per_byte": round(watch.disk_bytes / max(1, everything * ENTRY * replicas), 3),
        "foreign_cpu": watch.foreign_share,
    }


def _stored_entries(bench: Bench) -> int:
    """Entries in all closed ledgers, the warm-up's included."""
    listed = bench.run("ledger", "list")["ledgers"]
    return sum((ledger["last_entry"] or 0) + 1 for ledger in listed)


@case
def one_ledger() -> Figures:
    """One writer at full speed."""
    with cluster() as bench:
        return _written(bench, ledgers=1, seconds=SECONDS)


@case
def hundred_ledgers() -> Figures:
    """A hundred writers in one process, each on a ledger of its own."""
    with cluster() as bench:
        return _written(bench, ledgers=100, seconds=SECONDS)


@case
def single_adds() -> Figures:
    """A hundred writers in one process, which appends entries one by one, in turns over their ledgers."""
    with cluster() as bench:
        return _written(bench, ledgers=100, run=1, seconds=SECONDS)


@case
def slow_ledgers() -> Figures:
    """400 ledgers with one append at a time each, at full speed, and with 20 ms between two appends of a ledger."""
    from bench.slow_ledgers import one_at_a_time

    return one_at_a_time()


@case
def raw_adds() -> Figures:
    """CPU of a bookie an add: single entries of a hundred ledgers, v2 and v3; beside the checkout BENCH_BEFORE."""
    from bench.raw_adds import raw_adds

    return raw_adds()


@case
def paced() -> Figures:
    """5,000 adds/s to one ledger; latency from the moment each was due."""
    with cluster() as bench:
        return _written(bench, ledgers=1, rate=5000, seconds=max(20.0, SECONDS))


@case
def sequential_read() -> Figures:
    """One reader through a closed ledger of a million entries, and single entries at random places."""
    with cluster() as bench:
        ledger = bench.write(ledgers=1, seconds=6)["ledgers"][0]
        figures = {"sequential": bench.run("bench", "read", "--ledger", ledger)}
        figures["random"] = bench.run("bench", "read", "--ledger", ledger, "--random")
        flat = {f"{kind}_{name}": value for kind, values in figures.items() for name, value in values.items()}
        return {"entries_per_s": flat["sequential_entries_per_s"], **flat}


@case
def catch_up() -> Figures:
    """A writer alone, at full speed and paced, and beside a reader of old entries that reads no files itself."""
    with cluster() as bench:
        old = bench.write(ledgers=1, seconds=6)["ledgers"][0]
        loads: dict[str, Figures] = {"full": {"seconds": SECONDS}, "paced": {"seconds": SECONDS, "rate": 5000}}
        figures: Figures = {}
        for name, load in loads.items():
            alone = bench.write(ledgers=1, **load)
            with reading(bench, old) as speeds:
                beside = bench.write(ledgers=1, **load)
            figures[f"{name}_share"] = round(beside["adds_per_s"] / alone["adds_per_s"], 3)
            figures[f"{name}_p99_ms_alone"], figures[f"{name}_p99_ms"] = alone["p99_ms"], beside["p99_ms"]
            figures[f"{name}_read_per_s"] = round(statistics.median(speeds))
        return figures


@case
def growing_store() -> Figures:
    """Bytes on the disk for each acknowledged byte and replica, at full speed, over BENCH_GROWING_GIB a replica."""
    with cluster() as bench:
        figures: Figures = {}
        speeds: list[int] = []
        stored = 0
        with Watch(bench.folder, [*bench.pids, *helpers()]) as watch:
            while stored < GROWING_GIB * GIB:
                figures = bench.write(ledgers=1, seconds=15)
                speeds.append(figures["adds_per_s"])
                stored = _stored_entries(bench) * ENTRY
        return {
            "disk_bytes_per_byte": round(watch.disk_bytes / (3 * stored), 3),
            "appended_gib_per_replica": round(stored / GIB, 2),
            "adds_per_s_first": speeds[0],
            "adds_per_s_last": speeds[-1],
            "p99_ms_last": figures["p99_ms"],
            "max_rss_mb": round(max(memory(pid)["peak"] for pid in bench.pids) / 1e6, 1),
            "foreign_cpu": watch.foreign_share,
        }


@case
def footprint_paced() -> Figures:
    """Bytes on the disk for each byte at 5,000 adds/s, where groups are small."""
    with cluster() as bench:
        return _written(bench, ledgers=1, rate=5000, seconds=30)


@case
def footprint_compaction() -> Figures:
    """The same with every second ledger deleted and the bookies rewriting their files meanwhile."""
    quick = {"BUCKRAM_BOOKIE_COLLECTION_INTERVAL_S": "1", "BUCKRAM_BOOKIE_COLLECTION_AGE_S": "2"}
    with cluster(environment=quick) as bench:
        ledgers = bench.write(ledgers=100, seconds=10)["ledgers"]
        before = sum(_size(bookie.directory) for bookie in bench.bookies)
        asyncio.run(_delete(bench.uri, ledgers[::2] + random.sample(ledgers[1::2], 20)))
        figures = _written(bench, ledgers=1, rate=5000, seconds=40)
        after = sum(_size(bookie.directory) for bookie in bench.bookies)
        return {**figures, "store_mb_before": round(before / 1e6), "store_mb_after": round(after / 1e6)}


async def _delete(uri: str, ledgers: list[int]) -> None:
    async with connect(uri) as client:
        for ledger in ledgers:
            await client.delete(ledger)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # compaction removes files while we look
            total += path.stat().st_blocks * 512
    return total


@case
def idle_bookie() -> Figures:
    """Memory of a bookie that has just started and does nothing."""
    with cluster(1) as bench:
        time.sleep(3)
        return {"rss_mb": round(memory(bench.pids[0])["rss"] / 1e6, 1)}


@case
def overload() -> Figures:
    """Ten clients overload one bookie with adds and reads; four of them never read an answer."""
    with cluster(1) as bench:
        ready = bench.bookies[0].ready
        assert ready is not None
        command = [sys.executable, "-m", "bench.overload", bench.uri, ready.host, str(ready.port), str(SECONDS)]
        figures = last_json(command)
        peak = memory(bench.pids[0])["peak"]
        again = bench.write(ensemble="1/1/1", ledgers=1, rate=1000, seconds=3)
        return {"peak_rss_mb": round(peak / 1e6, 1), **figures, "p99_ms_after": again["p99_ms"]}


@case
def restart() -> Figures:
    """Time from the start of a bookie to its ready line, after kill -9 under load with BENCH_RESTART_GIB stored."""
    with cluster(1) as bench:
        bookie = bench.bookies[0]
        while _size(bookie.directory) < RESTART_GIB * GIB:
            bench.write(ensemble="1/1/1", ledgers=1, seconds=5)
        command = [sys.executable, "-m", "buckram", "bench", "write", "--metadata", bench.uri]
        with _background([*command, "--ensemble", "1/1/1", "--seconds", "60"]):
            time.sleep(3)
            bookie.kill()
        size = _size(bookie.directory)
        cold = drop_caches()
        began = time.monotonic()
        bookie.start()
        bookie.wait_ready()
        return {"seconds": round(time.monotonic() - began, 2), "store_gib": round(size / GIB, 2), "cold_cache": cold}


@case
def zookeeper() -> Figures:
    """Ledgers created by one client on an embedded ZooKeeper, 100,000 of them listed, a bookie started."""
    from bench.zookeeper import measure

    return measure()


@case
def metadata_service() -> Figures:
    """Metadata through a bookie beside the embedded store opened directly: reads, changes, many at once."""
    from bench.security import metadata_service

    return metadata_service()


@case
def gateway() -> Figures:
    """Appends over HTTP from 8 connections in batches of 100, single ones at 500/s, and 1,000 tails of one stream; the
    console's overview with 100,000 ledgers, and scrapes of metrics while adds go on."""
    from bench import console
    from bench.gateway import measure

    return {**measure(SECONDS), **console.measure(SECONDS)}


@case
def tls() -> Figures:
    """One writer at full speed through TCP: in clear, and with TLS, tokens and grants."""
    from bench.security import tls

    return tls()


@case
def tls_java() -> Figures:
    """One writer at full speed through TLS: Apache's client on Apache's bookies, and ours on ours, in turns."""
    from bench.tls_java import measure

    return measure()


@case
def tracing() -> Figures:
    """CPU an add where one append in a hundred is traced, beside nothing of it."""
    from bench.tracing import tracing

    return tracing()


@case
def tenants_unreached() -> Figures:
    """CPU an add with tokens, grants and quotas that are not reached, beside bookies without; what a login costs."""
    from bench.security import tenants_unreached

    return tenants_unreached()


@case
def scale_ledgers() -> Figures:
    """Cost of an add on a bookie that has seen 1,000 to 1,000,000 ledgers (BENCH_SCALE_LEDGERS)."""
    from bench import scale

    return scale.ledgers()


@case
def scale_connections() -> Figures:
    """Cost of an add on a bookie with 10 to 1,000 connections (BENCH_SCALE_CONNECTIONS)."""
    from bench import scale

    return scale.connections()


@case
def deletion() -> Figures:
    """Paced writing while a bookie drops BENCH_DELETED (100,000) deleted ledgers, and alone."""
    from bench import scale

    return scale.deletion()


@case
def neighbours() -> Figures:
    """p99 of one tenant's paced adds alone, and beside one that writes and reads at full speed; Apache's too."""
    from bench import neighbours

    return neighbours.neighbours()


@case
def scale_store() -> Figures:
    """Cost of an add on a bookie with 1 to 20 GB of data (BENCH_SCALE_GB)."""
    from bench import scale

    return scale.stored()


@case
def stream_append_many() -> Figures:
    """One stream, one writer: 100 B records with append_many."""
    return _streams("append_many")


@case
def stream_append_nowait() -> Figures:
    """The same, record by record, with append_nowait."""
    return _streams("append_nowait")


@case
def stream_read() -> Figures:
    """One reader through five million records: in batches, their values, and one by one."""
    return _streams("read")


@case
def stream_tail() -> Figures:
    """5,000 records/s: from when each was due to a tailing reader, and to its acknowledgement."""
    return _streams("tail")


@case
def stream_many() -> Figures:
    """A thousand streams (BENCH_STREAMS) written at once by one process."""
    return _streams("many_streams")


@case
def stream_roll() -> Figures:
    """A record every millisecond while the stream rolls every second."""
    return _streams("rolling")


@case
def machine() -> Figures:
    """A replicated state machine: commands of 64 clients, reads of each consistency, a take-over."""
    from bench.replicated import machine

    return machine()


@case
def objects() -> Figures:
    """Objects: puts of 1 KB by 64 tasks, and one of BENCH_OBJECT_MB (1,000) megabytes put and got."""
    from bench.objects import objects

    return objects()


@case
def databases() -> Figures:
    """SQL databases: inserts of one client and of 64, bytes of log, a follower's reads and lag."""
    from bench.databases import databases

    return databases()


@case
def databases_large() -> Figures:
    """A SQL database of BENCH_DATABASE_MB (1,000): written, and copied by a follower with an empty disk."""
    from bench.databases import large

    return large()


@case
def databases_idle_writer() -> Figures:
    """63 writers beside one that does nothing inside BEGIN IMMEDIATE: how long they wait, how many get SQLITE_BUSY."""
    from bench.database_faults import idle_writer

    return idle_writer()


@case
def databases_take_over() -> Figures:
    """Time from kill -9 of a database's leader under load to the first commit of the next one, three times."""
    from bench.database_faults import take_over

    return take_over()


@case
def databases_asleep() -> Figures:
    """BENCH_DATABASES (10,000) databases of one server, all asleep: its memory, open ledgers, the first query."""
    from bench.database_fleet import fleet

    return fleet()


@case
def databases_beside() -> Figures:
    """SQL databases, inserts of one client and of 64: ours in the process, ours over HTTP, three nodes of rqlite."""
    from bench.rqlite import sides

    return sides()


@case
def object_names() -> Figures:
    """The index of BENCH_OBJECT_NAMES (1,000,000) names: memory, pages of a list, a renamed directory, a snapshot."""
    from bench.objects import names

    return names()


@case
def stream_long() -> Figures:
    """A stream of 100,000 segments (BENCH_SEGMENTS): opened, read at its end, truncated."""
    return _streams("long_stream")


@case
def spark_scan() -> Figures:
    """Spark reads a stream of BENCH_SPARK_MB megabytes, 100 B and 1 KB a record, and the same rows from Parquet."""
    return _spark("scan")


@case
def spark_stream() -> Figures:
    """A streaming query (availableNow) over 100 B records into nothing, and what a tiny micro-batch takes."""
    return _spark("stream")


@case
def spark_scrub() -> Figures:
    """The scrub job over streams of BENCH_SPARK_MB megabytes each, three replicas; CPU of Spark and of the bookies."""
    from bench import spark_jobs

    figures: Figures = spark_jobs.scrub()
    return figures


@case
def spark_write() -> Figures:
    """Spark writes BENCH_SPARK_MB of 1 KB rows from Parquet, E=1 and E=3; a streaming query writes another stream."""
    from bench import spark_write as write

    figures: Figures = write.run()
    return figures


@case
def checkpoint() -> Figures:
    """A micro-batch with its checkpoint and state on a gateway and in a local directory, both state stores."""
    from bench import spark_checkpoint

    figures: Figures = spark_checkpoint.run()
    return figures


@case
def state_restore() -> Figures:
    """State of BENCH_STATE_MIB (1024) is there again after a restart: from a gateway, and from a local directory."""
    from bench import spark_restore

    figures: Figures = spark_restore.run()
    return figures


@case
def heal_bytes() -> Figures:
    """One worker copies BENCH_HEAL_GIB (6) in 1,000 ledgers of a lost bookie, no rate limit; a plain copy beside it."""
    return _healing("large")


@case
def heal_small() -> Figures:
    """One worker copies 10,000 small ledgers (BENCH_HEAL_SMALL) of a lost bookie: metadata in SQLite, in ZooKeeper."""
    return _healing("small")


@case
def heal_foreground() -> Figures:
    """p99 of 5,000 adds/s while copies are made at the default rate, and alone, in turns."""
    return _healing("foreground")


@case
def heal_detect() -> Figures:
    """Time from the kill of a bookie to the first copied byte, without a delay."""
    return _healing("detect")


@case
def heal_memory() -> Figures:
    """One worker copies one ledger of BENCH_HEAL_LEDGER_GIB (3): its memory."""
    return _healing("memory_of_worker")


@case
def heal_java() -> Figures:
    """The same 1,000 ledgers made whole by Apache's auditor and worker on its bookies, and by ours on ours."""
    from bench import healing_java

    return healing_java.measure()


@case
def offload() -> Figures:
    """History of BENCH_HISTORY_MIB (512): offload, export, reading beside plain Parquet, verification, imports."""
    from bench.history import offload

    return offload()


@case
def replicate() -> Figures:
    """BENCH_REPLICATE_MIB (512) copied into another local cluster; the lag of a mirror at 5,000 records a second."""
    from bench.replication import replicate

    return replicate()


@case
def audit_many() -> Figures:
    """An audit of BENCH_AUDIT_SQLITE (1,000,000) ledgers in SQLite, of BENCH_AUDIT_ZOOKEEPER (100,000) in ZooKeeper."""
    from bench import audits

    return audits.measure()


def _healing(what: str) -> Figures:
    from bench import healing

    figures: Figures = getattr(healing, what)()
    return figures


def _spark(what: str) -> Figures:
    from bench import spark_read

    figures: Figures = spark_read.run(what)
    return figures


def _streams(load: str) -> Figures:
    from bench import streams

    figures: Figures = streams.measure(getattr(streams, load))
    return figures


@contextlib.contextmanager
def reading(bench: Bench, ledger: int) -> Iterator[list[float]]:
    """A client of its own reads the ledger again and again; entries a second of each pass."""
    speeds, over = list[float](), threading.Event()
    sockets = {**os.environ, "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}

    def passes() -> None:
        while not over.is_set():
            speeds.append(bench.run("bench", "read", "--ledger", ledger, environment=sockets)["entries_per_s"])

    reader = threading.Thread(target=passes)
    reader.start()
    try:
        yield speeds
    finally:
        over.set()
        reader.join()


@contextlib.contextmanager
def _background(command: list[str]) -> Any:
    import subprocess

    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()
