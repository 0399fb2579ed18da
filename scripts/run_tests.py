"""Every test, folder by folder, in two rows of pytest runs side by side.

`python scripts/run_tests.py [--lanes N] [--light] [FOLDER...]`. Each line says how long it has been, how far the
whole is, and which test file ended. At the end come the output of what failed, the slowest ten tests, folders that took
more CPU than tests/budget.toml allows, and one line with the sums. Exit code 0 only if all passed within their budgets.
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
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts import share
from scripts.pytest_timing import VARIABLE
from scripts.timings import TIMES, UNKNOWN, Budget, over_budget, read_budgets, read_times, slowest

WAITING = ("spark", "jobs", "bench")
"""They mostly wait for JVMs and need much memory: the first lane runs them one after the other."""
HEAVY = (*WAITING, "interop", "mutants")
"""What --light leaves out: folders that need Spark, or a JDK, or plant bugs in what needs one."""
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)")
ENDINGS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "deselected")
"""Deselected is what this run leaves to `make soak`."""
FILE_LINE = re.compile(r"^tests/\S+ .*\[ *(\d+)%\]$")
NO_TESTS = 5
"""Exit code of pytest for a folder without tests."""


@dataclass
class Suite:
    """What is left to run, what ran, and how far it is; used by all lanes under its lock."""

    folders: list[str]
    budgets: dict[str, Budget]
    light: bool = False
    began: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock)
    shares: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    stopped: bool = False

    def seconds(self, folder: str) -> float:
        return self.budgets.get(folder, UNKNOWN).seconds

    def take(self, waiting_first: bool) -> str | None:
        """The longest folder that is left, of this lane's kind where there is one."""
        with self.lock:
            if self.stopped or not self.folders:
                return None
            kind = [name for name in self.folders if (name in WAITING) == waiting_first]
            chosen = max(kind or self.folders, key=self.seconds)
            self.folders.remove(chosen)
            self.shares[chosen] = 0.0
            return chosen

    def say(self, line: str) -> None:
        with self.lock:
            everything = {*self.folders, *self.shares}
            total = sum(self.seconds(folder) for folder in everything)
            done = sum(self.seconds(folder) * share for folder, share in self.shares.items())
            took = int(time.monotonic() - self.began)
            print(f"{took // 60:3}:{took % 60:02} {done / max(total, 1e-9):4.0%}  {line}", flush=True)

    def run(self, folder: str) -> None:
        """One folder to its end."""
        times = TIMES / f"{folder}.jsonl"
        times.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-p", "scripts.pytest_timing", f"tests/{folder}"]
        command += ["-m", "not spark"] if self.light else []
        # With CI set a test fails where there is no Java; without it is skipped.
        environment = {key: value for key, value in os.environ.items() if not (self.light and key == "CI")}
        environment[VARIABLE] = str(times.absolute())
        # A process of ours starts in a third of the time when its modules were compiled before.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment,
        )  # fmt: skip
        with self.lock:
            self.running.add(process)
        assert process.stdout is not None
        said, last = [], ""
        for line in process.stdout:
            said.append(line)
            last = line.strip() or last
            if found := FILE_LINE.match(line.rstrip()):
                self.shares[folder] = int(found[1]) / 100
                self.say(line.rstrip())
        # Its CPU with that of all that it waited for: a busy machine makes tests slow, but hardly dear.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        self.ended(folder, process, "".join(said), last, usage.ru_utime + usage.ru_stime)

    def ended(self, folder: str, process: subprocess.Popen[str], text: str, last: str, cpu: float) -> None:
        with self.lock:
            self.running.discard(process)
            self.shares[folder], self.cpu[folder] = 1.0, cpu
            for number, what in COUNT.findall(last):
                self.sums[what.rstrip("s") if what == "errors" else what] += int(number)
            self.say(f"tests/{folder}: {last.strip('= ')}, {cpu:.0f} s of CPU")
            if process.returncode not in (0, NO_TESTS):
                self.failed[folder] = text
                sys.stdout.write(text)

    def lane(self, waiting_first: bool) -> None:
        while folder := self.take(waiting_first):
            self.run(folder)

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/run_tests.py", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="below tests/; default: all")
    parser.add_argument("--lanes", type=int, default=2, help="rows of pytest runs side by side (default 2)")
    parser.add_argument("--light", action="store_true", help="without what needs Spark or Java")
    options = parser.parse_args()
    TIMES.mkdir(exist_ok=True)
    every = [folder for folder in all_folders() if not (options.light and folder in HEAVY)]
    suite = Suite(options.folders or every, read_budgets(), options.light)
    unknown = [folder for folder in suite.folders if not Path("tests", folder).is_dir()]
    if unknown:
        parser.error(f"no folder tests/{unknown[0]}")
    chosen = list(suite.folders)
    number = share.share_of_this_run()
    if number is not None:
        os.environ[share.VARIABLE] = str(number)  # the same for all folders, whatever is committed meanwhile
    print(share.told(number), flush=True)
    lanes = [threading.Thread(target=suite.lane, args=(n == 0,), daemon=True) for n in range(options.lanes)]
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    except BaseException:
        suite.stop()
        raise
    return report(suite, chosen)


def all_folders(root: Path = Path("tests")) -> list[str]:
    """Folders below tests/ that have tests."""
    return sorted(folder.name for folder in root.iterdir() if folder.is_dir() and any(folder.rglob("test_*.py")))


def report(suite: Suite, folders: list[str]) -> int:
    print("\nslowest tests:")
    for row in slowest(row for folder in folders for row in read_times(TIMES / f"{folder}.jsonl")):
        print(f"  {row.seconds:7.1f} s  {row.cpu:7.1f} s of CPU  {row.test}")
    too_dear = over_budget(suite.cpu, suite.budgets)
    for line in too_dear:
        print(f"OVER BUDGET: {line}")
    if suite.failed:
        print(f"failed: {', '.join(f'tests/{folder}' for folder in suite.failed)}")
    took = time.monotonic() - suite.began
    told = ", ".join(f"{suite.sums[what]} {what}" for what in ENDINGS if suite.sums[what])
    print(f" {told} in {took:.2f}s ({int(took) // 60}:{int(took) % 60:02}) ".center(100, "="), flush=True)
    return 1 if suite.failed or too_dear or len(suite.cpu) < len(folders) else 0


if __name__ == "__main__":
    sys.exit(main())
