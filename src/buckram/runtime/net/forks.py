"""Whether this process is a child of the one that made something. Asking the system for each call costs a microsecond.

Not here: what a fork does to files of sessions (`metadata/session_lock.py`).
"""

from __future__ import annotations

import os

_generation = 0
"""How often the processes from the first one down to this one were forked since this module was loaded."""


def generation() -> int:
    """A number that is another one in a child that was forked later."""
    return _generation


def _in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_in_child)

__all__ = ["generation"]
