"""A bookie killed with -9 is named, and one that is gone for good can be removed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram, gone
from tests.support.polling import wait_until

from buckram.cli.shared.exits import Exit

pytestmark = pytest.mark.share(10, "stores")


def test_a_killed_bookie_is_reported_and_can_be_forgotten_when_unneeded(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 4, "--janitor", "never")
    try:
        written = buckram("ledger", "write", "--ensemble", "4/4/2", "--close", uri=up.uri, stdin=b"a\n")
        ledger = written.json["ledger"]
        alive = buckram("bookie", "forget", "bookie-4", uri=up.uri)
        assert (alive.code, "it is registered" in alive.err) == (Exit.FAILED, True)
        assert buckram("cluster", "check", uri=up.uri).code == 0
        os.kill(up.pids[3], signal.SIGKILL)
        wait_until(lambda: gone(up.pids[3]), "still there")
        wait_until(lambda: buckram("cluster", "check", uri=up.uri).code == Exit.FAILED, "check finds nothing")
        said = buckram("cluster", "check", uri=up.uri).out
        assert "bookie-down bookie-4: it is down" in said
        assert "buckram bookie decommission bookie-4" in said
        shown = buckram("bookie", "show", "bookie-4", uri=up.uri)
        assert "is down" in shown.out
        degraded = buckram("ledger", "write", "--ensemble", "4/4/2", "--close", uri=up.uri, stdin=b"a\n")
        assert (degraded.code, "degraded: " in degraded.err) == (0, True)
        named = buckram("bookie", "forget", "bookie-4", uri=up.uri)
        assert (named.code, str(ledger) in named.err) == (Exit.FAILED, True)
        for one in (ledger, degraded.json["ledger"]):
            assert buckram("ledger", "delete", one, "--yes", uri=up.uri).code == 0
        assert buckram("bookie", "forget", "bookie-4", "--json", uri=up.uri).json["forgotten"] is True
        assert buckram("bookie", "forget", "bookie-4", uri=up.uri).code == Exit.NOT_FOUND
        # Marks of the deleted ledgers go with the replicator's next look.
        wait_until(lambda: buckram("cluster", "check", uri=up.uri).code == 0, "not well")
    finally:
        assert up.stop() == 0
