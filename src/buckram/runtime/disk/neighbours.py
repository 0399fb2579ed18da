"""Reads log files of other bookies on this machine that run as the same user (seams.LocalFiles).

The content is not interpreted here. A file may be removed or overwritten during a read, so the data may be used only
after its digest is checked.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from buckram.runtime.disk.inline_reads import Speed, read_cached
from buckram.seams import FileData, FileRange

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECT = getattr(os, "O_DIRECT", 0)
_UNIT = 4096
"""Memory, offset and length of direct reads are multiples of this."""
_LARGE = 128 * 1024
"""Size in bytes from which data missing in the page cache are first read past it: filling it costs several times the
read."""
_KEPT = 8
_Past = set[tuple[str, str, int]]
"""Directory, name and offset of places that were read past the page cache once."""
_REMEMBERED = 16384
"""Maximum remembered places; beyond it all are forgotten."""


def identity_of(directory: str | Path) -> str:
    """Return the `Disk.identity()` of a LocalDisk in this directory; raises OSError if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    facts = os.stat(directory)
    return f"{boot} {facts.st_dev} {facts.st_ino}"


class NeighbourDirectory:
    """A `seams.LocalDirectory`, with `read_now` for callers that may block."""

    def __init__(self, path: str, speed: Speed | None, past: _Past) -> None:
        """`speed` None: `read` always takes a thread."""
        self._path, self._speed, self._past = path, speed, past
        self._spare: list[bytearray] = []

    def read(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        loop = asyncio.get_running_loop()
        if self._speed is None or not self._speed.fast:
            return loop.run_in_executor(None, self.read_now, places)
        done: asyncio.Future[list[FileData]] = loop.create_future()
        try:
            done.set_result(self.read_now(places))
        except OSError as error:
            done.set_exception(error)
        return done

    def read_now(self, places: Sequence[FileRange]) -> list[FileData]:
        """Read and block meanwhile. Raises OSError."""
        files: dict[str, int] = {}
        began = time.perf_counter()
        try:
            return [self._piece(place, files) for place in places]
        finally:
            if self._speed is not None:
                self._speed.took(time.perf_counter() - began)
            for file in files.values():
                os.close(file)

    def give_back(self, pieces: Sequence[FileData]) -> None:
        if len(self._spare) < _KEPT:
            self._spare.extend(data for data, _ in pieces if isinstance(data, bytearray))

    def _piece(self, place: FileRange, files: dict[str, int]) -> FileData:
        name, offset, length = place
        if name not in files:
            files[name] = self._open(name, 0)
        if length < _LARGE:
            return FileData(os.pread(files[name], length, offset), 0)
        try:
            data = self._spare.pop()
        except IndexError:  # threads take them at the same time
            data = bytearray()
        if len(data) < length + 3 * _UNIT:
            data = bytearray(length + 3 * _UNIT)
        at = -ctypes.addressof(ctypes.c_char.from_buffer(data)) % _UNIT
        before = offset % _UNIT
        size = -(-(before + length) // _UNIT) * _UNIT
        with memoryview(data)[at : at + size] as room:
            wanted = room[before : before + length]
            if not read_cached(files[name], wanted, offset):
                if self._again(place):
                    os.preadv(files[name], [wanted], offset)
                else:
                    self._past_cache(name, files, room, offset - before)
        return FileData(data, at + before)

    def _again(self, place: FileRange) -> bool:
        """Return whether this place was read past the page cache before; then it is read through it for later ones."""
        key = (self._path, place.name, place.offset)
        if key in self._past:
            self._past.discard(key)
            return True
        if len(self._past) >= _REMEMBERED:
            self._past.clear()
        self._past.add(key)
        return False

    def _past_cache(self, name: str, files: dict[str, int], room: memoryview, offset: int) -> None:
        direct = name + "/direct"
        if direct not in files:
            try:
                files[direct] = self._open(name, _DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                files[direct] = self._open(name, 0)  # a file system that knows no other way
        os.preadv(files[direct], [room], offset)

    def _open(self, name: str, flags: int) -> int:
        try:
            if os.sep in name:
                raise ValueError
            file = os.open(os.path.join(self._path, name), _FLAGS | flags)
        except ValueError:
            raise FileNotFoundError(f"{name!r} is no name of a file in {self._path}") from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileNotFoundError(f"{name!r} in {self._path} is not a regular file")
        return file


class Neighbours:
    """The `seams.LocalFiles` of this machine. `in_threads`: the loop's thread never waits for a disk, however fast."""

    def __init__(self, *, in_threads: bool = False) -> None:
        self._speed = None if in_threads else Speed()
        self._past: _Past = set()

    def open(self, directory: str, identity: str) -> NeighbourDirectory | None:
        try:
            here = identity != "" and identity_of(directory) == identity and os.access(directory, os.R_OK | os.X_OK)
        except (OSError, ValueError):  # ValueError: no path at all
            return None
        return NeighbourDirectory(directory, self._speed, self._past) if here else None
