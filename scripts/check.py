"""What to run after each change: lint, format, layers, types, generated pages, and quick tests of what changed.

`python scripts/check.py [--seconds N]`. Changed is what differs from where the branch left main, on main itself what is
not committed, and where that is nothing, the last commit. Tests are chosen by what they import, those that know most
about the change first, as many as fit into the time; the others are left to `make test`. Exit code 0 if all held.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.pytest_timing import DEADLINE, VARIABLE
from scripts.timings import TIMES, file_seconds

BIN = Path(sys.executable).parent
SECONDS = 18.0
"""For the tests, by the clock."""
SPARK = find_spec("pyspark") is not None
"""`make setup` brings none: then what needs it is left to `make lint` and `make test`."""
NOT_QUICK = ("tests/spark/", "tests/jobs/", "tests/interop/", "tests/mutants/")
UNKNOWN_S = 3.0
"""What a test file is taken to need before it was run here."""
WORKERS = 2
STEPS: dict[str, list[str]] = {
    "lint": [str(BIN / "ruff"), "check", "--quiet", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "layers": [str(BIN / "lint-imports"), "--no-cache"],
    "pages": [sys.executable, "scripts/generate_docs.py", "--check"],
    "types": [str(BIN / "mypy"), "--strict"],
    "types of tools": [str(BIN / "mypy"), "--strict", "bench", "examples", "javakit", "scripts"],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/check.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the tests (default {SECONDS:g})")
    options = parser.parse_args()
    began = time.monotonic()
    skipped = set() if SPARK else {"pages"}
    failed = [name for name, command in STEPS.items() if name not in skipped and not passed(name, command)]
    changes = changed()
    files = chosen(changes, Path("tests").rglob("test_*.py"), file_seconds(), options.seconds)
    if files and not run(files, options.seconds):
        failed.append("tests")
    elif not files:
        print(f"  tests          none: no quick test knows what changed ({len(changes)} files)")
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'all held'} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


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
    """Whether an error of mypy is in a file whose types come from PySpark."""
    path = Path(line.partition(":")[0])
    return path.exists() and "pyspark" in path.read_text()


def git(*arguments: str) -> list[str]:
    """Lines of what git says; none where it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def changed() -> list[str]:
    """Names of the files that the change is about."""
    base = (git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main") or ["HEAD"])[0]
    found = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return found or git("diff", "--name-only", "HEAD~1")


def module_of(path: str) -> str:
    """The dotted name under which tests import this file."""
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


def imported(text: str) -> set[str]:
    """Modules that a file names in its imports; `from a import b` is both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def chosen(changes: Iterable[str], tests: Iterable[Path], seconds: dict[str, float], most_s: float) -> list[str]:
    """Test files to run, those that know most about the change first, as far as the time goes."""
    changes = list(changes)
    modules = {module_of(path) for path in changes if path.endswith(".py")}
    others = [Path(path).name for path in changes if not path.endswith(".py") and not path.startswith("tests/")]
    names = {f"test_{module.rpartition('.')[2]}" for module in modules}
    scores: dict[str, float] = {}
    for path in tests:
        name, text = path.as_posix(), path.read_text()
        if name.startswith(NOT_QUICK):
            continue
        ours = {one for one in imported(text) if one.startswith(("buckram", "tests", "scripts", "bench"))}
        known = ours & modules
        if name in changes:
            scores[name] = 3.0
        elif known or any(other in text for other in others):
            # A test that imports little else is about the change; one that imports everything is about everything.
            scores[name] = len(known) / max(1, len(ours)) + (path.stem in names)
    left, found = most_s * WORKERS * 0.8, []
    for name in sorted(scores, key=lambda name: (-scores[name], name)):
        needed = seconds.get(name, UNKNOWN_S)
        if needed <= left:
            left -= needed
            found.append(name)
    return found


def run(files: list[str], seconds: float) -> bool:
    """These test files in two processes; what is marked as slow and what the time does not allow is left out."""
    began, times = time.monotonic(), TIMES / "check.jsonl"
    TIMES.mkdir(exist_ok=True)
    if times.exists() and times.stat().st_size > 1_000_000:
        times.unlink()
    environment = {**os.environ, VARIABLE: str(times.absolute()), DEADLINE: str(began + seconds)}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-x", "-r", "f", "-p", "scripts.pytest_timing"]
    command += ["-n", str(WORKERS), "--dist", "loadfile", "-m", "not slow and not spark", *files]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    good = done.returncode in (0, 5)
    if not good:
        print(done.stdout)
    last = (done.stdout.rstrip().splitlines() or [""])[-1].strip("= ")
    told = "ok" if good else "FAILED"
    print(f"  {'tests':14} {told:6} {time.monotonic() - began:5.1f} s  {last} ({len(files)} files)", flush=True)
    return good


if __name__ == "__main__":
    raise SystemExit(main())
