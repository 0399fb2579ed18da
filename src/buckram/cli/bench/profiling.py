"""`buckram bench --profile`: samples this process and the bookies of this machine with py-spy during the measured part
of a load, and shows the samples as a flame graph (SVG) and as microseconds per entry by stage.

Stacks are those of `py-spy record --format raw`: frames from the outermost on with semicolons between, a space, a
count. They stand beside lower bounds that are measured on this machine: copying, checking, sending and syncing an
entry's bytes. Linux only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import google_crc32c

from buckram.errors import BuckramError, ConfigError
from buckram.runtime.disk.syncing import sync_data, sync_file

Stacks = Mapping[tuple[str, ...], int]
WIDTH, ROW, FONT = 1200, 16, 11
NARROWEST = 0.0008
"""Share of the width below which a frame is not drawn."""
OTHER = "event loop and its system calls"
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^():]+)(?::\d+)?\)$")

# What a frame's time is for, by a part of its file's path: the innermost frame that is known, the first row that fits.
STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "checksums and frames",
        (
            "core/wire/adds",
            "core/entries/python_twins.py",
            "core/entries/entry.py",
            "core/entries/strides.py",
            "core/ledgers/runs.py",
        ),
    ),
    (
        "splitting and decoding",
        ("core/wire/server_protocol.py", "core/wire/frames.py", "core/wire/v2.py", "core/wire/v3.py"),
    ),
    ("matching answers", ("core/wire/acks.py", "core/wire/client_protocol.py")),
    ("counting acknowledgements", ("core/ledgers/append.py", "core/ledgers/quorum.py", "core/ledgers/answers.py")),
    (
        "room and futures",
        (
            "client/write/append_limits.py",
            "client/write/completions.py",
            "client/write/engine.py",
            "asyncio/futures.py",
        ),
    ),
    ("sending", ("runtime/net/", "client/write/outbox.py", "client/shared/send_batcher.py")),
    ("reading", ("client/", "core/ledgers/reading.py", "core/entries/packed.py")),
    (
        "admission and dispatch",
        (
            "bookie/service/entries/adds.py",
            "bookie/service/dispatch.py",
            "bookie/service/entries/admission.py",
            "bookie/service/connections/memory_budget.py",
        ),
    ),
    ("connections", ("bookie/service/connections/session.py", "bookie/service/server.py")),
    (
        "commit: copy, write, sync",
        ("bookie/storage/log/group_commit.py", "bookie/storage/log/block.py", "runtime/disk/"),
    ),
    (
        "index and store",
        (
            "bookie/storage/store.py",
            "bookie/storage/segments/index.py",
            "bookie/storage/ledger_table.py",
            "bookie/storage/store_state.py",
        ),
    ),
    (
        "sealing and compaction",
        (
            "bookie/storage/upkeep/maintenance.py",
            "bookie/storage/upkeep/log_files.py",
            "bookie/storage/upkeep/log_files.py",
            "bookie/storage/upkeep/compaction",
            "bookie/storage/segments/segments.py",
            "bookie/storage/disk_space.py",
        ),
    ),
    (
        "reads of a bookie",
        (
            "bookie/service/entries/reads.py",
            "bookie/service/entries/read_replies.py",
            "bookie/storage/reading/lookup.py",
            "bookie/storage/reading/fetching.py",
            "bookie/storage/reading/read_ahead.py",
        ),
    ),
    ("load generator", ("cli/bench/load.py", "cli/bench/profiling.py", "bench/")),
)


def parse(text: str) -> Counter[tuple[str, ...]]:
    """Return stacks with their counts; raises ValueError for a line of another form."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        if line.strip():
            frames, _, count = line.rpartition(" ")
            found[tuple(frames.split(";"))] += int(count)
    return found


def stage_of(stack: tuple[str, ...]) -> str:
    """Return the stage of the innermost frame that belongs to one."""
    for frame in reversed(stack):
        named = _FRAME.match(frame)
        if named is None:
            continue
        path = named["file"]
        for stage, parts in STAGES:
            if any(part in path for part in parts):
                return stage
    return OTHER


def budget(stacks: Stacks, us_per_entry: float) -> dict[str, float]:
    """Return microseconds per entry by stage, the dearest first: the process's CPU time by the share of samples."""
    total = sum(stacks.values())
    by_stage: Counter[str] = Counter()
    for stack, count in stacks.items():
        by_stage[stage_of(stack)] += count
    return {stage: round(us_per_entry * count / max(1, total), 3) for stage, count in by_stage.most_common()}


@dataclass
class _Node:
    """A frame with all that it called."""

    count: int = 0
    calls: dict[str, _Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((node.depth() for node in self.calls.values()), default=0)


def svg(title: str, processes: Mapping[str, Stacks]) -> str:
    """Return a flame graph of several processes side by side as SVG. The width of a frame is its share of time, callees
    stand above their caller. The pointer on a frame shows its name and share."""
    root = _Node()
    for name, stacks in processes.items():
        for stack, count in stacks.items():
            node = root
            node.count += count
            for frame in (name, *stack):
                node = node.calls.setdefault(frame, _Node())
                node.count += count
    height = (root.depth() + 2) * ROW
    boxes: list[str] = []
    _draw(root, 0.0, -1, height - ROW, max(1, root.count), boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" '
        f'font-size="{FONT}"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="{ROW - 4}">{escape(title)}</text>' + "".join(boxes) + "</svg>\n"
    )


def _draw(node: _Node, left: float, level: int, base: float, total: int, boxes: list[str]) -> None:
    for name, called in sorted(node.calls.items()):
        share = called.count / total
        if share >= NARROWEST:
            boxes.append(_box(name, left, share, base - (level + 2) * ROW))
            _draw(called, left, level + 1, base, total, boxes)
        left += share


def _box(name: str, left: float, share: float, top: float) -> str:
    width = share * WIDTH
    hue = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16) % 50 + 10
    letters = int(width / (FONT * 0.62))
    shown = name if len(name) <= letters else name[: max(0, letters - 2)] + ".." if letters > 4 else ""
    label = f'<text x="{left * WIDTH + 2:.1f}" y="{top + ROW - 4:.1f}">{escape(shown)}</text>' if shown else ""
    return (
        f'<g><title>{escape(name)} {share:.2%}</title><rect x="{left * WIDTH:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{ROW - 1}" fill="hsl({hue},80%,65%)"/>{label}</g>'
    )


def table(budgets: Iterable[tuple[str, Mapping[str, float]]]) -> str:
    """Markdown: one table a process, and their sums."""
    lines = []
    for name, stages in budgets:
        lines += [f"## {name}", "", "| stage | us per entry |", "|---|---:|"]
        lines += [f"| {stage} | {value:.3f} |" for stage, value in stages.items()]
        lines += [f"| **sum** | {sum(stages.values()):.3f} |", ""]
    return "\n".join(lines)


CHUNK = 64 * 1024
"""Bytes of one send; what a loop turn under load has for a connection."""
GROUP = 1024 * 1024
"""Bytes of one write and sync; a group commit under load."""
SECONDS = 0.3


def _cost(step: Callable[[], int]) -> float:
    """Return CPU seconds of this process for each byte; `step` returns how many it processed."""
    step()
    done, cpu, end = 0, time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        done += step()
    return (time.process_time() - cpu) / done


def _copying() -> Callable[[], int]:
    source, target = bytes(GROUP), bytearray(GROUP)

    def step() -> int:
        target[:] = source
        return GROUP

    return step


def _checking(size: int) -> Callable[[], int]:
    body, extend = bytes(size), google_crc32c.extend

    def step() -> int:
        for _ in range(1000):
            extend(0, body)
        return 1000 * size

    return step


def _sending() -> float:
    """Return CPU seconds for each byte through a TCP connection of this machine, both ends together."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    body, buffer = bytes(CHUNK), bytearray(CHUNK)

    def drain() -> None:
        while receiver.recv_into(buffer):
            pass

    with sender, receiver:
        thread = threading.Thread(target=drain, daemon=True)
        thread.start()

        def step() -> int:
            sender.sendall(body)
            return CHUNK

        cost = _cost(step)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    return cost


def _syncing(folder: Path) -> tuple[float, float]:
    """Return CPU seconds for each byte written past the page cache and synced, and seconds that one such group
    takes."""
    size = 16 * GROUP
    with tempfile.NamedTemporaryFile(dir=folder, prefix="floor-") as file:
        file.write(bytes(size))
        file.flush()
        sync_file(file.fileno())
        try:
            target = os.open(file.name, os.O_WRONLY | getattr(os, "O_DIRECT", 0))
        except OSError:  # a file system without it
            target = os.open(file.name, os.O_WRONLY)
        # An anonymous mapping begins at a page, as direct writes want it.
        with mmap.mmap(-1, GROUP) as body:
            at, groups, began = 0, 0, time.perf_counter()

            def step() -> int:
                nonlocal at, groups
                os.pwrite(target, body, at)
                sync_data(target)
                at, groups = (at + GROUP) % size, groups + 1
                return GROUP

            try:
                cost = _cost(step)
                return cost, (time.perf_counter() - began) / groups
            finally:
                os.close(target)


def measure(size: int, folder: Path) -> dict[str, float]:
    """Return microseconds of CPU for an entry of `size` bytes; `folder` is on the device to measure. The result also
    has the milliseconds of syncing a group of one megabyte, which is elapsed time, not CPU."""
    entry = max(1, size)
    write, group = _syncing(folder)
    return {
        "copy_us": round(_cost(_copying()) * entry * 1e6, 4),
        "checksum_us": round(_cost(_checking(entry)) * entry * 1e6, 4),
        "send_and_receive_us": round(_sending() * entry * 1e6, 4),
        "write_and_sync_us": round(write * entry * 1e6, 4),
        "sync_of_1_mb_ms": round(group * 1e3, 3),
    }


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
        stacks = {name: parse(self._raw(name).read_text()) for name in self.pids}
        each = {name: 1e6 * self._cpu[name] / max(1, entries) for name in self.pids}
        found: dict[str, Any] = {name: budget(stacks[name], each[name]) for name in self.pids}
        least = measure(size, self.folder)
        text = table(found.items()) + "\n## floor\n\n| what | |\n|---|---:|\n"
        text += "".join(f"| {name} | {value} |\n" for name, value in least.items())
        (self.folder / "flame.svg").write_text(svg(f"{entries:,} entries of {size} bytes", stacks))
        (self.folder / "budget.md").write_text(text)
        whole = {**found, "floor": least}
        (self.folder / "budget.json").write_text(json.dumps(whole, indent=1) + "\n")
        return whole
