"""SQL databases side by side: ours in the process and over HTTP, and rqlite over HTTP, three nodes with its defaults.

The same statements, and the same HTTP client on both. rqlite is built by Go (a few minutes the first time) from the
version below; BENCH_RQLITED names a program that is there already. Where there is neither, its figures are missing, and
standard error says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.databases import CLIENTS, CREATE, INSERT, SECONDS, text
from bench.harness import Bench, cluster
from bench.machine import Watch
from bench.machines import helpers
from bench.rates import Call, rate
from bench.served import Connection, connections, served
from buckram import connect
from buckram.runtime.process.process_setup import loop_factory

Figures = dict[str, Any]
VERSION = "v8.36.0"
MODULE = f"github.com/rqlite/rqlite/v8@{VERSION}"
SUM = "h1:J3Q6aZhZjsTQZm3qTfrcxiPfAAm3Ze2BYKoroodtnXE="
"""Checksum of the measured module, from `go mod download -json`."""
NODES = 3
BUILD_S, READY_S = 1800.0, 60.0


class Missing(Exception):
    """rqlite cannot be had here."""


def sides() -> Figures:
    """Ours first, then rqlite on the same disk."""
    with cluster() as bench:
        with Watch(None, [*bench.pids, *helpers()]) as ours:
            figures = _run(_ours(bench)) | _run(_ours_over_http(bench))
        try:
            program = find()
        except Missing as reason:
            print(f"NO FIGURES OF RQLITE: {reason}", file=sys.stderr, flush=True)
            return {**figures, "foreign_cpu": ours.foreign_share}
        for bookie in bench.bookies:
            bookie.stop()
        with Watch(None, helpers()) as theirs, rqlite(program, bench.folder / "rqlite") as nodes:
            figures |= _run(_rqlite(nodes))
        return {**figures, "foreign_cpu": max(ours.foreign_share, theirs.foreign_share)}


def _run(work: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner:
        return runner.run(work)


async def _measured(side: str, insert: Call, servers: Sequence[int]) -> Figures:
    """Measure one client, then 64."""
    await rate(CLIENTS, min(1.0, SECONDS), insert)
    alone = await rate(1, SECONDS / 2, insert, servers)
    many = await rate(CLIENTS, SECONDS / 2, insert, servers)
    return alone.figures(f"{side}_tx", "_alone") | many.figures(f"{side}_tx")


async def _ours(bench: Bench) -> Figures:
    async with connect(bench.uri) as client, client.namespace().database("inside") as db:
        await db.lead()
        await db.execute(CREATE)

        async def insert(number: int) -> None:
            await db.execute(INSERT, (text(),))

        return await _measured("inside", insert, bench.pids)


async def _ours_over_http(bench: Bench) -> Figures:
    with served(bench, "served") as server, connections(server.port, CLIENTS) as clients:

        async def insert(number: int) -> None:
            await clients[number].execute("default/served", INSERT, text())

        await clients[0].execute("default/served", CREATE)
        return await _measured("served", insert, [server.pid, *bench.pids])


# -- rqlite -----------------------------------------------------------------------------------------------


def find() -> Path:
    """Return the program, built if need be. Raises Missing."""
    given = os.environ.get("BENCH_RQLITED")
    if given:
        if not os.access(given, os.X_OK):
            raise Missing(f"BENCH_RQLITED={given}: there is no such program")
        return Path(given)
    program = _cache() / f"rqlited-{VERSION}"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no Go to build it: install Go 1.23 or later, or name a rqlited by BENCH_RQLITED")
    try:
        fetched = json.loads(_go(go, ["mod", "download", "-json", MODULE], Path.cwd()))
        if fetched["Sum"] != SUM:
            raise ValueError(f"it has the checksum {fetched['Sum']}, and {SUM} was measured")
        # `go install` refuses modules with replacements, so it is built where its source is.
        program.parent.mkdir(parents=True, exist_ok=True)
        begun = program.with_name(f"{program.name}-{os.getpid()}")
        _go(go, ["build", "-o", str(begun), "./cmd/rqlited"], Path(fetched["Dir"]))
        begun.rename(program)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        said = getattr(error, "stderr", None) or error
        raise Missing(f"{MODULE} does not build here: {str(said)[-500:]}") from None
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "buckram-bench"


def _go(go: str, words: list[str], folder: Path) -> str:
    print(f"go {' '.join(words)}", file=sys.stderr, flush=True)
    return subprocess.run([go, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=BUILD_S).stdout


@contextlib.contextmanager
def rqlite(program: Path, folder: Path) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Yield three nodes by their HTTP ports. They store data by their defaults."""
    folder.mkdir()
    ports = _free_ports(2 * NODES)
    joined = ",".join(f"127.0.0.1:{port}" for port in ports[NODES:])
    nodes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for number, (http, raft) in enumerate(zip(ports[:NODES], ports[NODES:], strict=True), 1):
            with (folder / f"node-{number}.log").open("wb") as log:
                nodes[http] = subprocess.Popen(
                    [
                        str(program), "-node-id", str(number), "-http-addr", f"127.0.0.1:{http}", "-raft-addr",
                        f"127.0.0.1:{raft}", "-bootstrap-expect", str(NODES), "-join", joined,
                        str(folder / f"node-{number}"),
                    ],
                    stdout=log, stderr=log,
                )  # fmt: skip
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
            node.wait()


def _free_ports(count: int) -> list[int]:
    """Return free ports: rqlite needs its peers' ports before they run."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


async def _rqlite(nodes: dict[int, subprocess.Popen[bytes]]) -> Figures:
    with connections(await _leader(list(nodes)), CLIENTS) as clients:

        async def execute(number: int, sql: str, *values: str) -> None:
            answer = await clients[number].post("/db/execute", [[sql, *values]])
            if "error" in answer["results"][0]:
                raise RuntimeError(str(answer))

        async def insert(number: int) -> None:
            await execute(number, INSERT, text())

        await execute(0, CREATE)
        return await _measured("rqlite", insert, [node.pid for node in nodes.values()])


async def _leader(ports: list[int]) -> int:
    """Return the HTTP port of the node that leads, once all three are there."""
    limit = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(OSError, EOFError, RuntimeError):
            connection = Connection(ports[0])
            try:
                known = await connection.post("/nodes")
            finally:
                connection.close()
            leaders = [node for node in known.values() if node.get("leader") and node.get("reachable")]
            if len(known) == NODES and leaders:
                return int(leaders[0]["api_addr"].rsplit(":", 1)[1])
        if time.monotonic() > limit:
            raise RuntimeError(f"three nodes of rqlite did not find each other within {READY_S:g} s")
        await asyncio.sleep(0.1)
