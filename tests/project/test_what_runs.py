"""What runs for an operation (`python -m scripts.what_runs`): calls are counted, nested and folded."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripts.what_runs import Call, drawn, each, main, record, totals


@pytest.mark.parametrize("name", ["ledger-append", "ledger-read"])
def test_an_operation_runs_from_the_client_to_the_bookie_and_back(name: str) -> None:
    calls = asyncio.run(record(name, runs=3))
    names = [call.name for call in each(calls)]
    counted = totals(calls)
    assert counted.calls == len(names)
    assert counted.functions == len(set(names))
    assert counted.files == len({one.partition(":")[0] for one in names})
    sides = {one.partition("/")[0] for one in names}
    assert {"client", "core", "runtime", "bookie"} <= sides
    if name == "ledger-append":
        assert names.count("client/write/engine.py:LedgerAppender.append") == 1
        assert names.count("core/wire/server_protocol.py:ServerProtocol.feed") == 3, "three bookies get the entry"
    assert not [one for one in names if one.startswith("testing/")]


def test_a_coroutine_that_goes_on_is_the_same_call_and_what_it_then_calls_is_below_it() -> None:
    calls = asyncio.run(record("ledger-read", runs=1))
    reads = [call for call in each(calls) if call.name == "client/read/replicas.py:LedgerReads.batch"]
    assert len(reads) == 1
    below = [call.name for call in each(reads)]
    assert "core/entries/entry.py:Digest.open_prefix" in below, "this runs when the bookie has answered"


def test_calls_that_look_alike_and_follow_each_other_are_one_line() -> None:
    def one() -> None: ...

    def two() -> None: ...

    pair = [Call(one.__code__, [Call(two.__code__)]), Call(one.__code__, [Call(two.__code__)])]
    lines = list(drawn([*pair, Call(two.__code__)]))
    assert len(lines) == 3
    assert lines[0].endswith("one  x2")
    assert lines[1].startswith("  ")
    assert lines[1].endswith("two")
    assert lines[2].endswith("two")


def test_the_command_prints_json_and_refuses_an_unknown_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger-append", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ledger-append"]["calls"] >= found["ledger-append"]["functions"] > found["ledger-append"]["files"]
    with pytest.raises(SystemExit):
        main(["bread"])
    assert "there is no operation 'bread'" in capsys.readouterr().err


def test_a_repair_reads_the_copies_of_many_entries_with_one_request() -> None:
    names = [call.name for call in each(asyncio.run(record("repair", runs=1)))]
    adds = 20
    assert names.count("client/read/replicas.py:ask") < adds + 12, "one request for each add, few for all reads"
