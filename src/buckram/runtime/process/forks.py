"""Detection of forks: objects compare generations to see whether they are used in a child process. Asking the system at
each call would cost a microsecond.

Not here: what a fork does to files of sessions (`metadata/sqlite/session_lock.py`).
"""

from __future__ import annotations

import os

_generation = 0
"""Number of forks from the process that loaded this module down to this one."""


def generation() -> int:
    """Return a number that differs between a process and its forked children."""
    return _generation


def _in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_in_child)

__all__ = ["generation"]
