"""`buckram bench --profile` looks into real processes: this client's and the bookies'."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from bench.harness import cluster


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into any process everywhere")
def test_profile_writes_cpu_budgets_of_client_and_bookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DIR", str(tmp_path / "data"))
    folder = tmp_path / "profile"
    with cluster(1) as bench:
        figures = bench.write(ensemble="1/1/1", seconds=1.5, profile=folder)
    budget = figures["profile"]
    assert list(budget) == ["client", "bookie-1", "floor"]
    assert 0 < sum(budget["client"].values()) < 1000
    assert sum(budget["bookie-1"].values()) > 0
    assert budget == json.loads((folder / "budget.json").read_text())
    assert "## floor" in (folder / "budget.md").read_text()
    assert (folder / "flame.svg").read_text().startswith("<svg")
