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
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from bench.databases import CLIENTS, SECONDS, rate, text
from bench.harness import Bench, cluster
from bench.machine import cpu_seconds
from buckram import connect

Figures = dict[str, Any]
VERSION = "v8.36.0"
MODULE = f"github.com/rqlite/rqlite/v8@{VERSION}"
NODES = 3
BUILD_S, READY_S = 1800.0, 60.0
_CREATE = "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)"
_INSERT = "INSERT INTO item (name) VALUES (?)"


class Missing(Exception):
    """rqlite cannot be had here."""


class Connection:
    """HTTP/1.1 to one server, one request at a time, on one connection that stays."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any = None) -> Any:
        """The JSON of the answer; without a body it is a GET. RuntimeError for any status but 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in answer.split("\r\n")[1:] if line)
        found = await reader.readexactly(int(fields.get("content-length", 0)))
        if " 200 " not in answer.split("\r\n", 1)[0]:
            raise RuntimeError(f"{path}: {answer.splitlines()[0]} {found[:200]!r}")
        return json.loads(found) if found[:1] in (b"{", b"[") else found

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def sides() -> Figures:
    """Ours first, then rqlite on the same disk."""
    with cluster() as bench:
        figures = asyncio.run(_ours(bench)) | _ours_over_http(bench)
        try:
            program = find()
        except Missing as reason:
            print(f"NO FIGURES OF RQLITE: {reason}", file=sys.stderr, flush=True)
            return figures
        for bookie in bench.bookies:
            bookie.stop()
        with rqlite(program, bench.folder / "rqlite") as nodes:
            return figures | asyncio.run(_rqlite(nodes))


async def _measured(
    side: str, insert: Callable[[int], Coroutine[Any, Any, object]], cpu: Callable[[], float] | None = None
) -> Figures:
    """One client, then 64. `cpu`: the seconds that the servers have spent."""
    await rate(CLIENTS, min(1.0, SECONDS), insert)
    alone, median, _ = await rate(1, SECONDS / 2, insert)
    before = 0.0 if cpu is None else cpu()
    began = time.perf_counter()
    many, middle, client = await rate(CLIENTS, SECONDS / 2, insert)
    figures = {
        f"{side}_tx_per_s_alone": round(alone), f"{side}_tx_p50_ms_alone": round(median, 2),
        f"{side}_tx_per_s": round(many), f"{side}_tx_p50_ms": round(middle, 2),
        f"{side}_client_cpu_us_per_tx": round(client, 1),
    }  # fmt: skip
    if cpu is not None:
        done = many * (time.perf_counter() - began)
        figures[f"{side}_server_cpu_us_per_tx"] = round((cpu() - before) / done * 1e6, 1)
    return figures


async def _ours(bench: Bench) -> Figures:
    async with connect(bench.uri) as client, client.namespace().database("inside") as db:
        await db.lead()
        await db.execute(_CREATE)

        async def insert(number: int) -> None:
            await db.execute(_INSERT, (text(),))

        return await _measured("inside", insert, lambda: sum(map(cpu_seconds, bench.pids)))


def _ours_over_http(bench: Bench) -> Figures:
    command = [sys.executable, "-m", "buckram", "db", "serve", "served", "--metadata", bench.uri, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(f"buckram db serve ended with {server.wait()}")
            port = int(json.loads(line)["url"].rsplit(":", 1)[1])
            return asyncio.run(_hrana(port, lambda: sum(map(cpu_seconds, [server.pid, *bench.pids]))))
        finally:
            server.terminate()


async def _hrana(port: int, cpu: Callable[[], float]) -> Figures:
    connections = [Connection(port) for _ in range(CLIENTS)]

    async def execute(number: int, sql: str, *values: str) -> None:
        arguments = [{"type": "text", "value": value} for value in values]
        requests = [{"type": "execute", "stmt": {"sql": sql, "args": arguments}}, {"type": "close"}]
        answer = await connections[number].post("/served/v2/pipeline", {"baton": None, "requests": requests})
        if answer["results"][0]["type"] != "ok":
            raise RuntimeError(str(answer))

    async def insert(number: int) -> None:
        await execute(number, _INSERT, text())

    try:
        await execute(0, _CREATE)
        return await _measured("served", insert, cpu)
    finally:
        for connection in connections:
            connection.close()


# -- rqlite -----------------------------------------------------------------------------------------------


def find() -> Path:
    """The program, built if need be. Raises Missing."""
    given = os.environ.get("BENCH_RQLITED")
    if given:
        if not os.access(given, os.X_OK):
            raise Missing(f"BENCH_RQLITED={given}: there is no such program")
        return Path(given)
    program = Path("bench-results/rqlited").absolute()
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no Go to build it: install Go 1.23 or later, or name a rqlited by BENCH_RQLITED")
    try:
        fetched = _go(go, ["mod", "download", "-json", MODULE], Path.cwd())
        # `go install` refuses modules with replacements, so it is built where its source is.
        build = ["build", "-mod=mod", "-o", str(program), "./cmd/rqlited"]
        _go(go, build, Path(json.loads(fetched)["Dir"]))
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        said = getattr(error, "stderr", None) or error
        raise Missing(f"{MODULE} does not build here: {str(said)[-500:]}") from None
    return program


def _go(go: str, words: list[str], folder: Path) -> str:
    print(f"go {' '.join(words)}", file=sys.stderr, flush=True)
    return subprocess.run([go, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=BUILD_S).stdout


@contextlib.contextmanager
def rqlite(program: Path, folder: Path) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Three nodes, by their HTTP ports. Not said is how they keep what they have: their defaults."""
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
    """rqlite has to be told its peers' ports before they run."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


async def _rqlite(nodes: dict[int, subprocess.Popen[bytes]]) -> Figures:
    leader = await _leader(list(nodes))
    connections = [Connection(leader) for _ in range(CLIENTS)]

    async def execute(number: int, sql: str, *values: str) -> None:
        answer = await connections[number].post("/db/execute", [[sql, *values]])
        if "error" in answer["results"][0]:
            raise RuntimeError(str(answer))

    async def insert(number: int) -> None:
        await execute(number, _INSERT, text())

    try:
        await execute(0, _CREATE)
        return await _measured("rqlite", insert, lambda: sum(cpu_seconds(node.pid) for node in nodes.values()))
    finally:
        for connection in connections:
            connection.close()


async def _leader(ports: list[int]) -> int:
    """The HTTP port of the node that leads, once all three are there."""
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
