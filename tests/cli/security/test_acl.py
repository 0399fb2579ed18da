"""`buckram acl` on namespaces, streams and patterns of either: what is granted, and what is no name of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
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
    code, said = call("check", *ALICE, "shop/orders")
    assert (code, said["allowed"], said["permissions"]) == (Exit.OK, True, ["append", "read"])
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
    assert call("list")[1] == {"grants": [], "denials": []}


def test_a_denial_wins_and_check_names_the_rule_that_decided(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    staff = ("--principal", "role:staff", "--permission", "read")
    assert call("grant", *ALICE, "shop")[0] == Exit.OK
    assert call("deny", *staff, "shop/s*") == (
        Exit.OK,
        {"principal": "role:staff", "namespace": "shop/s*", "denied": ["read"]},
    )
    code, said = call("check", *ALICE, "--role", "staff", "shop/salaries")
    assert (code, said["permissions"]) == (Exit.FAILED, ["append"])
    assert said["decided_by"] == [
        {"permission": "read", "rule": "denial", "principal": "role:staff", "namespace": "shop/s*"},
        {"permission": "append", "rule": "grant", "principal": "token:alice", "namespace": "shop"},
    ]
    assert call("check", *ALICE, "shop/salaries")[0] == Exit.OK
    assert call("check", *ALICE, "other")[1]["decided_by"][0]["rule"] == "nothing"
    code, said = call("check", *ALICE, "--role", "staff", "--role", "admin", "shop/salaries")
    assert (code, said["decided_by"][0]["rule"]) == (Exit.OK, "administrator")
    listed = call("list")[1]
    assert [one["principal"] for one in listed["grants"]] == ["token:alice"]
    assert listed["denials"] == [{"principal": "role:staff", "namespace": "shop/s*", "permissions": ["read"]}]
    assert run(["acl", "list"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "rule"
    assert [line.split()[-1] for line in lines[-2:]] == ["grant", "denial"]
    assert run(["acl", "check", *ALICE, "--role", "staff", "shop/salaries"]) == Exit.FAILED
    assert "read: denial of read on shop/s* to role:staff" in capsys.readouterr().out
    assert call("undeny", *staff, "shop/salaries")[0] == Exit.USAGE
    assert call("undeny", *staff, "shop/s*")[1]["denied"] == []
    assert call("check", *ALICE, "--role", "staff", "shop/salaries")[0] == Exit.OK
