"""Reads of data in the operating system's page cache that do not touch the device, and the speed of a device.

A trial read (RWF_NOWAIT) would start read-ahead, so the kernel is asked first where it can answer (cachestat,
Linux 6.5). The speed decides whether a device is fast enough for the loop's thread to wait for it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys

_CACHESTAT = 451
"""The same number on every platform that Python supports."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "recently_evicted")
    )


_syscall = ctypes.CDLL(None).syscall if sys.platform == "linux" else None


def read_cached(file: int, room: memoryview, offset: int) -> bool:
    """Fill `room` (one byte or more) from the page cache; False if that lacks some of it, which may be on its way."""
    there = resident(file, offset, len(room))
    if there is not None:
        return there and os.preadv(file, [room], offset) == len(room)
    try:
        return bool(_NOWAIT) and os.preadv(file, [room], offset, _NOWAIT) == len(room)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return False
        raise


def resident(file: int, offset: int, length: int) -> bool | None:
    """Return whether all of these bytes have pages, which may still be filled; None if the kernel does not say."""
    if _syscall is None:
        return None
    counts = _Counts()
    wanted = _Range(offset, length)
    if _syscall(_CACHESTAT, file, ctypes.byref(wanted), ctypes.byref(counts), 0):
        return None
    pages = (offset + length - 1) // mmap.PAGESIZE - offset // mmap.PAGESIZE + 1
    return int(counts.cached) >= pages


# -- the speed of a device ------------------------------------------------------------------------------------

SLOW_S, FAST_S = 0.0015, 0.001
"""Thresholds of the moving average of an operation, seconds: at SLOW_S a device stops being fast, below FAST_S it is
fast again."""

_WEIGHT = 1 / 16


class Speed:
    """A moving average of how long operations took. A thread costs about 0.1 ms of CPU and two turns of the loop."""

    __slots__ = ("_average_s", "fast")

    def __init__(self) -> None:
        self._average_s, self.fast = 0.0, True

    def took(self, seconds: float) -> None:
        self._average_s += (seconds - self._average_s) * _WEIGHT
        self.fast = self._average_s < (SLOW_S if self.fast else FAST_S)
