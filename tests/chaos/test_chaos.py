"""A short run on real processes: faults of every kind that there was time for, one bookie lost for good, all rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("BUCKRAM_SOAK") != "1", reason="two minutes of two cores: BUCKRAM_SOAK=1")
def test_a_real_cluster_under_faults_keeps_its_promises_and_heals(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "buckram.chaos", "--minutes", "0.3", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["violations"] == []
    assert (verdict["lost"], verdict["healed"]) == (0, True)
    assert len(verdict["healed_s"]) == verdict["rounds"] == 1
    checked = {rule for rule, count in verdict["checks"].items() if count}
    assert checked >= {
        "S1",
        "S2",
        "S3",
        "S5",
        "S6",
        "S8",
        "S9",
        "S10",
        "S13",
        "M7",
        "exactly-once",
        "offsets",
        "healed",
    }
    assert verdict["acked_entries"] > 1000
    assert verdict["acked_records"] > 100
