"""Setup of a process: its event loop, how it frees memory, and the detection of forks.

All that start loops take theirs from here: the command line, bookies, the sync client.

Blocks of hundreds of kilobytes come and go with every chunk, batch and commit. By default glibc gives such memory back
to the kernel each time it is freed and faults it in again page by page, which costs more than all processing of the
bytes: joining a packet of 700 KB out of its chunks takes 0.87 ms instead of 0.07 ms on a virtual machine. So processes
that move large blocks keep freed memory.

Objects compare generations to see whether they are used in a child process: asking the system at each call would cost
a microsecond.

Not here: what a fork does to files of sessions (`metadata/sqlite/file_locks.py`).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache

from buckram.errors import ConfigError

LOOP_VARIABLE = "BUCKRAM_LOOP"

LOOPS = ("uvloop", "asyncio")


def loop_factory(environment: Mapping[str, str]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory for asyncio.Runner: uvloop if installed, unless BUCKRAM_LOOP=asyncio; None is asyncio's
    default.

    Raises ConfigError for an unknown value, and for BUCKRAM_LOOP=uvloop where it is not installed.
    """
    wanted = environment.get(LOOP_VARIABLE, "")
    if wanted and wanted not in LOOPS:
        raise ConfigError(f"{LOOP_VARIABLE} = {wanted!r}: must be one of {', '.join(LOOPS)}, or not set")
    if wanted == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted:
            raise ConfigError(f"{LOOP_VARIABLE} = 'uvloop': it is not installed; pip install uvloop") from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


# -- freed memory ---------------------------------------------------------------------------------------------

VARIABLE = "BUCKRAM_MALLOC"

KEPT_BYTES = 64 << 20
"""Freed memory at the end of the heap that stays with the process."""

MAPPED_BYTES = 32 << 20
"""Size in bytes from which blocks are mapped by themselves and given back when freed; glibc allows no larger value."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@cache
def keep_freed_memory() -> bool:
    """Make the C library keep freed memory; call it once per process. Returns True if it took effect. It does nothing
    with BUCKRAM_MALLOC=system, and only glibc has the settings."""
    if os.environ.get(VARIABLE) == "system":
        return False
    try:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "gnu_get_libc_version"):
            return False
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


# -- forks ----------------------------------------------------------------------------------------------------


class _Forks:
    """`count`: number of forks from the process that loaded this module down to this one."""

    count = 0


FORKS = _Forks()
"""Number of forks, by which a process differs from its children. Each call of a client looks at it, without a function.
"""


def generation() -> int:
    """Return a number that differs between a process and its forked children."""
    return FORKS.count


def _in_child() -> None:
    FORKS.count += 1


os.register_at_fork(after_in_child=_in_child)
