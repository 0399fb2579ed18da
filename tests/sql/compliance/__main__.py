"""Run SQLAlchemy's suite: `python -m tests.sql.compliance [ARGUMENTS OF PYTEST]`; the last line is JSON.

The suite has a process of its own, since its plugin changes how pytest works.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import buckram.sync
from buckram.testing import ThreadedCluster

HERE = Path(__file__).parent
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


def run(*arguments: str) -> tuple[int, dict[str, int], str]:
    """The exit code, the counts, and what was printed."""
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("suite")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE)),
            *("--dburi", f"buckram:///suite/main?metadata={cluster.uri}", *arguments, str(HERE / "suite.py")),
        ]
        root = HERE.parents[2]
        done = subprocess.run(
            command,
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=_environment(root),
        )
    printed = done.stdout
    counts = {what: int(number) for number, what in _COUNTS.findall(printed.splitlines()[-1] if printed else "")}
    return done.returncode, counts, printed


def _environment(root: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(root)}


if __name__ == "__main__":
    code, counts, printed = run(*sys.argv[1:])
    print(printed, file=sys.stderr)
    print(json.dumps({"ok": code == 0, **counts}))
    raise SystemExit(code)
