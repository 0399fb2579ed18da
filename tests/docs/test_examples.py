"""The examples run, print what their pages promise, and stay short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from buckram.testing import ThreadedCluster

ROOT = Path(__file__).parents[2]
LONGEST = 90
PROMISED = {
    "bank": [
        "second leads; 20 transfers of 20", "balances: {'ann': 40, 'ben': 160}", "; 20 transfers\n",
        "refused: ann has 40", "the follower has {'ann': 40, 'ben': 160}",
    ],
    "configuration": [
        "the follower is told: ('workers', 4)", "then: ('workers', 8), ('colour', 'blue')",
        "refused: workers was changed at revision 2, you have seen 1",
    ],
    "job_scheduler": [
        "ann dies with job-2", "5 jobs ran: job-0 by ann, job-1 by ann, job-2 by ben, job-3 by ben, job-4 by ben",
    ],
    "work_queue": ["stored 20 jobs; again: 0", "a worker died after 3 jobs", "in order for each key: True; lag 0"],
    "changelog": ["7 records after compaction; 6 rows, item-0 = b'1000'", "has the same table: True"],
    "state_machine": ["first led: 6", "second led from 3 on: 36", "third took over: 136", "is fenced", "agree: True"],
    "write_ahead_log": [
        "recovered 7 transfers after the checkpoint: True", "cannot write any more", "the log begins at 50",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs_and_prints_what_it_promises(name: str) -> None:
    with ThreadedCluster(bookies=3) as cluster:
        environment = {**os.environ, "BUCKRAM_METADATA": cluster.uri}
        command = [sys.executable, "-m", f"examples.{name}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    for words in PROMISED[name]:
        assert words in done.stdout


def test_every_example_is_tested_and_short() -> None:
    """Those with Spark are in tests/spark/jobs."""
    modules = [path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith(("__init__", "spark_"))]
    examples = {path.stem: path for path in modules}
    assert sorted(examples) == sorted(PROMISED)
    for path in examples.values():
        assert len(path.read_text().splitlines()) < LONGEST
