"""A disk that fails a write or a sync ends its bookie, which says why; the registration goes at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import buckram, environment
from tests.support.polling import wait_until

from buckram.cli.shared.exits import Exit
from buckram.launch.processes import BookieProcess
from buckram.runtime.disk.faulty import DiskFaults


@pytest.mark.parametrize(
    ("faults", "said"), [(DiskFaults(1, writes=1), "cannot write"), (DiskFaults(1, syncs=1), "sync failed")]
)
def test_a_failed_disk_ends_its_bookie_with_the_reason(tmp_path: Path, faults: DiskFaults, said: str) -> None:
    uri, control = f"sqlite://{tmp_path / 'metadata.db'}", tmp_path / "faults.json"
    assert buckram("cluster", "init", uri=uri).code == 0
    settings = {**environment(uri), "BUCKRAM_DISK": f"faults:{control}"}
    bookie = BookieProcess(uri, tmp_path / "bookie-1", bookie_id="bookie-1", environment=settings)
    bookie.start()
    try:
        bookie.wait_ready()
        faults.save(control)
        buckram("ledger", "write", "--ensemble", "1/1/1", uri=uri, stdin=b"x\n")
        wait_until(lambda: not bookie.alive, "the bookie goes on")
        assert bookie.exit_code == Exit.FAILED
        words = bookie.last_words()
        assert f"{tmp_path / 'bookie-1'}/" in words
        assert said in words
        assert "move the bookie to another" in words
        (shown,) = buckram("bookie", "list", "--json", uri=uri).json["bookies"]
        assert shown["state"] == "down"
    finally:
        bookie.kill()
