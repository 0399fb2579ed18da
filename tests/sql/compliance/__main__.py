"""Run SQLAlchemy's suite: `python -m tests.sql.compliance [NAMES]`; NAMES as pytest's -k. The last line is JSON.

No test is left out by its name: what cannot be done here is said in `requirements.py`.

The suite has a process of its own, since its plugin changes how pytest works.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import buckram.sync
from buckram.testing import ThreadedCluster

HERE = Path(__file__).parent
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


def run(names: str = "") -> tuple[dict[str, int], str]:
    """How many passed, failed and so on, of the tests that NAMES choose; and what was printed."""
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("suite")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE)),
            *("--dburi", f"buckram:///suite/main?metadata={cluster.uri}", "-k", names, str(HERE / "suite.py")),
        ]
        done = subprocess.run(
            command,
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        )
    printed = done.stdout
    counts = {what: int(number) for number, what in _COUNTS.findall(printed.splitlines()[-1] if printed else "")}
    return counts, printed


if __name__ == "__main__":
    found, output = run(" ".join(sys.argv[1:]))
    print(output, file=sys.stderr)
    good = found.get("passed", 0) > 0 and not found.get("failed") and not found.get("error")
    print(json.dumps({"ok": good, **found}))
    raise SystemExit(0 if good else 1)
