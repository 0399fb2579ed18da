"""Cost of security: metadata through a bookie compared with the store itself, adds and connections through TLS compared
with clear text, and adds where bookies require logins and check grants, and quotas that are not reached."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.harness import Bench, cluster, data_root
from bench.machine import Watch, cpu_seconds
from bench.machines import LOOPBACK, apart, bookie_place, helpers
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.uri import open_store
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.runtime.net.security.logins import TOKEN_VARIABLE, secured_by
from buckram.runtime.net.tcp import TcpNetwork

KEYS = 300
READS = int(os.environ.get("BENCH_METADATA_READS", "3000"))
SECONDS = os.environ.get("BENCH_SECONDS", "15")
PACED, STEADY = 1000, 30_000
CONNECTS = 200
ROUNDS = 4
KNOWN_S = 4.0
"""Seconds after which bookies know new grants and quotas."""
ASKING = {"BUCKRAM_AUTH_LOGINS": "token", "BUCKRAM_AUTH_AUTHORISATION": "on"}


def metadata_service() -> dict[str, Any]:
    """Return microseconds an operation, directly and through the bookie, by the clock and of CPU (of the client and the
    bookie together), and how many times the direct ones that is. Pairs, one after the other, so that both have the same
    machine. Between machines the store is ZooKeeper, because another machine's SQLite file cannot be opened."""
    with cluster(bookies=1, metadata="zookeeper" if apart() else "sqlite") as bench:
        ready, pid = bench.bookies[0].ready, bench.bookies[0].pid
        assert ready is not None
        served = f"buckram://{ready.host}:{ready.port}/"
        with Watch(None, bench.pids) as watch:
            rounds = [(asyncio.run(_load(bench.uri, pid)), asyncio.run(_load(served, pid))) for _ in range(3)]
    figures: dict[str, Any] = {"foreign_cpu": watch.foreign_share}
    for name in rounds[0][0]:
        for place, what in enumerate(("", "_cpu")):
            direct, through = (statistics.median(pair[side][name][place] for pair in rounds) for side in (0, 1))
            figures |= {f"{name}{what}_us": round(direct, 1), f"{name}_served{what}_us": round(through, 1)}
            figures[f"{name}{what}_times"] = round(through / direct, 2) if direct else None
    return figures


async def _load(uri: str, pid: int) -> dict[str, tuple[float, float]]:
    store = await open_store(uri)
    keys, base = store.keys, f"/buckram/bench-{time.monotonic_ns()}"

    async def timed(count: int, operation: Callable[[int], Awaitable[object]], each: int = 1) -> tuple[float, float]:
        return await _timed(count, operation, pid, each)

    try:
        return {
            "create": await timed(KEYS, lambda n: keys.create(f"{base}/{n}", b"v" * 200)),
            "get": await timed(READS, lambda n: keys.get(f"{base}/{n % KEYS}")),
            "set": await timed(KEYS, lambda n: keys.set(f"{base}/{n}", b"w" * 200, 0)),
            "get_100_at_once": await timed(
                READS // 100, lambda n: asyncio.gather(*(keys.get(f"{base}/{one}") for one in range(100))), each=100
            ),
            "delete_100_at_once": await timed(
                KEYS // 100,
                lambda n: asyncio.gather(*(keys.delete(f"{base}/{one}", 1) for one in range(100 * n, 100 * n + 100))),
                each=100,
            ),
        }
    finally:
        await store.close()


async def _timed(
    count: int, operation: Callable[[int], Awaitable[object]], pid: int, each: int = 1
) -> tuple[float, float]:
    """Return microseconds of each operation: by the clock, and of CPU of this process and the bookie."""
    began, spent = time.perf_counter(), time.process_time() + cpu_seconds(pid)
    for number in range(count):
        await operation(number)
    took, cpu = time.perf_counter() - began, time.process_time() + cpu_seconds(pid) - spent
    return took / count / each * 1e6, cpu / count / each * 1e6


def tls() -> dict[str, Any]:
    """Adds a second, their CPU, p99 of paced ones and the time to connect. TCP on both sides: a Unix socket would need
    no TLS. The settings of the secured side are those of `up --secure`."""
    figures: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="authority-", dir=data_root()))
    try:
        for name, settings in (("clear", {}), ("secure", {**ASKING, **_certified(folder)})):
            with cluster(environment={**_environment(), **settings}) as bench:
                known = {"BUCKRAM_SOCKETS": "tcp"}
                if settings:
                    known |= {"BUCKRAM_CA": settings["BUCKRAM_TLS_CA"], TOKEN_VARIABLE: asyncio.run(_grant(bench.uri))}
                figures |= {f"{name}_{what}": value for what, value in _through(bench, known).items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def _certified(folder: Path) -> dict[str, str]:
    """Settings of bookies that speak TLS only, with a certificate of an authority that is made here."""
    authority = Authority(folder)
    server = authority.bookie("bookie", sorted({LOOPBACK, *(bookie_place(number).host for number in range(3))}))
    files = {"CA": authority.certificate, "CERTIFICATE": server.certificate, "KEY": server.key}
    return {"BUCKRAM_TLS_MODE": "required"} | {f"BUCKRAM_TLS_{name}": str(path) for name, path in files.items()}


def _through(bench: Bench, known: Mapping[str, str]) -> dict[str, Any]:
    """Measure one writer at full speed and a paced one, and the time to connect. `known`: settings of the client."""
    environment = {**os.environ, **known}
    load = ("bench", "write", "--ledgers", 1, "--size", 1024, "--ensemble", "3/3/2", "--seconds", SECONDS)
    before = sum(map(cpu_seconds, bench.pids))
    with Watch(None, [*bench.pids, *helpers()]) as watch:
        written = bench.run(*load, environment=environment)
        spent = sum(map(cpu_seconds, bench.pids)) - before
        paced = bench.run(*load, "--rate", PACED, environment=environment)
    return {
        "adds_per_s": written["adds_per_s"],
        "client_cpu_us_per_add": written["client_cpu_us_per_add"],
        "bookie_cpu_us_per_add": round(spent / max(1, written["acked"]) / len(bench.pids) * 1e6, 2),
        "paced_p50_ms": paced["p50_ms"],
        "paced_p99_ms": paced["p99_ms"],
        "connect_ms": asyncio.run(_connects(bench, known)),
        "foreign_cpu": watch.foreign_share,
    }


async def _connects(bench: Bench, known: Mapping[str, str]) -> float:
    """Median milliseconds to connect to a bookie, with the TLS and the login that the settings name, on both sides."""
    ready = bench.bookies[0].ready
    assert ready is not None
    network = secured_by({name: value for name, value in known.items() if name != TOKEN_VARIABLE},
                         TcpNetwork(local=False), token=known.get(TOKEN_VARIABLE, ""))  # fmt: skip
    times: list[float] = []
    for _ in range(CONNECTS):
        began = time.perf_counter()
        transport, _ = await network.connect(ready.host, ready.port, asyncio.Protocol)
        times.append(time.perf_counter() - began)
        transport.abort()
    return round(statistics.median(times) * 1000, 3)


def tenants_unreached() -> dict[str, Any]:
    """CPU an add where bookies ask for tokens and hold to grants and quotas that are not reached, beside bookies that
    do none of it; and what a login adds to a connection. In turns, so that both have the same machine."""
    with cluster() as plain, cluster(environment=ASKING, machines_before=3) as asking:
        token = asyncio.run(_grant(asking.uri))
        figures = compared("plain", (plain, {}), "asking", (asking, {TOKEN_VARIABLE: token}))
    figures["login_ms"] = round(figures["asking_connect_ms"] - figures["plain_connect_ms"], 3)
    return figures


Side = tuple[Bench, Mapping[str, str]]
"""A cluster, and the environment of its clients."""


def compared(base_name: str, base: Side, other_name: str, other: Side) -> dict[str, Any]:
    """Compare the cost of adds on two clusters, in turns, so that both have the same machine."""
    sides = {base_name: base, other_name: other}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with Watch(None, [*base[0].pids, *other[0].pids]) as watch:
        for number in range(ROUNDS):
            # In turns: what one leaves to the disk must not always be the other's.
            for name, (bench, known) in sorted(sides.items(), reverse=bool(number % 2)):
                runs[name].append(_cost(bench, known))
    figures: dict[str, Any] = {"foreign_cpu": watch.foreign_share}
    for figure in ("adds_per_s", "client_cpu_us_per_add", "bookie_cpu_us_per_add", "connect_ms"):
        both = {name: statistics.median(run[figure] for run in found) for name, found in runs.items()}
        figures |= {f"{name}_{figure}": round(value, 3) for name, value in both.items()}
        if figure.endswith("cpu_us_per_add"):
            figures[f"{figure}_times"] = round(both[other_name] / max(both[base_name], 1e-9), 3)
    return figures


def _cost(bench: Bench, known: Mapping[str, str]) -> dict[str, float]:
    """Measure a write load of one ledger: the cost of an add, and the time to connect. It is paced, because the cost of
    an add depends on the size of its batch."""
    before = sum(map(cpu_seconds, bench.pids))
    load = ("--ledgers", 1, "--size", 1024, "--ensemble", "3/3/2", "--rate", STEADY, "--seconds", float(SECONDS) / 3)
    written = bench.run("bench", "write", *load, environment={**_environment(), **known})
    spent = sum(map(cpu_seconds, bench.pids)) - before
    cpu = spent / max(1, written["acked"]) / len(bench.pids) * 1e6
    return {**written, "bookie_cpu_us_per_add": cpu, "connect_ms": asyncio.run(_connects(bench, known))}


async def _grant(uri: str) -> str:
    """Return a token that may use namespace `default`, and set quotas of it that are not reached; bookies know both
    afterwards."""
    store = await open_store(uri)
    try:
        security, now = SecurityStore(store), time.time()
        await security.change_acl(lambda acl: acl.granting("token:bench", "default", ("read", "append", "create")))
        far = {"stored_bytes": 1 << 50, "in_bytes_per_s": 1 << 40, "in_entries_per_s": 1 << 40}
        await TenantStore(store).set_quotas("default", far)
        token = (await security.create_token("bench", (), now, now + 86_400))[1]
        await asyncio.sleep(KNOWN_S)
        return token
    finally:
        await store.close()


def _environment() -> Mapping[str, str]:
    return {**os.environ, "BUCKRAM_SOCKETS": "tcp"}
