"""`buckram bench --profile`: samples this process and the bookies of this machine with py-spy during the measured part
of a load.

The samples are evaluated in flame.py; the machine's lower bounds are measured in floor.py. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buckram.cli.bench import flame, floor
from buckram.errors import BuckramError, ConfigError

RATE = 200
"""Samples a second of each process."""
_LISTENS = "0A"
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class ProfileFailed(BuckramError):
    """py-spy could not profile a process; the message has its output."""


def sampler() -> str:
    """Return the path of py-spy; raises ConfigError if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ConfigError("--profile needs py-spy: pip install py-spy")
    if not Path("/proc/self/stat").exists():
        raise ConfigError("--profile needs Linux: it reads /proc")
    return found


def listeners(ports: set[int]) -> dict[int, int]:
    """Processes of this machine that listen at these TCP ports: pid by port. Those of other users are not seen."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == _LISTENS and port in ports:
                    inodes[f"socket:[{fields[9]}]"] = port
    found: dict[int, int] = {}
    for process in sorted(Path("/proc").iterdir()):
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for descriptor in (process / "fd").iterdir():
                    port_of = inodes.get(os.readlink(descriptor))
                    if port_of is not None:
                        found.setdefault(port_of, int(process.name))
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Profile:
    """Samples of this process ("client") and of others by name; written into `folder` by `finish`."""

    def __init__(self, folder: Path, bookies: Mapping[str, int]) -> None:
        self._sampler = sampler()
        self.folder = folder
        self.pids = {"client": os.getpid(), **bookies}
        self._cpu: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def _raw(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '_').replace(':', '_')}.stacks"

    @contextlib.contextmanager
    def recording(self, _: object = None) -> Iterator[None]:
        """Sample while this is entered."""
        children = {name: self._attach(name, pid) for name, pid in self.pids.items()}
        before = {name: _cpu_seconds(pid) for name, pid in self.pids.items()}
        try:
            yield
            self._cpu = {name: _cpu_seconds(pid) - before[name] for name, pid in self.pids.items()}
        finally:
            for child in children.values():
                child.send_signal(signal.SIGINT)
            said = {name: child.communicate()[1] for name, child in children.items()}
        for name, child in children.items():
            if child.returncode != 0 or not self._raw(name).exists():
                raise ProfileFailed(f"py-spy and {name} (process {self.pids[name]}): {said[name].strip()[-500:]}")

    def _attach(self, name: str, pid: int) -> subprocess.Popen[str]:
        command = [self._sampler, "record", "--pid", str(pid), "--rate", str(RATE), "--format", "raw", "--nonblocking"]
        return subprocess.Popen(
            [*command, "--full-filenames", "--output", str(self._raw(name))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )

    def finish(self, entries: int, size: int) -> dict[str, Any]:
        """Write flame.svg, budget.md and budget.json for a number of entries of `size` bytes. The budget has the
        microseconds of CPU per entry by process and stage, and the floor."""
        stacks = {name: flame.parse(self._raw(name).read_text()) for name in self.pids}
        each = {name: 1e6 * self._cpu[name] / max(1, entries) for name in self.pids}
        found: dict[str, Any] = {name: flame.budget(stacks[name], each[name]) for name in self.pids}
        least = floor.measure(size, self.folder)
        text = flame.table(found.items()) + "\n## floor\n\n| what | |\n|---|---:|\n"
        text += "".join(f"| {name} | {value} |\n" for name, value in least.items())
        (self.folder / "flame.svg").write_text(flame.svg(f"{entries:,} entries of {size} bytes", stacks))
        (self.folder / "budget.md").write_text(text)
        budget = {**found, "floor": least}
        (self.folder / "budget.json").write_text(json.dumps(budget, indent=1) + "\n")
        return budget
