"""`buckram ledger delete --force`: a ledger whose bookies are gone."""

from __future__ import annotations

import json

import pytest
from tests.cli.cluster.test_doctor import with_client

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.cluster import Client
from buckram.testing import ThreadedCluster


def test_a_ledger_whose_bookies_are_gone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ledgers: list[int] = []

    async def prepare(client: Client) -> None:
        for _ in range(2):
            writer = await client.create()
            await writer.append(b"entry")
            await writer.abandon()
            ledgers.append(writer.ledger_id)
        await client.namespaces.create("shop")
        async with client.namespace("shop").writer("s") as stream:
            await stream.append(b"record")
        ledgers.append(next(iter([row.ledger async for row in client.namespace("shop").segments("s")])))

    with ThreadedCluster(bookies=3) as cluster:
        monkeypatch.setenv("BUCKRAM_METADATA", cluster.uri)
        with_client(cluster, prepare)
        assert run(["ledger", "delete", str(ledgers[2]), "--force", "--yes"]) != 0  # A stream lists it.
        assert "stream" in capsys.readouterr().err
        assert run(["ledger", "delete", str(ledgers[1]), "--yes", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"ledger": ledgers[1], "deleted": True, "fenced": True}
        for number in range(3):
            cluster.kill(number)
        assert run(["ledger", "delete", str(ledgers[0]), "--yes"]) == Exit.TRY_AGAIN
        assert f"`buckram ledger delete {ledgers[0]} --force`" in capsys.readouterr().err
        assert run(["ledger", "delete", str(ledgers[0]), "--force", "--yes", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"ledger": ledgers[0], "deleted": True, "fenced": False}
        assert run(["ledger", "show", str(ledgers[0])]) == Exit.NOT_FOUND
