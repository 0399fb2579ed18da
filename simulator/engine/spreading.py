"""Work that is spread over processes: lives, planted bugs, crash points."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
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


__all__ = ["spread"]
