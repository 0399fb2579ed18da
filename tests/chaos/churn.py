"""Ledgers that live for a minute, a hundred of them deleted a second: how much space do bookies use, and who waits?

`python -m tests.chaos.churn --seconds 3600` runs three bookies and, in processes of their own, a steady writer of a
ledger that stays and the makers of ledgers that do not. Every few seconds it looks at the bytes that each bookie uses:
never more than twice the bytes that live plus two log files, and on the disk two more, which are kept to be written
again. The last line is JSON; exit code 0 only if that held. How long the writer's adds took, alone and beside the
churn, is told only: it says as much of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import random
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.polling import until

from buckram.cluster import Client, connect
from buckram.launch.processes import BookieProcess, stop_all
from chaos.processes import PYTHON, clean_environment

BOOKIES = 3
ENTRY_BYTES = 1024
ENTRIES = 8
"""Of a ledger that is deleted."""
ADDS_PER_S = 50
"""Of the writer whose ledger stays."""
_AT_ONCE = 64
_LOOK_S = 2.0
MIB = 1 << 20


def percentile(values: list[float], part: float) -> float:
    """The value below which this part of them lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


class Used(NamedTuple):
    """Bytes of a bookie: `disk` with the log files that it keeps to write them again, `data` without, of which `logs`
    are blocks of log files."""

    disk: int
    data: int
    logs: int = 0


_LEAST = Used(-sys.maxsize, -sys.maxsize)


def bytes_used(bookie: BookieProcess) -> Used:
    """What the files of a bookie take of the disk. Files come and go meanwhile."""
    disk = other = 0
    for path in bookie.directory.iterdir():
        try:
            size = path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
        disk += size
        other += 0 if path.name.startswith("log-") else size
    assert bookie.ready is not None
    with urllib.request.urlopen(f"http://{bookie.ready.http}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    logs = next(line for line in metrics.splitlines() if line.startswith("buckram_store_log_file_bytes "))
    blocks = int(float(logs.split()[1]))
    return Used(disk, other + blocks, blocks)


@dataclass
class Space:
    """What was seen of all bookies."""

    file_bytes: int
    samples: int = 0
    highest: Used = _LEAST
    worst: Used = _LEAST
    """The most bytes above the bounds; below zero they held."""
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    """Living bytes, and the bytes used by the bookie that used most, of each look."""

    def look(self, live: int, used: list[Used]) -> None:
        self.samples += 1
        most = Used(max(one.disk for one in used), max(one.data for one in used))
        self.highest = Used(max(self.highest.disk, most.disk), max(self.highest.data, most.data))
        bound = 2 * live + 2 * self.file_bytes
        over = Used(most.disk - bound - 2 * self.file_bytes, most.data - bound)
        self.worst = Used(max(self.worst.disk, over.disk), max(self.worst.data, over.data))
        self.seen.append((live, most.data, most.disk))

    @property
    def held(self) -> bool:
        return max(self.worst.disk, self.worst.data) <= 0


class Told:
    """A process of this program, and what it says once a second."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.adds_ms: list[float] = []
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, role: str, uri: str, *rest: str) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(PYTHON, "-m", "tests.chaos.churn", "--role", role, "--uri", uri, *rest),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=clean_environment(),
            limit=MIB,
        )
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.said = json.loads(line)
            self.adds_ms += self.said.pop("adds_ms", ())

    async def stop(self) -> None:
        """It ends when its standard input does."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._listening is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None


async def play(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    uri = f"sqlite://{root / 'metadata.db'}"
    environment = {**clean_environment(), "BUCKRAM_STORE_SEGMENT_BYTES": str(options.segment_bytes)}
    http = ("--http", "127.0.0.1:0")
    bookies = [BookieProcess(uri, root / f"b{one}", options=http, environment=environment) for one in range(BOOKIES)]
    for bookie in bookies:
        bookie.start()
        bookie.wait_ready()
    writer, makers = Told(), [Told() for _ in range(options.makers)]
    space = Space(options.segment_bytes)
    try:
        await writer.start("writer", uri)
        await until(lambda: bool(writer.adds_ms) or writer.ended, "the writer does not begin", 120.0)
        await _watch(space, bookies, writer, makers, options.before)
        alone, writer.adds_ms = writer.adds_ms, []
        for number, one in enumerate(makers):
            await one.start("maker", uri, "--seed", str(number), *_pace(options))
        await until(lambda: all(one.said.get("deleted") or one.ended for one in makers), "nothing is deleted", 600.0)
        await _watch(space, bookies, writer, makers, options.life[1])
        began, before = time.monotonic(), sum(one.said.get("deleted", 0) for one in makers)
        await _watch(space, bookies, writer, makers, options.seconds)
        took, deleted = time.monotonic() - began, sum(one.said["deleted"] for one in makers)
        await asyncio.gather(*(one.stop() for one in (writer, *makers)))
    finally:
        stop_all(bookies)
    p99 = [round(percentile(one, 0.99), 2) for one in (alone, writer.adds_ms)]
    return {
        "space_held": space.held,
        "highest_mib": _in_mib(space.highest[:2]),
        "over_bound_mib": _in_mib(space.worst[:2]),
        "looks": space.samples,
        "live_data_disk_mib": [_in_mib(one) for one in space.seen[:: max(1, len(space.seen) // 40)]],
        "deleted": deleted,
        "deleted_per_s": round((deleted - before) / took, 1),
        "p99_alone_ms": p99[0],
        "p99_ms": p99[1],
        "p99_ratio": round(p99[1] / max(p99[0], 0.01), 2),
        "p50_ms": [round(percentile(one, 0.5), 2) for one in (alone, writer.adds_ms)],
        "adds": [len(alone), len(writer.adds_ms)],
    }


def _pace(options: argparse.Namespace) -> list[str]:
    """Of one maker."""
    return ["--rate", str(options.rate / options.makers), "--life", *map(str, options.life)]


def _in_mib(sizes: Iterable[int]) -> list[float]:
    return [round(one / MIB, 1) for one in sizes]


async def _watch(space: Space, bookies: list[BookieProcess], writer: Told, makers: list[Told], seconds: float) -> None:
    """Look again and again for so long. RuntimeError when a process ends."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        await asyncio.sleep(min(_LOOK_S, seconds))
        if not all(one.alive for one in bookies) or any(one.ended for one in (writer, *makers)):
            raise RuntimeError("a process has ended; its last words are above, or in the bookie's log")
        live = sum(one.said.get("live", 0) for one in (writer, *makers))
        space.look(live, await asyncio.to_thread(lambda: list(map(bytes_used, bookies))))


# -- in processes of their own


async def _write(client: Client, told: dict[str, Any], ends: asyncio.Event) -> None:
    """One add after another at a steady pace; what is late is not made up for."""
    loop, rng = asyncio.get_running_loop(), random.Random(0)
    async with client.create(ensemble="3/3/2") as writer:
        due = loop.time()
        while not ends.is_set():
            began = time.perf_counter()
            await writer.append(rng.randbytes(ENTRY_BYTES))
            told["adds_ms"].append(round(1000 * (time.perf_counter() - began), 3))
            told["live"] += ENTRY_BYTES
            due = max(due + 1 / ADDS_PER_S, loop.time())
            await asyncio.sleep(due - loop.time())


async def _make(client: Client, told: dict[str, Any], ends: asyncio.Event, options: argparse.Namespace) -> None:
    """Make and delete ledgers at a rate, some at the same time."""
    loop, rng, room = asyncio.get_running_loop(), random.Random(options.seed), asyncio.Semaphore(_AT_ONCE)
    living: list[tuple[float, int]] = []

    async def make() -> None:
        async with room:
            async with client.create(ensemble="3/3/2") as writer:
                await writer.append_many(rng.randbytes(ENTRY_BYTES) for _ in range(ENTRIES))
                told["live"] += ENTRIES * ENTRY_BYTES
            heapq.heappush(living, (loop.time() + rng.uniform(*options.life), writer.ledger_id))

    async def delete(ledger: int) -> None:
        async with room:
            await client.delete(ledger)
            told["live"] -= ENTRIES * ENTRY_BYTES
            told["deleted"] += 1

    due = loop.time()
    async with asyncio.TaskGroup() as tasks:
        while not ends.is_set():
            tasks.create_task(make())
            while living and living[0][0] <= loop.time():
                tasks.create_task(delete(heapq.heappop(living)[1]))
            due = max(due + 1 / options.rate, loop.time() - 1)
            await asyncio.sleep(due - loop.time())
            async with room:  # no longer queue than that
                pass


async def _role(options: argparse.Namespace) -> None:
    told: dict[str, Any] = {"live": 0, "deleted": 0, "adds_ms": []}
    ends = asyncio.Event()

    async def tell() -> None:
        while True:
            await asyncio.sleep(1)
            print(json.dumps(told), flush=True)
            told["adds_ms"] = []

    async def wait_for_end() -> None:
        await asyncio.to_thread(sys.stdin.read)
        ends.set()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(options.uri))
        others = [asyncio.create_task(tell()), asyncio.create_task(wait_for_end())]
        if options.role == "writer":
            await _write(client, told, ends)
        else:
            await _make(client, told, ends, options)
        for one in others:
            one.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long deletions go on at the full rate")
    parser.add_argument("--before", type=float, default=60, help="how long the writer is alone first")
    parser.add_argument("--rate", type=float, default=100.0, help="ledgers made and deleted a second")
    parser.add_argument("--life", type=float, nargs=2, default=(30.0, 90.0), help="how long a ledger lives, in seconds")
    parser.add_argument("--makers", type=int, default=2, help="processes that do it")
    parser.add_argument("--segment-bytes", type=int, default=256 * MIB, help="of a bookie's log file")
    parser.add_argument("--keep", action="store_true", help="leave the files where they are")
    parser.add_argument("--role", choices=("writer", "maker"), help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        asyncio.run(_role(options))
        return 0
    root = Path(tempfile.mkdtemp(prefix="buckram-churn-", dir=os.environ.get("BUCKRAM_CHURN_DIR")))
    print(f"files: {root}", file=sys.stderr, flush=True)
    found = asyncio.run(play(options, root))
    if not options.keep and found["space_held"]:
        shutil.rmtree(root)
    print(json.dumps(found))
    return 0 if found["space_held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
