"""Plants bugs one by one and runs the tests that must fail with each: `python -m tests.mutants.killing [NAME...]`.

One process loads the modules once and forks a child for each bug. A line for each bug goes to standard error, sums as
JSON to standard output. The exit code is 1 if a test passes with a bug that it must kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.share import ALL, VARIABLE

ROOT = Path(__file__).parents[2]
LIMIT_S, HANGS_S = 120.0, 10.0
FAILED = 1
"""pytest's exit code when tests failed. Any other one means that they were not found or did not run."""


@dataclass(frozen=True)
class Kill:
    """The result of one bug: tests that failed (`by`), tests that should have (`survived`), or what went wrong."""

    name: str
    by: list[str]
    survived: list[str]
    seconds: float
    trouble: str = ""

    @property
    def killed(self) -> bool:
        return bool(self.by) and not self.survived and not self.trouble

    def __str__(self) -> str:
        if self.killed:
            return f"{self.name}: killed by {', '.join(self.by)} in {self.seconds:.1f} s"
        return f"MISSED {self.name}: {self.trouble or 'passed with the bug: ' + ', '.join(self.survived)}"


class Killer:
    """The process that forks a child for each bug. Close it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.mutants.killing", "--serve"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment[VARIABLE] = ALL  # A planted bug is killed by the seeds that were seen to find it, in every run.
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def kill(self, name: str) -> Kill:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that plants bugs has ended; see standard error")
        return Kill(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the process that forks


def serve() -> None:
    """Read names from standard input, write results to standard output.

    Loads the modules that most tests need before it forks; no threads may run here.
    """
    from tests.mutants.testmutant import all_of_them

    _load()
    mutants = all_of_them()
    for line in sys.stdin:
        answer = _killed(mutants[line.strip()])
        sys.stdout.write(json.dumps(asdict(answer)) + "\n")
        sys.stdout.flush()


def _load() -> None:
    import hypothesis.strategies  # noqa: F401
    import pytest_asyncio.plugin  # noqa: F401

    import buckram.client.ledger_client
    import buckram.metadata.zookeeper.kazoo_session
    import buckram.streams.namespace
    import buckram.testing.plugin  # noqa: F401
    import simulator.ledgers.life
    import simulator.streams.life  # noqa: F401


def _killed(mutant: Any) -> Kill:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="buckram-mutant-") as folder:
        output, failed = Path(folder, "output"), Path(folder, "failed")
        child = os.fork()
        if child == 0:
            _run(mutant, output, failed)  # does not return
        code = _wait(child, HANGS_S if mutant.hangs else LIMIT_S)
        took = time.monotonic() - began
        by = failed.read_text().split("\n")[:-1] if failed.exists() else []
        if code is None and mutant.hangs:
            return Kill(mutant.name, ["they do not end"], [], took)
        survived = [test for test in mutant.tests if not any(_is_of(node, test) for node in by)]
        trouble = ""
        if code not in (0, FAILED):
            text = output.read_text(errors="replace")[-1500:]
            why = f"did not end within {LIMIT_S:.0f} s" if code is None else f"ended with {code}"
            trouble = f"the tests {why}:\n{text}"
        return Kill(mutant.name, by, survived, took, trouble)


def _is_of(node: str, test: str) -> bool:
    return node == test or node.startswith((test + "[", test + "::"))


def _wait(child: int, limit_s: float) -> int | None:
    """Return the exit code of the child, or None if it had to be killed."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(mutant: Any, output: Path, failed: Path) -> None:
    """Run the tests of one bug in the child, and end it."""
    os.setsid()
    code = 99
    out = os.open(output, os.O_WRONLY | os.O_CREAT, 0o644)
    for fd in (1, 2):
        os.dup2(out, fd)
    try:
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "-s"]
        if len(mutant.tests) == 1:
            options.append("-x")
        with mutant.apply(), failed.open("w") as notes:
            code = int(pytest.main([*options, f"--basetemp={output.parent / 'tmp'}", *mutant.tests], [_Notes(notes)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Notes:
    """A plugin of pytest that writes the names of failed tests to a file."""

    def __init__(self, notes: Any) -> None:
        self._notes = notes

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._notes.write(report.nodeid + "\n")
            self._notes.flush()


# -- all of them


def kills(names: list[str], jobs: int) -> Iterator[Kill]:
    """Run the bugs, `jobs` at a time, and return the results in the order of the names."""
    killers = [Killer() for _ in range(min(jobs, len(names)))]
    try:
        free = list(killers)

        def one(name: str) -> Kill:
            killer = free.pop()
            try:
                return killer.kill(name)
            finally:
                free.append(killer)

        with ThreadPoolExecutor(len(killers) or 1) as pool:
            yield from pool.map(one, names)
    finally:
        for killer in killers:
            killer.close()


def main() -> int:
    from tests.mutants.testmutant import all_of_them

    parser = argparse.ArgumentParser(prog="python -m tests.mutants.killing", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    known = all_of_them()
    names = options.names or list(known)
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"no planted bug {unknown[0]!r}; there are: {', '.join(known)}\n")
        return 2
    found: list[Kill] = []
    for kill in kills(names, options.jobs):
        found.append(kill)
        sys.stderr.write(f"{kill}\n")
        sys.stderr.flush()
    missed = [kill.name for kill in found if not kill.killed]
    line = {"mutants": len(found), "killed": len(found) - len(missed), "missed": missed,
            "by": {kill.name: kill.by for kill in found},
            "seconds": {kill.name: round(kill.seconds, 1) for kill in found}}  # fmt: skip
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
