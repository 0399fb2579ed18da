"""The HTTP client that both sides are measured with, and what is said where rqlite cannot be had."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from bench.served import Connection

from bench import rqlite


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says what it was sent; 503 for the path /busy."""
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            writer.close()
            return
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        status = "503 Busy" if " /busy " in head else "200 OK"
        told = json.dumps({"line": head.splitlines()[0], "body": body.decode()}).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(told)}\r\n\r\n".encode() + told)


async def test_requests_follow_each_other_on_one_connection() -> None:
    server = await asyncio.start_server(_answering, "127.0.0.1", 0)
    connection = Connection(server.sockets[0].getsockname()[1])
    try:
        assert await connection.post("/nodes") == {"line": "GET /nodes HTTP/1.1", "body": ""}
        answer = await connection.post("/db/execute", [["SELECT 1"]])
        assert answer == {"line": "POST /db/execute HTTP/1.1", "body": '[["SELECT 1"]]'}
        with pytest.raises(RuntimeError, match="503 Busy"):
            await connection.post("/busy")
    finally:
        connection.close()
        server.close()


def test_a_program_that_is_not_there_and_a_machine_without_go_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_RQLITED", str(tmp_path / "rqlited"))
    with pytest.raises(rqlite.Missing, match="there is no such program"):
        rqlite.find()
    monkeypatch.delenv("BENCH_RQLITED")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(rqlite.Missing, match="no Go to build it"):
        rqlite.find()
