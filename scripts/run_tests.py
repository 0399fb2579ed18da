"""Every test, folder by folder, in up to five pytest runs side by side: what waits runs beside what computes.

`python scripts/run_tests.py [--lanes N] [--light] [--lint] [FOLDER...]`. Long folders run in parts (tests/budget.toml),
and which parts run side by side is decided in scripts/lanes.py. Each line says how long it has been, how far the
whole is, and which test file ended. At the end come the output of what failed, the slowest ten tests, what each folder
took (scripts/timings.py) and which took more CPU than tests/budget.toml allows, and one line with the sums. How dear
work is on the machine is measured meanwhile (scripts/machine_speed.py). Exit code 0 only if all passed within their
budgets.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts import share
from scripts.lanes import LINT, Costs, Part, next_part, parts_of, split
from scripts.machine_speed import MachineSpeed, Sample
from scripts.pytest_timing import ALWAYS, DEADLINE, OUTCOMES, VARIABLE
from scripts.timings import HEADING, TIMES, Spent, file_seconds, read_budgets, read_times, slowest, verdicts_of

HEAVY = ("spark", "bench", "interop", "mutants")
"""Folders that --light leaves out: they need Spark, or a JDK, or plant bugs in code that needs one."""
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)")
ENDINGS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "deselected")
"""Deselected is what this run leaves to `make soak`."""
FILE_LINE = re.compile(r"^tests/\S+ .*\[ *(\d+)%\]$")
LANES = 5
UNKNOWN_S = 5.0
"""Assumed seconds of a test file that has not run here yet."""
GROUP = re.compile(r"""mark\.share\([^,()]+,\s*["']([^"']+)["']""")
"""Tests of several files of which a run has a share (tests/support/soak.py)."""
NO_TESTS = 5
"""Exit code of pytest for a folder without tests."""


@dataclass
class Suite:
    """Progress of a run: parts that are left, that run and that have ended; used by all lanes under its lock."""

    left: list[Part]
    costs: Costs
    light: bool = False
    began: float = field(default_factory=time.monotonic)
    lock: threading.Condition = field(default_factory=threading.Condition)
    shares: dict[Part, float] = field(default_factory=dict)
    """Completed share of each part that has begun."""
    spent: list[Spent] = field(default_factory=list)
    """Costs of the parts that have ended."""
    ended: set[Part] = field(default_factory=set)
    sums: Counter[str] = field(default_factory=Counter)
    failed: dict[Part, str] = field(default_factory=dict)
    running: dict[Part, subprocess.Popen[str] | None] = field(default_factory=dict)
    files: dict[Part, list[str]] = field(default_factory=dict)
    stopped: bool = False

    def take(self) -> Part | None:
        """Wait for a part that fits beside those that run, and return the longest; None when nothing is left."""
        with self.lock:
            while self.left and not self.stopped:
                part = next_part(self.left, self.running, self.costs)
                if part is not None:
                    self.left.remove(part)
                    self.shares[part], self.running[part] = 0.0, None
                    return part
                self.lock.wait()
            return None

    def say(self, line: str) -> None:
        with self.lock:
            everything = {*self.left, *self.shares}
            total = sum(self.costs.seconds(part) for part in everything)
            done = sum(self.costs.seconds(part) * share for part, share in self.shares.items())
            took = int(time.monotonic() - self.began)
            print(f"{took // 60:3}:{took % 60:02} {done / max(total, 1e-9):4.0%}  {line}", flush=True)

    def command(self, part: Part) -> list[str]:
        if part.folder == LINT:
            return [sys.executable, "scripts/check.py", "--lint"]
        files = self.files.get(part, [f"tests/{part.folder}"])
        marks = ["-m", "not spark"] if self.light else []
        return [sys.executable, "-m", "pytest", "-p", "scripts.pytest_timing", *files, *marks]

    def run(self, part: Part) -> None:
        """Run one part to its end."""
        times, began = times_of(part), time.monotonic()
        times.unlink(missing_ok=True)
        # With CI set a test fails where there is no Java; without it is skipped.
        environment = {key: value for key, value in os.environ.items() if not (self.light and key == "CI")}
        environment[VARIABLE] = str(times.absolute())
        for name in (DEADLINE, ALWAYS, OUTCOMES):  # of a `make check` that runs the tests of this runner
            environment.pop(name, None)
        # A process of ours starts in a third of the time when its modules were compiled before.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            self.command(part), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment,
        )  # fmt: skip
        with self.lock:
            self.running[part] = process
            if self.stopped:
                process.kill()
        assert process.stdout is not None
        said, last = [], ""
        for line in process.stdout:
            said.append(line)
            last = line.strip() or last
            if found := FILE_LINE.match(line.rstrip()):
                self.shares[part] = int(found[1]) / 100
                self.say(line.rstrip())
        # Its CPU with that of all that it waited for.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        spent = Spent(part.folder, usage.ru_utime + usage.ru_stime, began, time.monotonic())
        self.end(part, process.returncode, "".join(said), last, spent)

    def end(self, part: Part, code: int, text: str, last: str, spent: Spent) -> None:
        with self.lock:
            self.ended.add(part)
            self.shares[part] = 1.0
            if part.folder != LINT:
                self.spent.append(spent)
                for number, what in COUNT.findall(last):
                    self.sums[what.rstrip("s") if what == "errors" else what] += int(number)
            name = LINT if part.folder == LINT else f"tests/{part}"
            self.say(f"{name}: {last.strip('= ')}, {spent.cpu:.0f} s of CPU")
            if code not in (0, NO_TESTS):
                self.failed[part] = text
                sys.stdout.write(text)

    def lane(self) -> None:
        while (part := self.take()) is not None:
            try:
                self.run(part)
            finally:
                with self.lock:
                    self.running.pop(part, None)
                    self.lock.notify_all()

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running.values():
                if process is not None:
                    process.kill()
            self.lock.notify_all()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/run_tests.py", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="below tests/; default: all")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"pytest runs side by side (default {LANES})")
    parser.add_argument("--light", action="store_true", help="without what needs Spark or Java")
    parser.add_argument("--lint", action="store_true", help="lint and types, too, beside the tests")
    options = parser.parse_args()
    TIMES.mkdir(exist_ok=True)
    folders = options.folders or [name for name in all_folders() if not (options.light and name in HEAVY)]
    unknown = [folder for folder in folders if not Path("tests", folder).is_dir()]
    if unknown:
        parser.error(f"no folder tests/{unknown[0]}")
    costs = Costs(read_budgets())
    parts = parts_of(folders, costs.budgets) + ([Part(LINT)] if options.lint else [])
    suite = Suite(list(parts), costs, options.light, files=files_of(parts))
    number = share.share_of_this_run()
    if number is not None:
        os.environ[share.VARIABLE] = str(number)  # the same for all folders, whatever is committed meanwhile
    print(share.told(number), flush=True)
    lanes = [threading.Thread(target=suite.lane, daemon=True) for _ in range(options.lanes)]
    with MachineSpeed() as speed:
        try:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
        except BaseException:
            suite.stop()
            raise
    return report(suite, parts, speed.samples)


def times_of(part: Part) -> Path:
    return TIMES / (f"{part.folder}.jsonl" if part.number == 1 else f"{part.folder}.{part.number}.jsonl")


def files_of(parts: Iterable[Part]) -> dict[Part, list[str]]:
    """Return the test files of each part that is not a whole folder."""
    found: dict[Part, list[str]] = {}
    known = file_seconds()
    for part in parts:
        if part.of > 1:
            texts = {path.as_posix(): path.read_text() for path in Path("tests", part.folder).rglob("test_*.py")}
            groups = {name: GROUP.findall(text) for name, text in texts.items()}
            needed = {name: known.get(name, UNKNOWN_S) for name in texts}
            found[part] = split(needed, part.of, groups)[part.number - 1]
    return found


def all_folders(root: Path = Path("tests")) -> list[str]:
    """Folders below tests/ that have tests."""
    return sorted(folder.name for folder in root.iterdir() if folder.is_dir() and any(folder.rglob("test_*.py")))


def report(suite: Suite, parts: list[Part], samples: Sequence[Sample]) -> int:
    print("\nslowest tests:")
    for row in slowest(row for part in parts for row in read_times(times_of(part))):
        print(f"  {row.seconds:7.1f} s  {row.cpu:7.1f} s of CPU  {row.test}")
    verdicts = verdicts_of(suite.spent, suite.costs.budgets, samples)
    print(f"\n  {HEADING}")
    for verdict in verdicts:
        print(f"  {verdict}")
    too_dear = [verdict.over for verdict in verdicts if verdict.over]
    for line in too_dear:
        print(f"OVER BUDGET: {line}")
    if suite.failed:
        print(f"failed: {', '.join(LINT if part.folder == LINT else f'tests/{part}' for part in suite.failed)}")
    took = time.monotonic() - suite.began
    told = ", ".join(f"{suite.sums[what]} {what}" for what in ENDINGS if suite.sums[what])
    print(f" {told} in {took:.2f}s ({int(took) // 60}:{int(took) % 60:02}) ".center(100, "="), flush=True)
    return 1 if suite.failed or too_dear or len(suite.ended) < len(parts) else 0


if __name__ == "__main__":
    sys.exit(main())
