"""Handling of Ctrl-C: it exits at once while there is nothing to lose, and raises KeyboardInterrupt while there is.

Python raises KeyboardInterrupt between any two instructions. Within an import, or between the making of a coroutine
and its first step, that leaves warnings of Python's own on standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

CODE = 130
TEXT = "interrupted"
_JSON = b'{"error": {"kind": "Interrupted", "message": "interrupted", "exit_code": 130, "retryable": true}}\n'
_LINE = b"buckram: interrupted\n"


class Interrupted(KeyboardInterrupt):
    """KeyboardInterrupt that names what was not done because of it."""


def exit_at_once() -> None:
    """Make Ctrl-C end the process with one line and exit code 130, unless SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(signal.SIGINT, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    with suppress(Exception):  # it is in the middle of a write, or closed
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, _JSON if "--json" in sys.argv else _LINE)
    os._exit(CODE)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt, for what has to be put in order before the process ends."""
    ours = signal.getsignal(signal.SIGINT) is _leave
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
