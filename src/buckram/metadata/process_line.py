"""A line for the threads of one process that change the same file: one of them at a time tries, the others sleep.

SQLite knows no order among those who wait; each asks again and again, and threads of one process would besides take the
interpreter from the one that is at work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_lines: dict[str, threading.Lock] = {}
_guard = threading.Lock()


@contextmanager
def first_in_line(path: Path, wait_s: float) -> Iterator[bool]:
    """Give whether it is this thread's turn, for which it waits so long."""
    with _guard:
        line = _lines.setdefault(str(path), threading.Lock())
    mine = line.acquire(timeout=wait_s)
    try:
        yield mine
    finally:
        if mine:
            line.release()


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _lines.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["first_in_line"]
