"""WalFiles: the files of one replica's copy of a database: reading pages, and writing transactions as SQLite would.

A follower writes the frames of a transaction and their index itself, under SQLite's write lock, so that readers with
SQLite keep their snapshots and go on. The files are a cache of the replicated log: they are never recovered, and go
when the replica is closed. An image, which is the pages of one state, can be written as a database file of SQLite's.
Not here: the formats (`core/db/wal_format.py`), what SQLite writes (`state/db/table_engine/capture_vfs.py`).
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

import apsw

from buckram.core.db.digest import EMPTY_PAGE, ZERO_PAGE, page_hash
from buckram.core.db.wal_format import (
    FRAME_BYTES,
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    REGION_BYTES,
    BadIndex,
    IndexHeader,
    add_frames,
    backfilled,
    encode_index_header,
    frame_at,
    frame_header,
    log_header,
    read_index_header,
    regions_for,
)
from buckram.runtime.disk.syncing import sync_file
from buckram.runtime.disk.whole_file import whole_file

__all__ = ["BadIndex", "FilesGone", "Image", "WalFiles", "write_image", "write_in_thread"]

_CHECKPOINT_FRAMES = 4000
_CACHED_PAGES = 2048
_GATHERED = 512


class FilesGone(OSError):
    """The files were deleted or replaced by another program: their names now open something else or nothing."""


class Image:
    """The pages of one committed state, while transactions go on. Closing it lets checkpoints go on."""

    def __init__(self, files: WalFiles, holder: apsw.Connection, frames: Mapping[int, int], size: int) -> None:
        self._files, self._holder, self._frames = files, holder, frames
        self.size = size
        """Number of pages."""
        self._closed = False

    def page(self, number: int) -> bytes:
        return self._files.read_at(number, self._frames.get(number))

    def pages(self) -> Iterator[bytes]:
        """Yield all pages in order."""
        return map(self.page, range(1, self.size + 1))

    def close(self) -> None:
        """Give the state up. Idempotent."""
        if not self._closed:
            self._closed = True
            self._holder.close()
            self._files.image_closed()


class WalFiles:
    """One copy, from its making until `close`. Methods are for the engine's thread unless they say otherwise."""

    def __init__(self, path: Path, first: Iterator[bytes] | None = None) -> None:
        """Make the files: an empty database, or one of these pages. Raises OSError, apsw.Error."""
        self.path = str(path)
        self._file = self._log = self._shm = -1
        self._made = False
        self._maps: list[mmap.mmap] = []
        self._regions: list[memoryview] = []
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(os.dup(self._file), "wb") as out:
                out.writelines(first or (EMPTY_PAGE,))
            self.connection = self.connect()
            """Holds the write lock, and makes checkpoints."""
            self.connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            self._log = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
            self._shm = os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC)
            self._grow(1)
        except BaseException:
            self._close_files()
            raise
        self._made = True
        self._frames: dict[int, int] = {}
        """Newest committed frame of each page that is in the log."""
        self._cached: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self._lock = threading.Lock()
        """Guards the count of open images."""
        self._barrier = threading.Lock()
        self._images = 0
        self._closing = False
        self.size = os.fstat(self._file).st_size // PAGE_BYTES
        """Number of pages of the committed state."""

    @property
    def intact(self) -> bool:
        """Return whether the names of the files still belong to the files that are open here. Any thread."""
        opened = (self._file, ""), (self._log, "-wal"), (self._shm, "-shm")
        try:
            return all(os.path.samestat(os.fstat(file), os.stat(self.path + end)) for file, end in opened)
        except OSError:
            return False

    def contents(self) -> Iterator[bytes]:
        """Yield all pages of the committed state in order, also when the files have no names any more."""
        for number in range(1, self.size + 1):
            yield self.read_at(number, self._frames.get(number))

    def connect(self, vfs: str = "") -> apsw.Connection:
        """Open a connection that never syncs and never makes a checkpoint. Any thread.

        Raises apsw.Error, and FilesGone for files that were deleted or closed.
        """
        connection: apsw.Connection | None = None
        try:
            connection = apsw.Connection(
                self.path, vfs=vfs or None, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=300
            )
            connection.wal_autocheckpoint(0)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.execute("PRAGMA synchronous = OFF").fetchall()
            if self._made:
                # It opens the log and its index: beside a new one of either it would see the state of long ago.
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
                self._check_intact()
            return connection
        except BaseException:
            if connection is not None:
                connection.close(True)
            if self._made:
                self._check_intact()
            raise

    def _check_intact(self) -> None:
        if not self.intact:
            raise FilesGone(errno.ENOENT, "its files were deleted", self.path)

    # -- reading pages ------------------------------------------------------------------------------------

    def page(self, number: int) -> tuple[bytes, int]:
        """Return a page of the committed state and its hash; zeros and 0 for one that does not exist."""
        if number > self.size:
            return ZERO_PAGE, 0
        found = self._cached.get(number)
        if found is None:
            content = self.read_at(number, self._frames.get(number))
            found = content, page_hash(number, content)
        return found

    def read_at(self, number: int, frame: int | None) -> bytes:
        """Read a page from a frame of the log, or from the database file. Any thread, while nothing overwrites it."""
        if frame is not None:
            return os.pread(self._log, PAGE_BYTES, frame_at(frame) + FRAME_HEADER_BYTES)
        return os.pread(self._file, PAGE_BYTES, (number - 1) * PAGE_BYTES).ljust(PAGE_BYTES, b"\0")

    def image(self) -> Image:
        """Return the present committed state. Its reader can be used, and closed, in any thread."""
        holder = self.connect()
        try:
            holder.execute("BEGIN").fetchall()
            holder.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except BaseException:
            holder.close()
            raise
        header = read_index_header(self._regions[0])
        # Where all of the log is copied, the reader does not hold it: the database file has everything.
        frames = {} if backfilled(self._regions[0]) >= header.last_frame else dict(self._frames)
        with self._lock:
            self._images += 1
        return Image(self, holder, frames, self.size)

    def image_closed(self) -> None:
        """Note that an image was closed: after `close`, the last one closes the files, too. Any thread."""
        with self._lock:
            self._images -= 1
            last = self._closing and not self._images
        if last:
            self._close_files()

    # -- what was committed -------------------------------------------------------------------------------

    def committed(self, frames: Mapping[int, int], pages: Mapping[int, tuple[bytes, int]], size: int) -> None:
        """Note frames (by page) that SQLite committed, with contents and hashes. `size`: pages of the database."""
        self._frames.update(frames)
        self._remember(pages, size)

    def log_restarted(self) -> None:
        """Note that SQLite restarts the log: all of it is in the database file."""
        self._frames.clear()

    def _remember(self, pages: Mapping[int, tuple[bytes, int]], size: int) -> None:
        cached = self._cached
        cached.update(pages)
        for number in pages:
            cached.move_to_end(number)
        while len(cached) > _CACHED_PAGES:
            cached.popitem(last=False)
        if size < self.size:
            for number in [number for number in cached if number > size]:
                del cached[number]
        self.size = size

    def append(self, pages: Mapping[int, tuple[bytes, int]], size: int) -> None:
        """Commit these pages (contents and hashes), as SQLite would. Raises OSError, apsw.Error, BadIndex."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE").fetchall()
        try:
            header = read_index_header(self._regions[0])
            numbers = list(pages)
            first, last = header.last_frame + 1, header.last_frame + len(numbers)
            if header.last_frame == 0:
                _write(self._log, [log_header(header.salts)], 0)
            self._write_frames(pages, first, size, header.salts)
            self._grow(regions_for(last))
            add_frames(self._regions, first, numbers)
            self._publish(IndexHeader(header.changes + 1, last, size, header.frame_checksum, header.salts))
            self._frames.update(zip(numbers, range(first, last + 1), strict=True))
            self._remember(pages, size)
        finally:
            connection.execute("COMMIT").fetchall()
        if last > _CHECKPOINT_FRAMES:
            self.checkpoint()

    def _write_frames(self, pages: Mapping[int, tuple[bytes, int]], first: int, size: int, salts: bytes) -> None:
        buffers: list[bytes] = []
        at, left = frame_at(first), len(pages)
        for number, (content, _) in pages.items():
            left -= 1
            buffers += (frame_header(number, 0 if left else size, salts), content)
            if len(buffers) >= _GATHERED or not left:
                _write(self._log, buffers, at)
                at += len(buffers) // 2 * FRAME_BYTES
                buffers.clear()

    def _publish(self, header: IndexHeader) -> None:
        """Write both copies of the index header, which readers use when both are equal.

        A lock orders what other processors see.
        """
        region = self._regions[0]
        raw = encode_index_header(header, region[13])
        with self._barrier:
            region[48:96] = raw
        with self._barrier:
            region[:48] = raw

    def _grow(self, regions: int) -> None:
        while len(self._maps) < regions:
            number = len(self._maps)
            # With room for all of it on the disk: writing into a mapping that has none would end the process.
            if os.fstat(self._shm).st_size < (number + 1) * REGION_BYTES:
                os.posix_fallocate(self._shm, number * REGION_BYTES, REGION_BYTES)
            self._maps.append(mmap.mmap(self._shm, REGION_BYTES, offset=number * REGION_BYTES))
            self._regions.append(memoryview(self._maps[-1]))

    # -- checkpoints --------------------------------------------------------------------------------------

    @property
    def log_frames(self) -> int:
        """The number of frames in the log."""
        return read_index_header(self._regions[0]).last_frame

    def checkpoint_if_due(self) -> None:
        """Copy the log into the database file if it is long. No transaction may be open."""
        if self.log_frames > _CHECKPOINT_FRAMES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Copy as much of the log as readers allow, and restart it if none of them needs it."""
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return  # A reader holds the log: what could be copied was, and the rest waits.
        self._frames.clear()

    def close(self) -> None:
        """Close everything, what images need when the last of them is closed. Idempotent."""
        self.connection.close()
        with self._lock:
            self._closing, used = True, self._images
        if not used:
            self._close_files()

    def _close_files(self) -> None:
        for view in self._regions:
            view.release()
        for mapped in self._maps:
            mapped.close()
        self._regions, self._maps = [], []
        for number in (self._file, self._log, self._shm):
            if number >= 0:
                os.close(number)
        self._file = self._log = self._shm = -1


def _write(file: int, buffers: list[bytes], at: int) -> None:
    """Write all of it. Raises OSError."""
    total = sum(map(len, buffers))
    written = os.pwritev(file, buffers, at)
    if written < total:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            done = os.pwrite(file, rest, at + written)
            written += done
            rest = rest[done:]


async def write_in_thread(image: Image, path: Path) -> int:
    """Write a file as `write_image` does, in a thread, and close the image. Cancelling abandons only the wait."""
    work = asyncio.get_running_loop().run_in_executor(None, write_image, image, path)
    work.add_done_callback(lambda done: image.close())
    return await asyncio.shield(work)


def write_image(image: Image, path: Path) -> int:
    """Write a database file; it has its name when all of it is on the disk. Returns its bytes. Raises OSError."""
    with whole_file(path) as out:
        for page in image.pages():
            out.write(page)
        out.flush()
        sync_file(out.fileno())
    return image.size * PAGE_BYTES
