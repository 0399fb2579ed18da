"""Short stretches in which a thread gets the interpreter back at once from threads that compute.

Each SQL statement lets other threads run, and one that computes keeps the interpreter for 5 ms at a time. Inside a
transaction that would be the time for which all other processes wait.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_S = 1e-5
_switch_guard = threading.Lock()
_inside = 0
_usual = 0.005


@contextmanager
def quick_turns() -> Iterator[None]:
    """Have other threads of this process give up the interpreter after 10 µs meanwhile. For a few statements only."""
    global _inside, _usual
    with _switch_guard:
        if not _inside:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_S)
        _inside += 1
    try:
        yield
    finally:
        with _switch_guard:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_usual)
