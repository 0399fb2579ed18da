"""Work that is spread over processes: lives, planted bugs, crash points."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """Do the work on each item in `jobs` processes, and return the results in the order of the items.

    The work must be picklable. With one job it is done in this process.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, items)


def spread_as_done(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """Do as `spread`, but return each result as soon as it is there, and take an item only when a process is free.

    So whoever has no more items to give, because the time is over, waits for those that were taken, and for no others.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    left = iter(items)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(work, item) for item in islice(left, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(work, item) for item in islice(left, len(done))}
            for one in done:
                yield one.result()


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["cores", "spread", "spread_as_done"]
