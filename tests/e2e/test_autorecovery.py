"""A killed bookie's ledgers are copied by `buckram up` itself, and `buckram autorecovery` tells and decides."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram
from tests.support.polling import wait_until

from buckram import sync
from buckram.cli.shared.exits import Exit

pytestmark = pytest.mark.share(10, "clusters")

LINES = b"".join(b"line %d\n" % number for number in range(2000))


def test_a_killed_bookies_ledgers_are_copied_and_told_of(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 4, "--janitor", "never")
    try:
        made = [buckram("ledger", "write", "--close", uri=up.uri, stdin=LINES).json["ledger"] for _ in range(3)]
        wait_until(lambda: bool(status(up)["auditor"]), "no auditor")
        assert (status(up)["queue"], status(up)["delay_s"], status(up)["enabled"]) == ([], 10.0, True)
        assert buckram("autorecovery", "delay", "1s", "--json", uri=up.uri).json == {"delay_s": 1}
        assert buckram("autorecovery", "disable", "--json", uri=up.uri).json == {"enabled": False, "changed": True}
        named = [number for number, bookie in enumerate(ids(up)) if holds(up, made, bookie)]
        lost = ids(up)[named[0]]
        os.kill(up.pids[named[0]], signal.SIGKILL)
        assert buckram("autorecovery", "disable", "--json", uri=up.uri).json["changed"] is False
        assert "disabled" in buckram("autorecovery", "status", uri=up.uri).out
        assert buckram("autorecovery", "enable", uri=up.uri).code == 0
        wait_until(lambda: not holds(up, made, lost), "not copied")
        seen = buckram("status", "--json", uri=up.uri)
        assert {one["id"]: one["state"] for one in seen.json["bookies"]}[lost] == "down"
        assert (seen.code, seen.json["healthy"], seen.json["unavailable"]) == (Exit.FAILED, False, 0)
        assert f"bookie decommission {lost}" in buckram("status", uri=up.uri).out
        wait_until(lambda: buckram("autorecovery", "status", uri=up.uri).code == 0, "still marked")
        for ledger in made:
            repaired = buckram("ledger", "repair", ledger, "--json", uri=up.uri).json
            assert repaired["entries_copied"] == 0
        assert (
            buckram("autorecovery", "proceed", uri=up.uri).out.strip()
            == "copying was not stopped, nothing has to proceed"
        )
        assert buckram("bookie", "forget", lost, uri=up.uri).code == 0
        assert buckram("cluster", "check", uri=up.uri).code == 0
        well = buckram("status", "--json", uri=up.uri)
        assert (well.code, well.json["healthy"], well.json["under_replicated"]) == (0, True, 0)
    finally:
        assert up.stop() == 0


def test_a_stopped_bookie_is_taken_out_when_all_that_it_held_is_on_others(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 4, "--janitor", "never")
    try:
        assert buckram("autorecovery", "delay", "1h", uri=up.uri).code == 0
        made = [buckram("ledger", "write", "--close", uri=up.uri, stdin=LINES).json["ledger"] for _ in range(3)]
        number = next(n for n, bookie in enumerate(ids(up)) if holds(up, made, bookie))
        bookie = ids(up)[number]
        alive = buckram("bookie", "decommission", bookie, uri=up.uri)
        assert (alive.code, "is registered: stop it first" in alive.err) == (Exit.USAGE, True)
        os.kill(up.pids[number], signal.SIGKILL)
        wait_until(lambda: "is down" in buckram("bookie", "show", bookie, uri=up.uri).out, "still registered")
        ended = buckram("bookie", "decommission", bookie, "--json", uri=up.uri)
        assert (ended.code, ended.json["remaining"]) == (0, 0)
        assert ended.json["entries_copied"] == 2000 * ended.json["ledgers"] > 0
        assert not holds(up, made, bookie)
        assert buckram("bookie", "decommission", bookie, uri=up.uri).code == Exit.NOT_FOUND
        assert buckram("status", uri=up.uri).code == 0
    finally:
        assert up.stop() == 0


def test_a_delay_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = buckram("autorecovery", "delay", "--", "-5s", uri=f"sqlite://{tmp_path}/none.db")
    assert refused.code == Exit.USAGE
    assert "-5s" in refused.err


def status(up: Up) -> dict[str, object]:
    return buckram("autorecovery", "status", "--json", uri=up.uri).json


def holds(up: Up, ledgers: list[int], bookie: str) -> bool:
    """It asks in this process, because it is asked again and again and a command is slow to start."""
    with sync.connect(up.uri) as client:
        shown = [client.metadata(ledger) for ledger in ledgers]
    return any(bookie in fragment.ensemble for ledger in shown for fragment in ledger.fragments)


def ids(up: Up) -> list[str]:
    return [bookie["id"] for bookie in up.ready["bookies"]]
