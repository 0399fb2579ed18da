"""Load generators behind `buckram bench`: writes at full speed or paced, reads in sequence or at random.

They use the public client as a program would. Paced latency counts from the moment an entry was due, so it includes any
lag of the generator or the cluster. Figures only; starting clusters and printing are elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.errors import BuckramError, BufferFull, InvalidArgument
from buckram.runtime.process.tasks import TaskScope

if TYPE_CHECKING:
    from buckram.client.read.reader import Reader
    from buckram.client.write.writer import Writer
    from buckram.cluster import Client

TICK_MIN_S, TICK_MAX_S = 0.0002, 0.001
_WAKING_NS = 100_000
"""Shortest delay in nanoseconds between the expiry of a timer and the wake-up of its sleeper."""
WARM_UP_SHARE = 0.1
PAYLOADS = 64


@dataclass(frozen=True, slots=True)
class WriteLoad:
    """Parameters of a write load. `rate` 0 is full speed; `outstanding` is entries not yet acknowledged, over all
    ledgers."""

    ledgers: int
    size: int
    ensemble: str
    seconds: float
    rate: float = 0.0
    outstanding: int = 4000
    namespace: str = ""
    """Namespace of the ledgers; "" is `default`."""
    run: int = 0
    """Entries that a call appends, at full speed. 1: one by one, in turns over the ledgers; 0: as many as a few calls
    for each ledger need to have `outstanding` entries on their way."""


@dataclass(slots=True)
class Tally:
    """Results of a load: (latency in seconds, entries) per wait, and the numbers of acknowledged and failed entries."""

    waits: list[tuple[float, int]] = field(default_factory=list)
    acked: int = 0
    errors: int = 0
    first_error: BaseException | None = None

    def add(self, latency: float, entries: int) -> None:
        self.waits.append((latency, entries))
        self.acked += entries

    def failed(self, error: BaseException, entries: int) -> None:
        self.errors += entries
        self.first_error = self.first_error or error

    def percentiles(self) -> dict[str, float]:
        """p50, p99 and p999 in milliseconds."""
        return dict(zip(("p50_ms", "p99_ms", "p999_ms"), self.quantiles((0.5, 0.99, 0.999)), strict=True))

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return milliseconds for each of these ascending shares, each wait weighted by its entries: the smallest
        latency that at least that share of the entries did not exceed. Zeros when there was none."""
        ordered = sorted(self.waits)
        total = sum(n for _, n in ordered)
        found: list[float] = []
        seen = 0
        for latency, n in ordered:
            seen += n
            while len(found) < len(shares) and seen >= shares[len(found)] * total:
                found.append(round(latency * 1000, 3))
        return found + [0.0] * (len(shares) - len(found))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def write(
    client: Client,
    load: WriteLoad,
    on_ledger: Callable[[int], None] | None = None,
    measured: Callable[[Tally], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> dict[str, Any]:
    """Run a write load after a short warm-up; the figures of `buckram bench write`. Ledgers are closed at the end.

    `measured(tally)` is entered for the measured period, with the tally of its waits.
    """
    # The writer knows the limit to the byte; what cannot be a frame is not even made.
    if load.size > (limit := client.services.net.max_frame_bytes):
        raise InvalidArgument(f"entries of {load.size} bytes: a frame has at most {limit}; use smaller ones")
    payloads = [random.randbytes(load.size) for _ in range(PAYLOADS)]
    custom = {LEDGER_NAMESPACE: load.namespace} if load.namespace else None
    writers = [await client.create(ensemble=load.ensemble, custom_metadata=custom) for _ in range(load.ledgers)]
    try:
        for writer in writers:
            if on_ledger is not None:
                on_ledger(writer.ledger_id)
        run = _paced if load.rate else _one_by_one if load.run == 1 else _full_speed
        await run(writers, payloads, load, Tally(), load.seconds * WARM_UP_SHARE)
        tally, cpu, began = Tally(), cpu_seconds(), time.perf_counter()
        with measured(tally):
            await run(writers, payloads, load, tally, load.seconds)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    finally:
        for writer in writers:
            with contextlib.suppress(BuckramError):  # already counted where it failed
                await writer.close()
    if tally.first_error is not None and not tally.acked:
        raise tally.first_error
    return {
        "adds_per_s": round(tally.acked / seconds),
        "mb_per_s": round(tally.acked * load.size / seconds / 1e6, 1),
        **tally.percentiles(),
        "client_cpu_us_per_add": round(cpu / max(1, tally.acked) * 1e6, 2),
        "acked": tally.acked,
        "errors": tally.errors,
        "ledgers": [writer.ledger_id for writer in writers],
        "degraded": any(writer.degraded for writer in writers),
    }


async def _full_speed(
    writers: list[Writer], payloads: list[bytes], load: WriteLoad, tally: Tally, seconds: float
) -> None:
    """Write with a few chains per ledger, each waiting for one batch at a time, so that an entry costs only a place in
    a list."""
    chains = 4 if len(writers) == 1 else 2
    if load.run:
        chains = max(1, load.outstanding // (len(writers) * load.run))
    batch = load.run or max(1, load.outstanding // (len(writers) * chains))
    entries = [payloads[n % len(payloads)] for n in range(batch)]
    clock = time.perf_counter
    end = clock() + seconds

    async def chain(writer: Writer) -> None:
        while (began := clock()) < end:
            try:
                await writer.append_many(entries)
            except BuckramError as error:
                tally.failed(error, batch)
                return
            tally.add(clock() - began, batch)

    await _all([chain(writer) for writer in writers for _ in range(chains)])


async def _one_by_one(
    writers: list[Writer], payloads: list[bytes], load: WriteLoad, tally: Tally, seconds: float
) -> None:
    """Append single entries in turns over the ledgers, `outstanding` at a time; go on when a quarter is acknowledged.

    Latency is that of the entries that are waited for, which stand for those between them.
    """
    clock = time.perf_counter
    end, step = clock() + seconds, max(1, load.outstanding // 4)
    waiting: deque[tuple[float, asyncio.Future[int]]] = deque()
    sent = 0
    while waiting or clock() < end:
        began = clock()
        while len(waiting) < load.outstanding and began < end:
            try:
                future = writers[sent % len(writers)].append_nowait(payloads[sent % len(payloads)])
            except BufferFull:
                break
            waiting.append((began, future))
            sent += 1
        if not waiting:
            await asyncio.sleep(TICK_MAX_S)  # all are acknowledged, and a slow bookie still has no room
            continue
        count = min(step, len(waiting))
        try:
            await waiting[count - 1][1]
            for _ in range(count):
                asked, future = waiting.popleft()
                await future  # at once for those that are done
            tally.add(clock() - asked, count)
        except BuckramError as error:
            tally.failed(error, load.outstanding)
            return


async def _paced(writers: list[Writer], payloads: list[bytes], load: WriteLoad, tally: Tally, seconds: float) -> None:
    clock = time.perf_counter
    total = max(1, int(load.rate * seconds))
    interval = 1.0 / load.rate
    finished = asyncio.get_running_loop().create_future()
    sent = settled = 0

    def settle(entries: int) -> None:
        nonlocal settled
        settled += entries
        if settled == total and not finished.done():
            finished.set_result(None)

    def done(due: float, future: asyncio.Future[int]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            tally.add(clock() - due, 1)
        else:
            tally.failed(error, 1)
        settle(1)

    def send() -> None:
        nonlocal sent
        ready = min(total, int((clock() - began) * load.rate) + 1)
        for n in range(sent, ready):
            due = began + n * interval
            try:
                future = writers[n % len(writers)].append_nowait(payloads[n % len(payloads)])
            except BufferFull:
                return  # it stays due: the wait counts into its latency
            except BuckramError as error:
                tally.failed(error, 1)
                settle(1)
            else:
                future.add_done_callback(partial(done, due))
            sent += 1

    with every(min(TICK_MAX_S, max(TICK_MIN_S, interval)), send, finished) as began:
        await finished


@contextlib.contextmanager
def every(period: float, call: Callable[[], None], until: asyncio.Future[None]) -> Iterator[float]:
    """Call `call` on the loop each `period` seconds; periods that passed meanwhile are one call. Loop timers have a
    millisecond's grain; the kernel's timerfd has none. It uses no task, because waking one would cost as much as the
    sending. `until`, which the caller waits for, fails with what `call` raises. Yields the start of the first period
    (time.perf_counter), so that entries due at the end of a period are sent at that end."""
    loop = asyncio.get_running_loop()
    descriptor = _timerfd()
    timer: asyncio.TimerHandle | None = None
    nanoseconds, periods = int(period * 1e9), 0

    def called() -> None:
        try:
            call()
        except Exception as error:
            if not until.done():
                until.set_exception(error)

    def expired(number: int) -> None:
        nonlocal periods
        with contextlib.suppress(BlockingIOError):
            periods += int.from_bytes(os.read(number, 8), sys.byteorder)
        end = began + periods * nanoseconds / 1e9
        while time.perf_counter() < end:
            pass  # woken sooner than usual
        called()

    def elapsed() -> None:
        nonlocal timer
        timer = loop.call_later(period, elapsed)
        called()

    began = time.perf_counter()
    if descriptor is None:
        timer = loop.call_later(period, elapsed)
    else:
        _arm(descriptor, nanoseconds, nanoseconds - min(_WAKING_NS, nanoseconds // 2))
        loop.add_reader(descriptor, expired, descriptor)
    try:
        yield began
    finally:
        if descriptor is not None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        if timer is not None:
            timer.cancel()


def _timerfd() -> int | None:
    """Return a Linux timer as a file descriptor; None elsewhere."""
    try:
        descriptor: int = _libc().timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    except (AttributeError, OSError):
        return None
    return descriptor if descriptor >= 0 else None


def _arm(descriptor: int, period: int, first: int) -> None:
    """Set the timer to expire after `first` nanoseconds, then every `period` nanoseconds."""
    times = (ctypes.c_long * 4)(0, period, 0, first)
    _libc().timerfd_settime(descriptor, 0, times, None)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


async def read_sequential(reader: Reader, batch: int) -> dict[str, Any]:
    """Read all readable entries, `batch` per call, two calls at a time; return the figures. Latency is that of a
    call."""
    last = await reader.read_last_confirmed()
    tally, size, began, cpu = Tally(), 0, time.perf_counter(), cpu_seconds()
    starts = iter(range(0, last + 1, batch))

    async def chain() -> None:
        nonlocal size
        for first in starts:
            at = time.perf_counter()
            payloads = await reader.read_payloads(first, min(last, first + batch - 1))
            tally.add(time.perf_counter() - at, len(payloads))
            size += sum(map(len, payloads))

    await _all([chain(), chain()])
    return _read_figures(tally, size, time.perf_counter() - began, cpu_seconds() - cpu)


async def read_random(reader: Reader, count: int, concurrency: int = 64) -> dict[str, Any]:
    """Single entries at random places."""
    last = await reader.read_last_confirmed()
    tally, size, began, cpu = Tally(), 0, time.perf_counter(), cpu_seconds()
    picks = iter([random.randint(0, last) for _ in range(count if last >= 0 else 0)])

    async def chain() -> None:
        nonlocal size
        for entry in picks:
            at = time.perf_counter()
            got = await reader.get(entry)  # before the sum is looked at: the other chains add to it meanwhile
            size += len(got.payload)
            tally.add(time.perf_counter() - at, 1)

    await _all([chain() for _ in range(concurrency)])
    return _read_figures(tally, size, time.perf_counter() - began, cpu_seconds() - cpu)


def _read_figures(tally: Tally, size: int, seconds: float, cpu: float) -> dict[str, Any]:
    shares = tally.percentiles()
    return {
        "entries_per_s": round(tally.acked / seconds),
        "mb_per_s": round(size / seconds / 1e6, 1),
        "p50_ms": shares["p50_ms"],
        "p99_ms": shares["p99_ms"],
        "client_cpu_us_per_entry": round(cpu / max(1, tally.acked) * 1e6, 2),
        "entries": tally.acked,
    }


async def _all(chains: list[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; the first error ends the rest and is raised."""
    scope = TaskScope("bench")
    try:
        for task in [scope.spawn(chain, "chain") for chain in chains]:
            await task
    finally:
        await scope.close()
