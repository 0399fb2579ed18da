"""A process that writes to a store on a real disk is killed (kill -9) at full load, many times.

`python -m tests.chaos.kills --kills 1000 --disk direct|buffered [--seed N]`. Each process opens the store of the one
before, checks it (everything acknowledged is there, no limbo), and writes at full speed until it is killed. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from buckram.bookie.storage.store import Store
from buckram.config import StoreConfig
from buckram.core.wire.adds import frame_add
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.process.stats import NullStats

KEY = b"k" * 20
LEDGERS = 3
KEPT = 60
"""How many ledgers are checked at each start; older ones are deleted and compacted."""
CONFIG = StoreConfig(
    segment_bytes=1 << 20,
    commit_max_bytes=256 << 10,
    tail_cache_bytes=1 << 20,
    reserved_bytes=0,
    writable_again_bytes=0,
    compaction_threshold=0.9,
    compaction_bytes_per_s=1 << 30,
)
_FACTS = struct.Struct("<II3q1000s")
MODES = ("inline", "thread", "adaptive")


class Shared:
    """Memory shared with the process that kills this one: ready, bad, last acknowledged entries, a message."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4096)
        self.clear()

    def clear(self) -> None:
        self.memory[: _FACTS.size] = _FACTS.pack(0, 0, -1, -1, -1, b"")

    def acknowledged(self, number: int, entry: int) -> None:
        self.memory[8 + 8 * number : 16 + 8 * number] = entry.to_bytes(8, "little", signed=True)

    def ready(self) -> None:
        self.memory[0:4] = b"\1\0\0\0"

    def bad(self, what: str) -> None:
        self.memory[32:1032] = what.encode()[:1000].ljust(1000, b"\0")
        self.memory[4:8] = b"\1\0\0\0"

    def read(self) -> tuple[bool, bool, list[int], str]:
        ready, bad, *rest = _FACTS.unpack_from(self.memory)
        return bool(ready), bool(bad), list(rest[:3]), rest[3].rstrip(b"\0").decode()


def stored(ledger: int, entry: int, size: int) -> bytes:
    return struct.pack(">qqqq", ledger, entry, entry - 1, 0) + bytes([(ledger + entry) % 251]) * size


def _check(store: Store, expected: dict[int, int]) -> None:
    assert not store.limbo, "the store is in limbo"
    for ledger, last in expected.items():
        if last < 0:
            continue
        held = store.entries(ledger)
        assert held, f"ledger {ledger} is not there, {last + 1} entries were acknowledged"
        assert len(held) == 1, f"ledger {ledger} has holes: {held}"
        assert held[0][0] == 0, f"ledger {ledger} begins at {held[0][0]}"
        assert held[0][1] > last, f"ledger {ledger} ends at {held[0][1] - 1}, {last} was acknowledged"


async def _load(store: Store, shared: Shared, ledgers: list[int], rng: random.Random) -> None:
    following = [0] * LEDGERS
    for ledger in ledgers:
        store.put_ledger(ledger, KEY)
    size = rng.choice((20, 200, 3000))
    while True:
        for number, ledger in enumerate(ledgers):
            first, count = following[number], rng.randrange(1, 30)
            chunk = b"".join(frame_add(KEY, stored(ledger, first + at, size)) for at in range(count))
            store.add_run(ledger, first, count, first - 1, chunk, 0, len(chunk), even=True)
            following[number] = first + count
            store.after_durable(
                lambda error, number=number, last=first + count - 1: (  # type: ignore[misc]
                    shared.acknowledged(number, last) if error is None else shared.bad(str(error))
                )
            )
        await asyncio.sleep(0)
        if store.stats()["pending_bytes"] > 1 << 20:
            durable = asyncio.Event()
            store.after_durable(lambda error, durable=durable: durable.set())  # type: ignore[misc]
            await durable.wait()


async def _live(root: Path, kind: str, shared: Shared, expected: dict[int, int], ledgers: list[int], seed: int) -> None:
    rng = random.Random(seed)
    disk = LocalDisk(root, MODES[seed % 3])
    if kind == "buffered":
        disk._direct = False
    store = Store.open(disk, CONFIG, NullStats(), rng)
    _check(store, expected)
    for ledger in range(max(0, min(expected, default=0) - 4 * LEDGERS), min(expected, default=0)):
        store.delete_ledger(ledger)
    shared.ready()
    work = asyncio.create_task(_load(store, shared, ledgers, rng))
    if seed % 5 == 0:
        await store.compact()
    await work


def _child(root: Path, kind: str, shared: Shared, expected: dict[int, int], ledgers: list[int], seed: int) -> None:
    try:
        asyncio.run(_live(root, kind, shared, expected, ledgers, seed))
    except BaseException as error:
        shared.bad(f"{type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _one(root: Path, kind: str, expected: dict[int, int], seed: int) -> tuple[dict[int, int], str]:
    """Run and kill one process. Return the last entry that it acknowledged in each ledger, and what was wrong or ""."""
    rng, shared = random.Random(seed), Shared()
    ledgers = [seed * LEDGERS + number for number in range(LEDGERS)]
    process = os.fork()
    if process == 0:
        _child(root, kind, shared, expected, ledgers, seed)
    deadline = time.monotonic() + 60.0
    while not (state := shared.read())[0] and not state[1] and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(rng.random() ** 2 * 0.12)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    ready, bad, acknowledged, what = shared.read()
    if not ready and not bad:
        what = "it did not start within a minute"
    return dict(zip(ledgers, acknowledged, strict=True)), what if bad or not ready else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--disk", choices=("direct", "buffered"), default="direct")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="buckram-kills-"))
    expected: dict[int, int] = {}
    total, began, kills = 0, time.monotonic(), 0
    for seed in range(options.seed, options.seed + options.kills):
        found, what = _one(root, options.disk, expected, seed)
        if what:
            print(f"seed {seed}: {what}; its files are in {root}", file=sys.stderr)
            return 1
        kills += 1
        total += sum(last + 1 for last in found.values())
        expected = dict(list((expected | found).items())[-KEPT:])
    shutil.rmtree(root)
    print(
        json.dumps(
            {"disk": options.disk, "kills": kills, "acknowledged": total, "seconds": round(time.monotonic() - began, 1)}
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
