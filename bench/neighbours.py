"""Two tenants on three bookies: one writes at full speed and reads cold data, the other's adds are paced.

Measured in turns: the paced one alone, beside the greedy one while bookies count usage (tenants take turns and large
ones give way), and beside it without that. Then the same two on Apache's bookies, which know no tenants.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Bench, cluster, data_root
from bench.java.sides import ApacheSide
from bench.machine import drop_caches
from bench.machines import zookeeper
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.uri import open_store

RATE = 1000
SECONDS = os.environ.get("BENCH_NEIGHBOURS_SECONDS", "10")
ROUNDS = int(os.environ.get("BENCH_NEIGHBOURS_ROUNDS", "3"))
COLD_S = os.environ.get("BENCH_NEIGHBOURS_COLD_S", "10")
SOCKETS = {"BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}
"""Environment that makes reads go through the bookies: a client that reads their files disturbs no neighbour."""


def neighbours() -> dict[str, Any]:
    """p99 of 1,000 adds/s alone, beside a greedy tenant, and beside it without turns; alone and beside on Apache's."""
    names = ("alone", "beside", "without_turns", "apache_alone", "apache_beside")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with cluster() as bench:
        cold = bench.write(ledgers=1, seconds=COLD_S, namespace="greedy")["ledgers"][0]
        for _ in range(ROUNDS):
            found["alone"].append(_paced(bench))
            asyncio.run(_count(bench.uri, wanted=False))
            found["without_turns"].append(_beside(bench, cold))
            asyncio.run(_count(bench.uri, wanted=True))
            found["beside"].append(_beside(bench, cold))
    with _apache() as bench:
        cold = bench.write(ledgers=1, seconds=COLD_S, namespace="greedy")["ledgers"][0]
        for _ in range(ROUNDS):
            found["apache_alone"].append(_paced(bench))
            found["apache_beside"].append(_beside(bench, cold))
    figures: dict[str, Any] = {}
    for name, runs in found.items():
        for share in ("p50_ms", "p99_ms", "p999_ms"):
            figures[f"{name}_{share}"] = round(statistics.median(run[share] for run in runs), 3)
        figures[f"{name}_adds_per_s"] = round(statistics.median(run["adds_per_s"] for run in runs))
        if not name.endswith("alone"):
            figures[f"{name}_greedy_adds_per_s"] = round(statistics.median(run["greedy_adds_per_s"] for run in runs))
    for side in ("", "apache_"):
        alone = max(figures[f"{side}alone_p99_ms"], 1e-3)
        figures[f"{side}beside_p99_times"] = round(figures[f"{side}beside_p99_ms"] / alone, 2)
    _plot(found, Path(os.environ.get("BENCH_PLOTS", "bench-results")))
    return figures


@contextmanager
def _apache() -> Iterator[Bench]:
    """Apache's three bookies on a ZooKeeper."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    try:
        with zookeeper(folder / "zookeeper") as address:
            side = ApacheSide(address, folder / "apache")
            try:
                side.start()
                yield Bench(folder, side.uri, [])
            finally:
                side.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _paced(bench: Bench) -> dict[str, Any]:
    return bench.write(ledgers=1, rate=RATE, seconds=SECONDS, namespace="modest")


def _beside(bench: Bench, cold: int) -> dict[str, Any]:
    drop_caches()
    with _greedy(bench, cold) as greedy:
        paced = _paced(bench)
    return {**paced, "greedy_adds_per_s": greedy.get("adds_per_s", 0)}


@contextmanager
def _greedy(bench: Bench, cold: int) -> Iterator[dict[str, Any]]:
    """Run the greedy tenant during the block: one process writes four ledgers at full speed, one reads a ledger again
    and again."""
    figures: dict[str, Any] = {}
    command = [sys.executable, "-m", "buckram", "bench"]
    more = ["--metadata", bench.uri, "--json"]
    seconds = str(1.5 * float(SECONDS) + 3)
    writing = ["write", "--ledgers", "4", "--size", "1024", "--seconds", seconds, "--namespace", "greedy"]
    writer = subprocess.Popen([*command, *writing, *more], stdout=subprocess.PIPE)
    loop = 'while true; do "$@" > /dev/null; done'
    reading = [*command, "read", "--ledger", str(cold), *more]
    reader = subprocess.Popen(["sh", "-c", loop, "sh", *reading], env={**os.environ, **SOCKETS}, start_new_session=True)
    try:
        yield figures
    finally:
        os.killpg(reader.pid, 15)
        reader.wait()
        out, _ = writer.communicate()
        figures.update(json.loads(out.decode().strip().splitlines()[-1]))


async def _count(uri: str, *, wanted: bool) -> None:
    """Turn the bookies' counting and turn-taking on or off, and wait until they have noticed."""
    store = await open_store(uri)
    try:
        if wanted:
            await TenantStore(store).turn_on()
        else:
            await TenantStore(store).turn_off()
        await asyncio.sleep(4)
    finally:
        await store.close()


def _plot(found: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Bars of p50 and p99, with logarithmic milliseconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    labels = {
        "alone": "alone",
        "beside": "beside a\ngreedy tenant",
        "without_turns": "beside it,\nwithout turns",
        "apache_alone": "Apache's,\nalone",
        "apache_beside": "Apache's,\nbeside it",
    }
    figure, axes = plt.subplots(figsize=(7.4, 4.0), layout="constrained")
    for at, share in enumerate(("p50_ms", "p99_ms")):
        heights = [statistics.median(run[share] for run in found[name]) for name in labels]
        axes.bar([place + at * 0.4 for place in range(len(labels))], heights, 0.4, label=share.removesuffix("_ms"))
    axes.set_xticks([place + 0.2 for place in range(len(labels))], list(labels.values()))
    axes.set_yscale("log")
    axes.set_ylabel("ms from when an add was due")
    axes.set_title(f"{RATE:,} adds/s of one tenant, 1 KB, E=3")
    axes.grid(alpha=0.3, axis="y")
    axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "bench-neighbours.png", dpi=100, metadata={"Software": None})
    plt.close(figure)
