"""What one add costs the process of a bookie: frames made before, straight into its socket, without a client.

A hundred ledgers, single entries of 1 KB in turns, some hundreds of them outstanding, by wire protocol 2 and 3; the
same with 20 outstanding, and runs of a hundred neighbours. Each also without the compiled functions. BENCH_BEFORE names
a checkout to compare with: a bookie of its sources gets the same loads in turns, so that both have the same machine.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Bench, cluster
from bench.machine import Watch
from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import FRAME_OVERHEAD, cut_frames, frame_adds
from buckram.core.wire.messages import Add
from buckram.core.wire.v3 import encode_request
from buckram.types import DigestType

BEFORE = "BENCH_BEFORE"
LEDGERS, SIZE = 100, 1024
ADDS = int(os.environ.get("BENCH_RAW_ADDS", "30000"))
ROUNDS = int(os.environ.get("BENCH_RAW_ROUNDS", "5"))
FIRST = 1 << 14
"""Id of the first entries, and transaction of the first adds: their varints have one length throughout, so that all
frames and all replies of a load have one size."""
FIRST_TXN = 1 << 28
_RECEIVE = 1 << 20
_DIGEST, _KEY = Digest(DigestType.CRC32C, b""), master_key(b"")


@dataclass(frozen=True)
class Shape:
    """`run`: neighbours of one ledger behind one another."""

    protocol: int
    outstanding: int
    run: int = 1


SHAPES = {
    "v2": Shape(2, 400),
    "v3": Shape(3, 400),
    "v2_few": Shape(2, 20),
    "v2_runs": Shape(2, 4000, 100),
    "v3_runs": Shape(3, 4000, 100),
}


def raw_adds() -> dict[str, Any]:
    """Return the bookie's CPU an add of each shape, compiled and not, and how many times that of BENCH_BEFORE it is."""
    before = os.environ.get(BEFORE, "")
    sources = {"": Path("src").absolute()}
    if before:
        sources["before_"] = (Path(before) / "src").absolute()
    figures: dict[str, Any] = {}
    for pure in ("", "pure_"):
        with ExitStack() as stack:
            sides: dict[str, Bench] = {}
            for number, (side, path) in enumerate(sources.items()):
                settings = {
                    "PYTHONPATH": str(path),
                    "BUCKRAM_BOOKIE_ADMISSION": "any",
                    "BUCKRAM_PURE": "1" * bool(pure),
                }
                sides[side] = stack.enter_context(cluster(1, environment=settings, machines_before=number))
            with Watch(None, [pid for bench in sides.values() for pid in bench.pids]) as watch:
                for name, shape in SHAPES.items():
                    costs = _costs(sides, shape)
                    figures |= {f"{side}{pure}{name}_us": round(cost, 2) for side, cost in costs.items()}
                    if before:
                        figures[f"{pure}{name}_times"] = round(costs[""] / costs["before_"], 3)
            figures[f"{pure}foreign_cpu"] = watch.foreign_share
    return figures


def _costs(sides: dict[str, Bench], shape: Shape) -> dict[str, float]:
    """Return microseconds of CPU of the bookie an add, by side: medians of rounds in turns."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS):
        base = time.time_ns() // 1000
        load = _frames(shape, base)
        for side, bench in sorted(sides.items(), reverse=bool(number % 2)):
            found[side].append(_cost(bench, shape, load))
    return {side: statistics.median(costs) for side, costs in found.items()}


def _frames(shape: Shape, base: int) -> bytes:
    """Return the frames of all adds in the order in which they are sent; all have one size."""
    turns = max(2, ADDS // (LEDGERS * shape.run))
    body, each = os.urandom(SIZE), turns * shape.run
    sealed = [
        cut_frames(frame_adds(_DIGEST, _KEY, base + ledger, FIRST, FIRST - 1, 0, [body] * each)[0])
        for ledger in range(LEDGERS)
    ]
    order = [
        (base + ledger, entry, sealed[ledger][entry])
        for turn in range(turns)
        for ledger in range(LEDGERS)
        for entry in range(turn * shape.run, (turn + 1) * shape.run)
    ]
    if shape.protocol == 2:
        return b"".join([frame for _, _, frame in order])
    return b"".join(
        encode_request(Add(ledger, FIRST + entry, _KEY, frame[FRAME_OVERHEAD:]), FIRST_TXN + number)
        for number, (ledger, entry, frame) in enumerate(order)
    )


def _cost(bench: Bench, shape: Shape, load: bytes) -> float:
    """Send the load and await all replies. What every ledger's first turn costs is not counted: it is looked up in
    metadata then."""
    (bookie,) = bench.bookies
    assert bookie.ready is not None
    frame = 4 + int.from_bytes(load[:4], "big")
    data, first = memoryview(load), LEDGERS * shape.run * frame
    with socket.create_connection((bookie.ready.host, bookie.ready.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reply = _exchange(connection, data[:first], frame, shape.outstanding, 0)
        began = _cpu_ns(bookie.pid)
        _exchange(connection, data[first:], frame, shape.outstanding, reply)
        return (_cpu_ns(bookie.pid) - began) / (len(load) - first) * frame / 1000


def _exchange(connection: socket.socket, data: memoryview, frame: int, outstanding: int, reply: int) -> int:
    """Send frames, with so many outstanding at most, until all are acknowledged. `reply`: the size of one, 0 if it is
    not known yet. Returns it. Raises RuntimeError for a refusal."""
    sent, replies = 0, bytearray()
    total = len(data) // frame
    connection.setblocking(False)
    poll = select.poll()
    while not reply or len(replies) < total * reply:
        limit = min(len(data), ((len(replies) // reply if reply else 0) + outstanding) * frame)
        if sent < limit:
            with suppress(BlockingIOError):
                sent += connection.send(data[sent:limit])
        poll.register(connection, select.POLLIN | (select.POLLOUT if sent < limit else 0))
        if not poll.poll(60_000):
            raise RuntimeError("no reply within a minute")
        try:
            received = connection.recv(_RECEIVE)
        except BlockingIOError:
            continue
        if not received:
            raise RuntimeError("the bookie closed the connection")
        if not reply:
            reply = 4 + int.from_bytes(received[:4], "big")
        replies += received
    codes = [any(replies[place::reply]) for place in range(8, 12)] if data[4] == 2 else []
    if any(codes) or len(replies) != total * reply:  # with v3, a refusal has another size
        raise RuntimeError(f"the bookie refused some of {total} adds")
    return reply


def _cpu_ns(pid: int) -> int:
    """Time on a processor of all threads of a process, in nanoseconds: ticks would be too coarse here."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / task / "schedstat").read_text().split()[0]) for task in os.listdir(tasks))
