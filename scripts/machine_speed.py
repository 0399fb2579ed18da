"""Measures how dear work is on this machine: small fixed pieces of work, timed again and again while tests run.

The same tests cost up to three and a half times as many CPU seconds on a busy machine as on a quiet one: a core is
shared with its hyperthread, caches and memory with neighbours, and the frequency changes. The pieces cost more then,
too. A factor of 1.5 says that work is one and a half times as dear as on the reference machine when that is quiet.
What follows from it for a folder of tests is decided in scripts/timings.py.

How well that predicts was seen on two cores with up to twenty processes that wanted them, at factors from 1.2 to 1.5:
the CPU of one folder, divided by the factor, stayed within a tenth of its mean from run to run, and that of one
simulated life within a twentieth, alone and beside loops that compute, copy memory or make objects.
"""

from __future__ import annotations

import gc
import random
import socket
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

EVERY_S = 3.0
"""Seconds between two samples. One takes about 20 ms of CPU."""
LEAST = 5
"""Minimum number of samples from which a factor is taken; one of them alone may be off by a half."""


class Sample(NamedTuple):
    """One look at the machine: when, in seconds of the monotonic clock, and how dear work was."""

    at: float
    factor: float


class Piece(NamedTuple):
    """A piece of work, with the CPU seconds that it takes on the quiet reference machine."""

    work: Callable[[], object]
    usual_s: float


@dataclass(slots=True)
class _Row:
    key: str
    before: _Row | None
    columns: dict[str, object]


def _objects(count: int = 2500) -> int:
    """Do what an interpreter does most: make small objects, look them up, sort."""
    rows: dict[str, _Row] = {}
    last = None
    for number in range(count):
        key = f"k{number * 7919 % count}"
        last = rows[key] = _Row(key, last if number % 16 else None, {"number": number, "pair": (number, key)})
    return sum(len(rows[key].columns) for key in sorted(rows))


class _Scattered:
    """References that lead through more memory than the nearer caches hold."""

    def __init__(self, size: int = 400_000) -> None:
        self._next = list(range(size))
        random.Random(1).shuffle(self._next)

    def follow(self, steps: int = 20_000) -> int:
        at, following = 0, self._next
        for _ in range(steps):
            at = following[at]
        return at


class _Kernel:
    """Calls of the kernel: a socket, and pages of memory that it hands out and takes back."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        self._block = bytes(8 << 20)

    def messages(self, count: int = 2400) -> None:
        (one, other), message = self._ends, b"x" * 200
        for _ in range(count):
            one.send(message)
            other.recv(4096)

    def pages(self) -> int:
        return len(bytearray(self._block))

    def close(self) -> None:
        for end in self._ends:
            end.close()


def _compressed(data: bytes = random.Random(1).randbytes(100_000)) -> int:
    """Do what libraries in C do: arithmetic in the registers and the nearest cache."""
    return len(zlib.compress(data))


def factor_of(pieces: Sequence[Piece], clock: Callable[[], float] = time.thread_time) -> float:
    """Do each piece of work once, and return how dear they were on average.

    Python's garbage collection is off meanwhile: when it comes depends on what else the process did.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        ratios = []
        for piece in pieces:
            began = clock()
            piece.work()
            ratios.append((clock() - began) / piece.usual_s)
    finally:
        if enabled:
            gc.enable()
    return statistics.fmean(ratios)


def mean_factor(samples: Sequence[Sample], began: float, ended: float) -> float:
    """Return the mean factor of the samples from `began` to `ended`; 1 if there is no sample at all.

    Where these are fewer than LEAST, those that are nearest to them in time count as well.
    """
    middle = (began + ended) / 2
    within = [one for one in samples if began <= one.at <= ended]
    if len(within) < LEAST:
        within = sorted(samples, key=lambda one: abs(one.at - middle))[:LEAST]
    return statistics.fmean([one.factor for one in within]) if within else 1.0


class MachineSpeed(AbstractContextManager["MachineSpeed"]):
    """Samples of the machine's speed, which a thread takes from entering to leaving."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.samples: list[Sample] = []
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine speed", daemon=True)

    def __enter__(self) -> MachineSpeed:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        kernel, scattered = _Kernel(), _Scattered()
        pieces = (
            Piece(_objects, 0.0021),
            Piece(scattered.follow, 0.0057),
            Piece(kernel.messages, 0.0031),
            Piece(kernel.pages, 0.00073),
            Piece(_compressed, 0.0022),
        )
        try:
            factor_of(pieces)  # The first time they also get their memory.
            while True:
                self.samples.append(Sample(time.monotonic(), factor_of(pieces)))
                if self._over.wait(self._every_s):
                    return
        finally:
            kernel.close()
