"""Checks to run after each change: lint, format, layers, types, generated pages, and quick tests of what changed.

`python scripts/check.py [--seconds N]`. Changed files are those that differ from where the branch left main; on main
itself those not committed, and if there are none, those of the last commit. The tests that are about a changed file
always run: those in the mirrored place and in its row of tests/modules.toml. Then come those that import it, as many as
fit into the time; the others are left to `make test`. A change that no quick test is about gets a line NOT TESTED with
the command that tests it. Exit code 0 if all held and each quick test that is about a change did run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.choice import SPARK, WORKERS, Choice, chosen, read_tests
from scripts.choice import command as command_for
from scripts.nearest import read_table
from scripts.pytest_timing import ALWAYS, DEADLINE, OUTCOMES, VARIABLE
from scripts.timings import TIMES, Outcome, file_seconds, read_outcomes

BIN = Path(sys.executable).parent
SECONDS = 18.0
"""For the tests, by the clock."""
STEPS: dict[str, list[str]] = {
    "types": [str(BIN / "mypy"), "--strict"],
    "types of tools": [str(BIN / "mypy"), "--strict", "bench", "chaos", "examples", "javakit", "scripts", "simulator"],
    "lint": [str(BIN / "ruff"), "check", "--quiet", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "layers": [str(BIN / "lint-imports"), "--no-cache"],
    "dead": [sys.executable, "scripts/dead.py"],
    "pages": [sys.executable, "scripts/generate_docs.py", "--check"],
    "names": [sys.executable, "scripts/generate_names.py", "--check"],
    "sync": [sys.executable, "scripts/generate_sync.py", "--check"],
    "words": [sys.executable, "scripts/words.py", "--most", "2"],
    "pointers": [sys.executable, "scripts/pointers.py"],
    "subjects": [sys.executable, "scripts/subjects.py"],
}
ROWS = (
    ("types", "types of tools"),
    ("lint", "format", "layers", "dead", "pages", "names", "sync", "words", "pointers", "subjects"),
)
"""Rows of steps that run side by side; the two of types have one cache."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/check.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the tests (default {SECONDS:g})")
    parser.add_argument("--lint", action="store_true", help="everything but the tests")
    options = parser.parse_args()
    began = time.monotonic()
    with ThreadPoolExecutor(len(ROWS)) as pool:
        failed = [name for row in pool.map(failed_of, ROWS) for name in row]
    if not options.lint:
        failed += [] if tested(options.seconds) else ["tests"]
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'all held'} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


def failed_of(row: Iterable[str]) -> list[str]:
    """Run these steps one after the other; return those that failed."""
    return [name for name in row if (SPARK or name != "pages") and not passed(name, STEPS[name])]


def tested(seconds: float) -> bool:
    """Run the quick tests of the changes, and report what they leave out."""
    changes = changed()
    choice = chosen(changes, read_tests(), read_table(), file_seconds(), seconds)
    good = True
    if not choice.must and not choice.may:
        print(f"  tests          none: no quick test knows what changed ({len(changes)} files)")
    else:
        good = run(choice, seconds)
    for line in choice.untested:
        print(f"  NOT TESTED     {line}", flush=True)
    return good


def passed(name: str, command: list[str]) -> bool:
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    good, said, note = done.returncode == 0, done.stdout, ""
    if name.startswith("types") and done.returncode == 1 and not SPARK:
        wrong = [line for line in said.splitlines() if ": error: " in line and not about_spark(line)]
        good, said, note = not wrong, "\n".join(wrong), "  without files that use PySpark: that is make lint"
    print(f"  {name:14} {'ok' if good else 'FAILED':6} {time.monotonic() - began:5.1f} s{note}", flush=True)
    if not good:
        print(said, flush=True)
    return good


def about_spark(line: str) -> bool:
    """Return whether an error of mypy is in a file whose types come from PySpark."""
    path = Path(line.partition(":")[0])
    return path.exists() and "pyspark" in path.read_text()


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints; empty if it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def changed() -> list[str]:
    """Names of the files that the change is about."""
    base = (git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main") or ["HEAD"])[0]
    found = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return found or git("diff", "--name-only", "HEAD~1")


def run(choice: Choice, seconds: float) -> bool:
    """Run the chosen test files in two processes, those that must run first.

    What is marked as long is left out, and of those that only import something that changed what the time does not
    allow.
    """
    began, times, ran = time.monotonic(), TIMES / "check.jsonl", TIMES / "check-ran.jsonl"
    TIMES.mkdir(exist_ok=True)
    ran.unlink(missing_ok=True)
    if times.exists() and times.stat().st_size > 1_000_000:
        times.unlink()
    environment = {
        **os.environ, VARIABLE: str(times.absolute()), OUTCOMES: str(ran.absolute()), DEADLINE: str(began + seconds),
        ALWAYS: os.pathsep.join(choice.must),
    }  # fmt: skip
    files = [*choice.must, *choice.may]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-x", "-r", "f", "-p", "scripts.pytest_timing"]
    command += ["-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not slow and not spark"]
    done = subprocess.run([*command, *files], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    good = done.returncode in (0, 5)
    if not good:
        print(done.stdout)
    last = (done.stdout.rstrip().splitlines() or [""])[-1].strip("= ")
    told = "ok" if good else "FAILED"
    left = f"; {choice.left} more that import it are left to make test" if choice.left else ""
    print(f"  {'tests':14} {told:6} {time.monotonic() - began:5.1f} s  {last} ({len(files)} files{left})", flush=True)
    return good and told_of_unrun(choice, read_outcomes(ran))


def told_of_unrun(choice: Choice, outcomes: Mapping[str, Outcome]) -> bool:
    """Say which tests that are about a change did not run. False if one had to."""
    good = True
    for name in choice.must:
        outcome = outcomes.get(name, Outcome())
        if outcome.ran:
            continue
        changes = ", ".join(choice.about[name])
        if outcome.skipped:
            print(f"  NOT TESTED     {changes}: {name} was skipped: {outcome.skipped}", flush=True)
        else:
            print(f"  NOT TESTED     {changes}: no test of {name} ran; run: {command_for([name])}", flush=True)
            good = False
    return good


if __name__ == "__main__":
    raise SystemExit(main())
