"""Readings of the machine: bytes the disk wrote, memory and CPU of processes, CPU of other processes. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
TICKS = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


def disk_written(path: Path) -> int:
    """Bytes written to the device below `path` since boot, by anybody, from /proc/diskstats."""
    device = os.stat(path).st_dev
    wanted = (str(os.major(device)), str(os.minor(device)))
    for line in Path("/proc/diskstats").read_text().splitlines():
        parts = line.split()
        if (parts[0], parts[1]) == wanted:
            return int(parts[9]) * SECTOR
    raise RuntimeError(f"{path} is on device {':'.join(wanted)}, which /proc/diskstats does not list: use a real disk")


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of a process, now and at its peak."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            fields[name] = int(value.split()[0]) * 1024
    return {"rss": fields["VmRSS"], "peak": fields["VmHWM"]}


def drop_caches() -> bool:
    """Empty the page cache; only root can, so whether it was done."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    return _taken(stat_fields(pid))


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name. Raises OSError if there is no such process."""
    return _fields_of(Path(f"/proc/{pid}/stat"))


def _fields_of(stat: Path) -> list[str]:
    return stat.read_text().rpartition(")")[2].split()


def _taken(fields: list[str]) -> float:
    return (int(fields[11]) + int(fields[12])) / TICKS


def machine_busy() -> float:
    """Return the seconds of user and system time of all processes since boot, without those of interrupts."""
    user, nice, system = (int(value) / TICKS for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:4])
    return user + nice + system


def machine_cpu_seconds() -> float:
    """Time that all processors were busy since boot."""
    first = Path("/proc/stat").read_text().split("\n")[0]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, first.split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


@dataclass
class Watch:
    """Counters over a stretch of time: `with Watch(folder, pids) as watch`, then the fields.

    `own_cpu` is that of `pids`; `foreign_share` is what all processes but those and this one's ended children took, as
    a share of the machine, which reveals other work on the machine. Without a folder no disk is measured.
    """

    folder: Path | None
    pids: Sequence[int]
    seconds: float = 0.0
    disk_bytes: int = 0
    own_cpu: float = 0.0
    foreign_share: float = 0.0
    _at: tuple[float, int, float, float, float] = field(default=(0.0, 0, 0.0, 0.0, 0.0), repr=False)

    def _read(self) -> tuple[float, int, float, float, float]:
        times = os.times()
        mine = times.user + times.system + times.children_user + times.children_system
        own = sum(cpu_seconds(pid) for pid in self.pids)
        written = 0 if self.folder is None else disk_written(self.folder)
        return time.monotonic(), written, own, machine_cpu_seconds(), mine

    def __enter__(self) -> Watch:
        os.sync()  # what others left unwritten must not be counted as ours
        self._at = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        os.sync()
        was, now = self._at, self._read()
        self.seconds = now[0] - was[0]
        self.disk_bytes = now[1] - was[1]
        self.own_cpu = now[2] - was[2]
        foreign = now[3] - was[3] - self.own_cpu - (now[4] - was[4])
        self.foreign_share = round(max(0.0, foreign / self.seconds / (os.cpu_count() or 1)), 3)


@dataclass(frozen=True)
class Snapshot:
    """Counters of one moment: seconds of CPU, bytes on the disk."""

    at: float
    client: float
    servers: float
    others: float
    processes: float
    kernel: dict[tuple[int, int], float]
    disk: int
    threads: dict[tuple[int, int], float]
    """Seconds of each thread of clients and servers, by process and thread."""
    stolen: float


def snapshot(folder: Path, clients: Sequence[int], servers: Sequence[int], others: Sequence[int] = ()) -> Snapshot:
    """Take a snapshot of the CPU times. `processes` is user and system time of all processes, kernel threads included,
    interrupts excluded. `others` belong to the measurement, but are not measured."""
    user, nice, system, _idle, _iowait, _irq, _softirq, stolen, *_ = (
        int(value) / TICKS for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    beside = sum(cpu_seconds(pid) for pid in {*others, os.getpid()} - {*clients, *servers})
    own = sum(map(cpu_seconds, servers))
    busy, kernel = user + nice + system, kernel_threads_cpu()
    threads = threads_cpu([*clients, *servers])
    client, disk = sum(map(cpu_seconds, clients)), disk_written(folder)
    return Snapshot(time.monotonic(), client, own, beside, busy, kernel, disk, threads, stolen)


def threads_cpu(pids: Sequence[int]) -> dict[tuple[int, int], float]:
    """Seconds of CPU that each thread of these processes took, by process and thread."""
    taken: dict[tuple[int, int], float] = {}
    for pid in pids:
        for folder in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it ended while we looked
                taken[pid, int(folder.name)] = _taken(_fields_of(folder / "stat"))
    return taken


def kernel_threads_cpu() -> dict[tuple[int, int], float]:
    """Seconds of CPU that each thread of the kernel took since it was made, by id and birth."""
    taken: dict[tuple[int, int], float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = stat_fields(int(folder.name))
        except OSError:  # it ended while we looked
            continue
        if int(fields[6]) & _KERNEL_THREAD:
            taken[int(folder.name), int(fields[19])] = _taken(fields)
    return taken


def between(begin: Snapshot, end: Snapshot, entries: int) -> dict[str, float]:
    """Return the CPU used between two snapshots.

    Foreign is the share of the machine used by processes outside the measurement, kernel threads excluded; stolen is
    the hypervisor's share. `busiest_thread_us` and `busiest_process_us` are CPU an entry; `a_core_each_per_s` is how
    many entries a second the busiest process allows if each process has a core of its own.
    """
    seconds = end.at - begin.at
    capacity = seconds * (os.cpu_count() or 1)
    client, servers = end.client - begin.client, end.servers - begin.servers
    # A thread that ended meanwhile takes all that it ever took with it: counted by sums it would be a loud stranger.
    kernel = sum(taken - begin.kernel.get(thread, 0.0) for thread, taken in end.kernel.items())
    known = client + servers + end.others - begin.others + kernel
    foreign = end.processes - begin.processes - known
    each = 1e6 / max(1, entries)
    threads = {thread: taken - begin.threads.get(thread, 0.0) for thread, taken in end.threads.items()}
    processes: dict[int, float] = {}
    for (pid, _), taken in threads.items():
        processes[pid] = processes.get(pid, 0.0) + taken
    most = max(processes.values(), default=0.0)
    return {
        "busiest_thread_us": round(max(threads.values(), default=0.0) * each, 3),
        "busiest_process_us": round(most * each, 3),
        "a_core_each_per_s": round(entries / most) if most else 0,
        "client_us": round(client * each, 3),
        "servers_us": round(servers * each, 3),
        "cpu_us": round((client + servers) * each, 3),
        "cpu_share": round((client + servers) / capacity, 3),
        "foreign_share": round(max(0.0, foreign / capacity), 3),
        "stolen_share": round((end.stolen - begin.stolen) / capacity, 3),
        "disk_bytes": end.disk - begin.disk,
    }
