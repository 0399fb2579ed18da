"""kill -9 at full load loses nothing and causes no limbo; scripts/soak.py does this many more times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["direct", "buffered"])
def test_no_limbo_after_kills_at_full_load(disk: str) -> None:
    command = [sys.executable, "-m", "tests.chaos.kills", "--kills", "40", "--disk", disk]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == 40
    assert found["acknowledged"] > 1000
