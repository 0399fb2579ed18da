"""Settings of the C library for freed memory in processes that move large blocks.

Blocks of hundreds of kilobytes come and go with every chunk, batch and commit. By default glibc gives such memory back
to the kernel each time it is freed and faults it in again page by page, which costs more than all processing of the
bytes: joining a packet of 700 KB out of its chunks takes 0.87 ms instead of 0.07 ms on a virtual machine.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

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
