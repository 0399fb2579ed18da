"""CaptureVfs: a SQLite VFS before the leader's write-ahead log, which holds each commit until it is decided.

SQLite writes the frames of a transaction, the last of which commits. The VFS notes them by their place in the log, so
that later frames overwrite those of a part of the transaction that was rolled back. Before the last one is written it
calls `on_commit`; an error of that makes SQLite roll the transaction back. Not here: what is done with the pages
(`state/db/table_engine/engine.py`).
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
    """Events of the writing connection. All methods are called in the thread that uses the connection."""

    def on_commit(self, captured: Captured) -> None:
        """Return when the transaction may be committed; an error rolls it back."""
        ...

    def on_spill(self, pages: int) -> None:
        """Receive the number of pages that the open transaction has written; an error fails the statement."""
        ...

    def on_log_restarted(self) -> None:
        """Learn that SQLite begins to write the log from its start again."""
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
        """Do nothing: the files are a cache of the replicated log and need no sync."""


class CaptureVfs(apsw.VFS):
    """One for each writing connection. `close` when that is closed."""

    def __init__(self, name: str, events: CaptureEvents) -> None:
        self.name = name
        super().__init__(name, "")
        self._events = events
        self._headers: dict[int, tuple[int, int]] = {}
        self._contents: dict[int, bytes] = {}
        self.committing = False
        """True if the next write is the page of the committing frame."""

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return _Log("", name, flags, self)
        return apsw.VFSFile("", name, flags)

    def begin(self) -> None:
        """Forget the noted frames: a transaction begins, or one was rolled back."""
        self._headers.clear()
        self._contents.clear()
        self.committing = False

    def writes(self, data: bytes, offset: int) -> None:
        """Note bytes that SQLite is about to write into the log at this offset."""
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
