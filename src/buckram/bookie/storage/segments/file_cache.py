"""Keeps files of sealed segments and ledger tables open while they have readers, and pages of their footers in memory.

Not here: the content of the files and the meaning of a page (`bookie/storage/segments/segments.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from buckram.core.storage.segment_format import PAGE
from buckram.runtime.disk.io_errors import NO_DESCRIPTOR
from buckram.seams import Disk, File


class OpenFiles:
    """Files of sealed segments and tables, opened when needed.

    At most `limit` stay open, by default as many as the disk allows. If descriptors run out, files that nobody reads
    are closed for those that are needed.
    """

    def __init__(self, disk: Disk, limit: int = 0) -> None:
        self._disk, self._limit = disk, limit or disk.open_files
        self._files: OrderedDict[str, File] = OrderedDict()
        self._busy: dict[str, int] = {}
        self._leaving: dict[str, list[File]] = {}
        """Files that were forgotten while they were held: closed when the last holder releases the name."""

    def get(self, name: str) -> File:
        """Return the open file; it may be closed at the next `get`, see `hold`. Raises OSError."""
        file = self._files.get(name)
        if file is not None:
            self._files.move_to_end(name)
            return file
        file = self._files[name] = self._open(name)
        if len(self._files) > self._limit:
            self._close_one(name)
        return file

    def _open(self, name: str) -> File:
        while True:
            try:
                return self._disk.open(name, direct=True)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._close_one(name):
                    raise

    def close_idle(self) -> None:
        """Close all files without holders, because descriptors are needed elsewhere."""
        while self._close_one(""):
            pass

    def _close_one(self, wanted: str) -> bool:
        """Close the least recently used file without holders. Return False if there is none."""
        for old in self._files:
            if old != wanted and not self._busy.get(old):
                self._files.pop(old).close()
                return True
        return False

    def hold(self, name: str) -> File:
        """Return the open file and keep it open until `release`, because a read in another thread uses it."""
        file = self.get(name)
        self._busy[name] = self._busy.get(name, 0) + 1
        return file

    def release(self, name: str) -> None:
        """End one `hold`."""
        left = self._busy[name] - 1
        if left:
            self._busy[name] = left
        else:
            del self._busy[name]
            for file in self._leaving.pop(name, ()):
                file.close()

    def forget(self, name: str) -> None:
        """Close the file, once nobody holds it: its name may mean another file from now on."""
        file = self._files.pop(name, None)
        if file is None:
            return
        if name in self._busy:
            self._leaving.setdefault(name, []).append(file)
        else:
            file.close()

    def close(self) -> None:
        for file in [*self._files.values(), *(file for files in self._leaving.values() for file in files)]:
            file.close()
        self._files.clear()
        self._leaving.clear()


# -- footer pages ---------------------------------------------------------------------------------------------


class PageLoader(Protocol):
    """Reads page `number` of a footer and checks it. Raises CorruptBytes or OSError."""

    def __call__(self, number: int, /) -> bytes: ...


class PageCache:
    """The most recently used footer pages, at most `limit` of 4 KiB: by default those of 40 GB of 1 KB entries."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._pages: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, owner: int, number: int, load: PageLoader) -> bytes:
        """Return page `number` of segment or table number `owner`."""
        key = (owner, number)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = load(number)
            if len(self._pages) > self._limit:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(key)
        return page

    @property
    def limit_bytes(self) -> int:
        return self._limit * PAGE

    @property
    def held_bytes(self) -> int:
        return len(self._pages) * PAGE

    def clear(self) -> None:
        self._pages.clear()
