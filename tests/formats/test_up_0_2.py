"""`buckram up` on the directory that `up` of commit 6930de3f left, and what `upgrade-check` says of it before."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram
from tests.formats.make_0_2 import record
from tests.formats.test_cluster_0_2 import FACTS, HERE

from buckram.bookie.storage.superblock import FORMAT


@pytest.mark.share(3)
def test_up_starts_the_cluster_that_an_older_up_left(tmp_path: Path) -> None:
    with tarfile.open(HERE / "cluster.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    description = tmp_path / "cluster.json"
    described = json.loads(description.read_text())
    assert described.pop("bookies") == 3
    # The ports that the bookies had may be somebody else's here.
    description.write_text(json.dumps({**described, "bookies": 3, "ports": {}}))
    checked = buckram("upgrade-check", "--data", tmp_path / "bookie-1", uri=f"sqlite://{tmp_path / 'metadata.db'}")
    assert f"bookie-1: format 3, this release writes {FORMAT}" in checked.out, checked.err
    running = Up(tmp_path, "--janitor", "never", "--no-autorecovery")
    try:
        assert running.ready["not_started"] == []
        health = buckram("cluster", "check", "--json", uri=running.uri)
        wrong = [one["what"] for one in json.loads(health.out)["problems"] if one["severity"] == "error"]
        assert wrong == ["auditor-missing"], health.out  # it runs none
        told = buckram("stream", "read", "shop/orders", uri=running.uri)
        assert told.out.splitlines() == [record(number).decode() for number in range(FACTS["records"])]
    finally:
        assert running.stop() == 0
