"""`buckram cluster move-metadata`: a cluster of real bookies goes on where its metadata went."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram

from buckram.errors import ConfigError
from buckram.launch.etcd_server import start_etcd
from buckram.launch.processes import BookieProcess, stop_all

pytestmark = pytest.mark.share(10, "stores")


def test_a_cluster_goes_on_at_another_store(tmp_path: Path) -> None:
    data = tmp_path / "buckram-data"
    up = Up(data, "--bookies", 2)
    written = buckram("ledger", "write", "--ensemble", "2/2/2", "--close", stdin=b"kept\n", cwd=tmp_path)
    assert buckram("stream", "write", "s", stdin=b"1\n", cwd=tmp_path).code == 0
    try:
        server = start_etcd(tmp_path / "etcd", sync=False)
    except ConfigError as error:
        up.stop()
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs a real etcd: {error}")
    with server:
        there = f"etcd://{server.address}/moved"
        live = buckram("cluster", "move-metadata", up.uri, there)
        assert (live.code, len(live.err.splitlines())) == (2, 1)
        assert "2 bookies are writable (bookie-1, bookie-2)" in live.err
        assert up.stop() == 0
        done = buckram("cluster", "move-metadata", up.uri, there, "--json")
        assert done.code == 0, done.err
        assert (done.json["from"], done.json["to"], done.json["epoch"], done.json["again"]) == (up.uri, there, 2, False)
        assert buckram("cluster", "move-metadata", up.uri, there, "--json").json["again"]
        refused = buckram("ledger", "read", written.json["ledger"], cwd=tmp_path)
        assert (refused.code, f"were moved to {there}" in refused.err) == (1, True)
        bookies = [BookieProcess(there, data / f"bookie-{n}", bookie_id=f"bookie-{n}") for n in (1, 2)]
        try:
            for bookie in bookies:
                bookie.start()
            for bookie in bookies:
                bookie.wait_ready()
            name = ("--metadata", there)
            assert buckram("ledger", "read", written.json["ledger"], *name).out == "kept\n"
            assert buckram("stream", "write", "s", *name, stdin=b"2\n").code == 0
            assert buckram("stream", "read", "s", *name).out == "1\n2\n"
            checked = buckram("cluster", "check", "--json", *name).json["problems"]
            assert {one["what"] for one in checked if one["severity"] == "error"} == {"auditor-missing"}, checked
        finally:
            stop_all(bookies)
