"""`buckram audit`: what is shown of names that others chose, and what is found missing or changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from buckram import connect
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.cli.app import run
from buckram.cli.security.audit_writer import AuditWriter
from buckram.cli.shared.exits import Exit
from buckram.core.tenants.audit_trail import AuditEvent, Links
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.streams.system_streams import append_in_one_step
from buckram.testing import ThreadedCluster

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=1) as cluster:
        yield cluster.uri


@pytest.fixture
def call(uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("BUCKRAM_METADATA", uri)

    def call(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def last(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


async def write_trail(uri: str, *what: str) -> None:
    events = AuditLog(production_runtime().clock, NullStats())
    for one in what:
        events.add(events.event("token:alice", "delete", one, "shop"))
    async with connect(uri) as client:
        writer = AuditWriter(client, client.services.store, events, "b1")
        await writer._prepare()
        await writer.write()


async def write_records(uri: str, *values: bytes) -> None:
    """As a release without a chain writes them, or somebody who may do everything."""
    async with connect(uri) as client:
        info = await client.namespace("system").info("audit")
        await append_in_one_step(client, info, "test", values, [5] * len(values))


FORGED = "2026-01-01T00:00:00.000000Z  token:bob  delete  stream shop/all  done"


def test_nothing_that_a_key_is_called_forges_a_line_or_reaches_a_terminal(call: Call, uri: str) -> None:
    hostile = f"key /x\n{FORGED}\x1b[2J\x1b]0;x\x07\x9b31m\u202e\u2028\x7f  done"
    asyncio.run(write_trail(uri, hostile, "ledger 77"))
    for words in (("tail", "-n", "2"), ("search", "--what", "key /x")):
        code, out, _ = call("audit", *words)
        assert code == Exit.OK
        line = out.splitlines()[0]
        assert out.endswith("\n")
        assert line.split("  ")[1:3] == ["token:alice", "delete"]
        assert line.split("  ")[4:] == ["done"]
        assert out.replace("\n", "").isprintable()
        assert not any(one.startswith("2026-01-01") for one in out.splitlines())
        code, out, _ = call("audit", *words, "--json")
        assert json.loads(out.splitlines()[0])["what"] == hostile
        assert all(32 <= ord(char) < 127 for char in out.replace("\n", ""))


def test_the_trail_is_verified(call: Call, uri: str) -> None:
    asyncio.run(write_trail(uri, "a", "b", "c"))
    old = b'{"time_us": 5, "principal": "token:alice", "action": "create", "what": "ledger 5", "result": "done"}'
    asyncio.run(write_records(uri, old))
    code, out, _ = call("audit", "verify", "--json")
    found = last(out)
    assert (code, found["whole"], found["before_chain"], found["unreadable"]) == (Exit.OK, True, 1, [])
    assert (found["chains"][-1]["first"], found["chains"][-1]["last"], found["chains"][-1]["whole"]) == (1, 3, True)
    code, out, _ = call("audit", "verify")
    assert code == Exit.OK
    assert out.splitlines()[0].startswith("before the chain: 1 event ")
    assert "events 1 to 3, " in out
    assert out.splitlines()[-1] == "whole"
    links = Links("c\n0")
    values = [links.add(AuditEvent(5, "token:alice", "create", f"ledger {n}")).encode() for n in range(6)]
    values[4] = values[4].replace(b"alice", b"bob")
    asyncio.run(write_records(uri, values[0], *values[3:], b"{"))
    code, out, _ = call("audit", "verify")
    assert code == Exit.FAILED
    assert "BROKEN: bookie -, chain c\\x0a0, events 1 to 6" in out
    assert "events 2 to 3 missing before offset" in out
    assert "events 5 to 6: one was changed or put in" in out
    assert "is no event" in out
    assert out.splitlines()[-1].startswith("BROKEN")
    code, out, _ = call("audit", "verify", "--json")
    found = last(out)
    assert (code, found["whole"], len(found["unreadable"])) == (Exit.FAILED, False, 1)
    assert [(one["what"], one["first"], one["last"]) for one in found["chains"][-1]["breaks"]] == [
        ("missing", 2, 3),
        ("changed", 5, 6),
    ]
    code, out, _ = call("audit", "tail", "-n", "1")
    assert "it is no event of the trail" in out


@pytest.mark.parametrize(
    ("audit", "sink", "said"),
    [("off", "syslog:", "without [auth] audit = 'on'"), ("on", "file:audit.log", "needs file: and an absolute path")],
)
def test_a_sink_that_cannot_be_one_keeps_a_bookie_from_starting(
    call: Call, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: str, sink: str, said: str
) -> None:
    monkeypatch.setenv("BUCKRAM_AUTH_AUDIT", audit)
    monkeypatch.setenv("BUCKRAM_BOOKIE_AUDIT_SINK", sink)
    metadata = f"sqlite://{tmp_path / 'metadata.db'}"
    assert call("cluster", "init", "--metadata", metadata)[0] == Exit.OK
    code, _, err = call("bookie", "run", "--metadata", metadata, "--data", tmp_path / "bookie", "--port", 0)
    assert code == Exit.USAGE
    assert "[bookie] audit_sink" in err
    assert said in err
    assert not (tmp_path / "bookie").exists()
