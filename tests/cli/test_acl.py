"""`buckram acl` on namespaces, streams and patterns of either: what is granted, and what is no name of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buckram.cli.app import run
from buckram.cli.exits import Exit
from buckram.metadata.uri import open_store
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces

Call = Callable[..., tuple[int, Any]]
ALICE = ("--principal", "token:alice", "--permission", "read,append")


async def made(uri: str) -> None:
    store = await open_store(uri)
    await store.initialise()
    await Namespaces(StreamStore(store)).create("shop")
    await store.close()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    uri = f"sqlite://{tmp_path}/metadata.db"
    asyncio.run(made(uri))
    monkeypatch.setenv("BUCKRAM_METADATA", uri)

    def call(*words: str) -> tuple[int, Any]:
        code = run(["acl", *words, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else said.err

    return call


def test_a_stream_and_a_pattern_of_streams_are_granted_and_taken_back(call: Call) -> None:
    code, said = call("grant", *ALICE, "shop/orders")
    assert (code, said["permissions"]) == (Exit.OK, ["append", "read"])
    assert call("check", *ALICE, "shop/orders") == (Exit.OK, {"allowed": True, "permissions": ["append", "read"]})
    assert call("check", *ALICE, "shop/bills")[0] == Exit.FAILED
    assert call("check", *ALICE, "shop")[0] == Exit.FAILED
    code, said = call("grant", *ALICE, "shop/b*")
    assert (code, said["permissions"]) == (Exit.OK, ["append", "read"])
    assert call("check", *ALICE, "shop/bills")[0] == Exit.OK
    assert call("revoke", *ALICE, "shop/b*")[0] == Exit.OK
    assert call("check", *ALICE, "shop/bills")[0] == Exit.FAILED
    assert [one["namespace"] for one in call("list")[1]["grants"]] == ["shop/orders"]


def test_a_grant_on_a_namespace_is_for_all_that_is_in_it(call: Call) -> None:
    assert call("grant", *ALICE, "shop")[0] == Exit.OK
    assert call("check", *ALICE, "shop/orders")[0] == Exit.OK


def test_objects_are_granted_by_the_beginning_of_their_names(call: Call) -> None:
    assert call("grant", *ALICE, "shop/objects/logs/*")[0] == Exit.OK
    assert call("check", *ALICE, "shop/objects/logs/2026/a.txt")[0] == Exit.OK
    for other in ("shop/objects/secret", "shop/orders", "shop/buckram.objects", "shop"):
        assert call("check", *ALICE, other)[0] == Exit.FAILED
    assert call("revoke", *ALICE, "shop/objects/logs/*")[0] == Exit.OK
    assert call("check", *ALICE, "shop/objects/logs/2026/a.txt")[0] == Exit.FAILED


@pytest.mark.parametrize(
    ("name", "exit_code", "said"),
    [
        ("shop/", Exit.USAGE, "needs NAMESPACE, NAMESPACE/STREAM"),
        ("/orders", Exit.USAGE, "needs NAMESPACE, NAMESPACE/STREAM"),
        ("shop/buckram.objects/reports*", Exit.USAGE, "NAMESPACE/objects/PREFIX"),
        ("nowhere/orders", Exit.NOT_FOUND, "nowhere"),
        ("nowhere/objects/a*", Exit.NOT_FOUND, "nowhere"),
        ("shop/objects/a*b", Exit.USAGE, "all that begin with a text"),
    ],
)
def test_what_names_nothing_is_refused(call: Call, name: str, exit_code: Exit, said: str) -> None:
    code, error = call("grant", *ALICE, name)
    assert code == exit_code
    assert said in error
    assert call("list")[1] == {"grants": []}
