"""What the page cache holds, as the kernel counts it. Trying a read instead (RWF_NOWAIT) begins to read ahead."""

from __future__ import annotations

import ctypes
import mmap
import sys

_CACHESTAT = 451
"""The same number on every architecture that Python supports; since Linux 6.5."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "recently_evicted")
    )


_syscall = ctypes.CDLL(None).syscall if sys.platform == "linux" else None


def resident(file: int, offset: int, length: int) -> bool:
    """Whether all of these bytes are there, one at least; False, too, where the kernel cannot say."""
    if _syscall is None:
        return False
    counts = _Counts()
    wanted = _Range(offset, length)
    if _syscall(_CACHESTAT, file, ctypes.byref(wanted), ctypes.byref(counts), 0):
        return False
    pages = (offset + length - 1) // mmap.PAGESIZE - offset // mmap.PAGESIZE + 1
    return int(counts.cached) >= pages
