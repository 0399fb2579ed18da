"""Share of the long tests that a run has: a number that changes with each commit, or that BUCKRAM_SHARE names.

The tests themselves are chosen in tests/support/soak.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VARIABLE = "BUCKRAM_SHARE"
ALL = "all"
"""The value with which nothing is left out."""
NUMBERS = 5040
"""Number of shares. It is divisible by one to ten, so that one of three tests, or of ten, is each as likely as the
others."""


def share_of_this_run(root: Path = Path(__file__).parents[1]) -> int | None:
    """Return the number of the share, or None for all tests. Raises ValueError for a value that is neither."""
    given = os.environ.get(VARIABLE, "")
    if given == ALL:
        return None
    if given:
        if not given.isdecimal():
            raise ValueError(f"{VARIABLE} is {given!r}: give a number from 0 on, or {ALL!r} for all tests")
        return int(given)
    command = ["git", "rev-parse", "HEAD"]
    try:
        head = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        head = ""
    return int(head or "0", 16) % NUMBERS  # without a repository it is always the same share


def told(share: int | None) -> str:
    """Return a line that says how to run the same tests again."""
    if share is None:
        return "every test runs"
    return f"share {share} of the long tests runs ({VARIABLE}={share} runs it again), make soak runs all of them"
