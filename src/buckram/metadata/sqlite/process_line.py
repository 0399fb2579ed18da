"""A queue for the threads of one process that change the same file: one of them at a time tries, the others sleep.

SQLite keeps no order among those who wait; each asks again and again, and threads of one process would besides take the
interpreter from the one that is at work.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_lines: dict[str, threading.Lock] = {}
_guard = threading.Lock()


def line_of(path: Path) -> threading.Lock:
    """Return the lock that a thread holds while it may change this file."""
    with _guard:
        return _lines.setdefault(str(path), threading.Lock())


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _lines.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["line_of"]
