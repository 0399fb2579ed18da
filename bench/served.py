"""Databases over HTTP for benchmarks: `buckram db serve` as a process, and a client that speaks to it and to rqlite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.harness import Bench


class Connection:
    """HTTP/1.1 to one server, one request at a time, on one connection that stays."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any = None) -> Any:
        """Return the JSON of the answer; without a body it is a GET. Raises RuntimeError for any status but 200."""
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

    async def execute(self, database: str, sql: str, *values: str) -> dict[str, Any]:
        """Execute one statement by Hrana and return its result. Raises RuntimeError where it failed."""
        arguments = [{"type": "text", "value": value} for value in values]
        requests = [{"type": "execute", "stmt": {"sql": sql, "args": arguments}}, {"type": "close"}]
        answer = await self.post(f"/{database}/v2/pipeline", {"baton": None, "requests": requests})
        first: dict[str, Any] = answer["results"][0]
        if first["type"] != "ok":
            raise RuntimeError(f"{database}: {sql[:60]}: {first}")
        result: dict[str, Any] = first["response"]["result"]
        return result

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Served:
    """A server of databases: its port and its process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"buckram db serve ended with {process.wait()}")
        self.port = int(json.loads(line)["url"].rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def served(bench: Bench, *words: str) -> Iterator[Served]:
    """`buckram db serve` with these words, until the end of the block."""
    command = [sys.executable, "-m", "buckram", "db", "serve", *words, "--metadata", bench.uri, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield Served(process)
        finally:
            process.terminate()


@contextlib.contextmanager
def connections(port: int, count: int) -> Iterator[list[Connection]]:
    """Open `count` connections to one server; they are closed at the end of the block."""
    made = [Connection(port) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


__all__ = ["Connection", "Served", "connections", "served"]
