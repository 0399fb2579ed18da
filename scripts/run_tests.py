"""Every test, in two pytest runs side by side: what mostly waits for JVMs and other programs, and the rest.

`python scripts/run_tests.py`. The second run is shown as it goes, the first one when both are done; then one line
with the sums. A part of the tests is run with pytest itself. Exit code 0 only if both passed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

WAITING = ["tests/bench", "tests/jobs", "tests/spark"]
PYTEST = [sys.executable, "-m", "pytest"]
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")
ENDINGS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def main() -> int:
    began = time.monotonic()
    waiting = [folder for folder in WAITING if Path(folder).is_dir()]
    with tempfile.TemporaryFile("w+") as said:
        side = subprocess.Popen([*PYTEST, *waiting], stdout=said, stderr=subprocess.STDOUT)
        try:
            rest, last = shown([*PYTEST, *(f"--ignore={folder}" for folder in waiting)])
            print(f"waiting for {', '.join(waiting)} ...", flush=True)
            code = side.wait()
        except BaseException:
            side.kill()
            side.wait()
            raise
        said.seek(0)
        text = said.read()
    sys.stdout.write(text)
    sums: Counter[str] = Counter()
    for line in (last, text.rstrip().rpartition("\n")[2]):
        for number, what in COUNT.findall(line):
            sums[what.rstrip("s") if what == "errors" else what] += int(number)
    took = time.monotonic() - began
    told = ", ".join(f"{sums[what]} {what}" for what in ENDINGS if sums[what])
    print(f" {told} in {took:.2f}s ({int(took) // 60}:{int(took) % 60:02}) ".center(100, "="), flush=True)
    return rest or code


def shown(command: list[str]) -> tuple[int, str]:
    """Run it with its output passed on; exit code and last line."""
    last = ""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace") as run:
        assert run.stdout is not None
        for line in run.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    return run.returncode, last


if __name__ == "__main__":
    sys.exit(main())
