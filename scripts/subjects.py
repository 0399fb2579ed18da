"""Subjects of commits over 72 columns, which `git log --oneline` and mails cut off.

`python scripts/subjects.py` looks at the newest ten commits; exit code 1 for any that is longer. Without a history,
as in an archive of the sources, there is nothing to look at.
"""

from __future__ import annotations

import subprocess
import sys

COLUMNS, NEWEST = 72, 10


def too_long(log: str) -> list[str]:
    """Return the lines of `git log --format='%h %s'` whose subjects are too long."""
    return [line for line in log.splitlines() if len(line.partition(" ")[2]) > COLUMNS]


def main() -> int:
    command = ["git", "log", f"-{NEWEST}", "--no-merges", "--format=%h %s"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        return 0
    faults = too_long(told.stdout)
    for line in faults:
        print(f"{line}: {len(line.partition(' ')[2])} columns, the limit is {COLUMNS}: amend it")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
