"""A minute on real processes: faults of every kind that there was time for, one bookie lost for good, all rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = 877
"""Draws thirteen kinds: kills of one and of all bookies, of an actor and of the database's leader, which is stopped for
longer than its session lives, too; a split, a cut, changed bytes, a wrong clock."""
RULES = {"S1", "S2", "S3", "S5", "S6", "S8", "S9", "S10", "S13", "S19", "M4", "M7", "M8", "exactly-once", "offsets"}
DATABASE_RULES = {"D3", "D5", "D6", "D7", "bank", "fresh"}


@pytest.mark.share(5, "real processes")
@pytest.mark.slow
def test_a_real_cluster_under_faults_keeps_its_promises_and_heals(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "buckram.chaos", "--minutes", "1", "--seed", str(SEED), "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (verdict["violations"], verdict["lost"], verdict["healed"]) == (0, 0, True)
    assert len(verdict["healed_s"]) == verdict["rounds"] == 1
    assert verdict["faults"] == sum(verdict["faults_by_kind"].values()) >= 10
    assert {rule for rule, count in verdict["checks"].items() if count} >= RULES | DATABASE_RULES | {"healed"}
    assert verdict["acked_entries"] > 1000
    assert verdict["acked_records"] > 100
    assert verdict["acked_transactions"] > 50
    kept = json.loads((Path(verdict["folder"]) / "verdict.json").read_text())
    assert kept == verdict
    assert f"--seed {SEED} " in verdict["replay"]
