"""A cache of footer pages.

Not here: the meaning of a page (`bookie/storage/segments/segments.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from buckram.core.storage.segment_format import PAGE


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
