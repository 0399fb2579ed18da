"""CaptureVfs: between SQLite and the write-ahead log of the leader. It holds each commit until somebody decides on it.

SQLite writes the frames of a transaction, the last of which commits. Here they are noted by their place in the log, so
that what a rolled-back part of the transaction wrote is overwritten by what came instead; before the last one is
written, `on_commit` is called, and an error of it makes SQLite roll the transaction back. Not here: what is done with
the pages (`state/db/engine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import apsw

from buckram.core.db.wal_format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    frame_of,
    parse_frame_header,
)


@dataclass(frozen=True, slots=True)
class Captured:
    """A transaction that is about to be committed: contents by page, frames by page, the pages of the database."""

    pages: dict[int, bytes]
    frames: dict[int, int]
    size: int


class CaptureEvents(Protocol):
    """What the writing connection does. All methods are called in the thread that uses the connection."""

    def on_commit(self, captured: Captured) -> None:
        """Return when the transaction may be committed; an error rolls it back."""
        ...

    def on_spill(self, pages: int) -> None:
        """So many pages were written by the open transaction; an error fails the statement."""
        ...

    def on_log_restarted(self) -> None:
        """The log begins anew."""
        ...


class _Log(apsw.VFSFile):
    """The write-ahead log, as the writing connection sees it."""

    def __init__(self, base: str, name: str | apsw.URIFilename | None, flags: list[int], capture: CaptureVfs) -> None:
        super().__init__(base, name, flags)
        self._capture = capture

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._capture.committing:
            # Room for it is taken before the log has the group, so that a full disk is an error of the statement.
            super().xWrite(bytes(len(data)), offset)
        self._capture.writes(data, offset)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        """The files are a cache of the replicated log."""


class CaptureVfs(apsw.VFS):
    """One for each writing connection. `close` when that is closed."""

    def __init__(self, name: str, events: CaptureEvents) -> None:
        self.name = name
        super().__init__(name, "")
        self._events = events
        self._headers: dict[int, tuple[int, int]] = {}
        self._contents: dict[int, bytes] = {}
        self.committing = False
        """Whether the next write is the page of the frame that commits."""

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return _Log("", name, flags, self)
        return apsw.VFSFile("", name, flags)

    def begin(self) -> None:
        """A transaction begins, or one was rolled back: forget what was noted."""
        self._headers.clear()
        self._contents.clear()
        self.committing = False

    def writes(self, data: bytes, offset: int) -> None:
        """SQLite is about to write this into the log."""
        if offset == 0:
            self.begin()
            self._events.on_log_restarted()
        elif len(data) == FRAME_HEADER_BYTES:
            frame = frame_of(offset)
            assert frame is not None, f"a frame's header at {offset}"
            self._headers[frame] = header = parse_frame_header(data)
            self.committing = header[1] > 0
        elif len(data) == PAGE_BYTES:
            frame = frame_of(offset - FRAME_HEADER_BYTES)
            assert frame is not None, f"a page at {offset} of the log"
            self._contents[frame] = bytes(data)
            self.committing = False
            size = self._headers[frame][1]
            if size:
                self._commit(frame, size)
            else:
                self._events.on_spill(len(self._contents))
        else:
            raise AssertionError(f"SQLite writes {len(data)} bytes at {offset} of its log")

    def _commit(self, last: int, size: int) -> None:
        pages: dict[int, bytes] = {}
        frames: dict[int, int] = {}
        for frame in sorted(self._contents):
            if frame <= last:
                number = self._headers[frame][0]
                if number <= size:
                    pages[number], frames[number] = self._contents[frame], frame
        self._headers.clear()
        self._contents.clear()
        self._events.on_commit(Captured(pages, frames, size))

    def close(self) -> None:
        self.unregister()


__all__ = ["CaptureEvents", "CaptureVfs", "Captured"]
