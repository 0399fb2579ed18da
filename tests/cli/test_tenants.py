"""`buckram namespace --quota`, `buckram usage` and `buckram audit`: what is shown, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from buckram import connect
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.cli.app import run
from buckram.cli.security.audit_writer import AuditWriter
from buckram.cli.shared.exits import Exit
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
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


async def store_something(uri: str, namespace: str) -> None:
    async with connect(uri) as client:
        custom = {"buckram.namespace": namespace, "application": "till"}
        async with client.create(ensemble=1, custom_metadata=custom) as writer:
            await writer.append_many([b"x" * 1000] * 50)
        await client.namespace(namespace).create("orders")


def test_quotas_are_set_shown_and_used(call: Call, uri: str) -> None:
    assert call("namespace", "create", "shop", "--set", "ensemble=1/1/1", "--quota", "stored_bytes=10MiB")[0] == Exit.OK
    asyncio.run(store_something(uri, "shop"))
    code, out, _ = call("usage", "--json")
    assert code == Exit.OK
    shop = last(out)["namespaces"]["shop"]
    assert 50_000 <= shop["stored_bytes"] <= 60_000
    assert (shop["ledgers"], shop["streams"], shop["quotas"]) == (1, 1, {"stored_bytes": 10 << 20})
    assert shop["applications"] == {"till": 50_000}
    assert "in_bytes_per_s" in shop
    assert "out_bytes_per_s" in shop
    code, _, err = call("namespace", "set", "shop", "--quota", "stored_bytes=1000", "--quota", "in_entries_per_s=5")
    assert code == Exit.OK
    assert "nothing is deleted" in err
    code, out, _ = call("namespace", "show", "shop", "--json")
    assert last(out)["quotas"] == {"stored_bytes": 1000, "in_entries_per_s": 5}
    code, out, _ = call("namespace", "set", "shop", "--quota", "stored_bytes=none", "--quota", "in_entries_per_s=none")
    assert (code, "quota" in out) == (Exit.OK, False)
    code, out, _ = call("usage", "--applications", "--namespace", "shop")
    assert out.split()[-3:] == ["shop", "till", "50000"]


@pytest.mark.parametrize("words", ["bytes=1", "stored_bytes", "stored_bytes=many", "in_bytes_per_s=1", "ledgers=-1"])
def test_bad_quotas_are_refused_by_name(call: Call, words: str) -> None:
    code, _, err = call("namespace", "set", "default", "--quota", words)
    assert code == Exit.USAGE
    assert words.partition("=")[0] in err
    assert call("namespace", "set", "nowhere", "--quota", "ledgers=1")[0] == Exit.NOT_FOUND


async def write_trail(uri: str) -> None:
    events = AuditLog(production_runtime().clock, NullStats())
    for number in range(30):
        events.add(events.event("token:alice", "delete" if number % 3 == 0 else "create", f"ledger {number}", "shop"))
    async with connect(uri) as client:
        writer = AuditWriter(client, client.services.store, events, "b1")
        await writer._prepare()
        await writer.write()


def test_the_trail_is_shown_and_searched(call: Call, uri: str) -> None:
    code, _, err = call("audit", "tail")
    assert (code, "no audit trail yet" in err) == (Exit.USAGE, True)
    asyncio.run(write_trail(uri))
    code, out, _ = call("audit", "tail", "-n", "5", "--json")
    assert [json.loads(line)["what"] for line in out.splitlines()] == [f"ledger {number}" for number in range(25, 30)]
    code, out, _ = call("audit", "search", "--action", "delete", "--principal", "token:alice", "--what", "ledger 2")
    assert [line.split("  ")[3] for line in out.splitlines()] == ["ledger 21", "ledger 24", "ledger 27"]
    for nothing in (("--namespace", "log"), ("--since", "@9999999999"), ("--until", "@5", "--since", "@1")):
        assert call("audit", "search", *nothing)[:2] == (Exit.OK, "")
