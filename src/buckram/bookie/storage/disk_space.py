"""Free space of a bookie's disk: when the bookie becomes read-only or writable again, and a reserve for a full device.

The reserve is a file of some megabytes whose space the store uses when the device is full, and allocates again later.
On a full device, a superblock or a footer needs a few kilobytes before anything can be deleted; without them no space
could be freed, and a stopped bookie could not start. Such writes go through `Reserve.run`.

Not here: measuring (`bookie/storage/upkeep/maintenance.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from buckram.bookie.storage.superblock import opened
from buckram.config import StoreConfig
from buckram.runtime.disk.io_errors import no_space, passing
from buckram.seams import Disk

log = logging.getLogger("buckram.store")


class SpaceWatch:
    """`writable`: whether normal adds have room; `reason` says why not. `reserve_usable`: whether recovery adds and
    fences have room. Files that can be reused count as free.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._reserved = config.reserved_bytes
        self._again = max(config.writable_again_bytes, config.reserved_bytes)
        self._scarce = False
        self.writable = True
        self.reserve_usable = True
        self.free_bytes = 0
        self.reason = ""

    def update(self, free_bytes: int, recyclable_bytes: int, short: str, waiting: str = "") -> bool:
        """Take a new measurement, in bytes. Returns True if `writable` changed.

        `short`: the resource that a block has just found missing. `waiting`: why the next log file cannot be created,
        once the log needs it.
        """
        usable = free_bytes + recyclable_bytes
        self.free_bytes = free_bytes
        self.reserve_usable = not short and usable >= self._reserved // 2
        before = self.writable
        self._scarce = usable < (self._again if self._scarce else self._reserved)
        self.writable = not (short or waiting or self._scarce)
        if not self.writable:
            self.reason = (
                short
                or waiting
                or (
                    f"{usable} bytes of its device are free, less than the {self._reserved} that it reserves; "
                    f"it is writable again from {self._again} on: free space there"
                )
            )
        return self.writable != before

    def may_reserve(self, size: int) -> bool:
        """Return whether `size` bytes may be allocated for a file; half of the reserved bytes stay free, for
        recovery."""
        floor = self._reserved // 2
        return self.free_bytes - size >= floor


# -- the reserve ----------------------------------------------------------------------------------------------

T = TypeVar("T")

RESERVE_FILE = "reserve"

BYTES, PIECES = 8 << 20, 64

_UNIT = 4096


class Reserve:
    """The file, of `bytes` bytes or less. Every method blocks and may be called from any thread, one at a time.

    The file is cut shorter piece by piece and made longer again at once, so that little of it is lost if something
    else fills the device or the process is killed. It grows whenever there is room.
    """

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._busy = threading.Lock()
        self.bytes = min(BYTES, segment_bytes // 2 // _UNIT * _UNIT)
        self._piece = max(_UNIT, self.bytes // PIECES // _UNIT * _UNIT)
        self._size, self._said = 0, False
        if RESERVE_FILE in disk.names():
            with opened(disk, RESERVE_FILE) as file:
                self._size = file.size()

    @property
    def present(self) -> bool:
        """Return whether the file exists, of whatever size."""
        return self._size > 0

    def run(self, job: Callable[[], T], *, log_bytes: int = 0) -> T:
        """Return what `job` returns; if it finds no space, run it again with space of the reserve, maybe several times.

        `log_bytes`: the job is for so many bytes of the log, which gets at most half of the reserve. Raises OSError.
        """
        try:
            return job()
        except OSError as error:
            if not no_space(error):
                raise
            with self._busy:
                return self._in_reserve(job, error, log_bytes)

    def _in_reserve(self, job: Callable[[], T], error: OSError, log_bytes: int) -> T:
        floor = self.bytes // 2 if log_bytes else 0
        try:
            while self._size > floor:
                self._cut(max(floor, self._size - self._piece - -(-log_bytes // _UNIT) * _UNIT))
                try:
                    return job()
                except OSError as again:
                    if not no_space(again):
                        raise
                    error = again
            raise error
        finally:
            self._make(0)

    def give_up(self) -> bool:
        """Free all of its space. False if it had none."""
        with self._busy:
            if self._size:
                self._cut(0)
                return True
        return False

    def make(self) -> None:
        """Allocate the file again as far as there is room, and leave some room for the next writers."""
        with self._busy:
            self._make(self._piece)

    def _cut(self, size: int) -> None:
        if not self._said:
            self._said = True
            log.warning("the disk is full: the file %r is given up for what the store has to write", RESERVE_FILE)
        try:
            with opened(self._disk, RESERVE_FILE) as file:
                self._disk.shrink(file, size)
        except FileNotFoundError:
            size = 0  # an operator removed the file to make room
        self._size = size

    def _make(self, beside: int) -> None:
        if self._size >= self.bytes:
            return
        try:
            there = RESERVE_FILE in self._disk.names()
            before = self._size if there else 0
            size = min(self.bytes, before + self._disk.space().free_bytes - beside) // _UNIT * _UNIT
            if size <= before:
                return
            with opened(self._disk, RESERVE_FILE, create=not there) as file:
                self._disk.extend(file, size)
            if not there:
                self._disk.sync_names()
        except OSError as error:
            if not passing(error):
                raise
            return
        self._size = size
        if size == self.bytes:
            self._said = False
