"""Pages of objects: only those that the client may see, found without reading through the others.

Not here: grants (`core/security/acl.py:Acl.objects`), the parameters of a page (`object_pages.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.security.object_names import NameRange
from buckram.errors import NoSuchObject
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects
from buckram.state.objects.refusals import NO_DIRECTORY

_PAGE = 1000
"""Entries of a directory read at a time for a client that may not see all of it."""
Entry = ObjectInfo | DirectoryInfo


class Page:
    """Makes one page: at most `limit` entries after `after`, the `next` of the page before, or empty for the first."""

    def __init__(self, after: str, limit: int) -> None:
        self._after, self._limit = after, limit
        self.next: str | None = None
        """The `after` of the next page; None if this was the last one."""

    async def by_prefix(self, objects: Objects, ranges: Sequence[NameRange], prefix: str) -> Sequence[Entry]:
        """Objects whose names begin with the prefix and are in one of the ranges, which are disjoint and in order."""
        found: list[ObjectInfo] = []
        for names in ranges:
            wanted = names.from_prefix(prefix)
            if wanted is None:
                continue
            found += await self._of_range(objects, wanted, 1 if wanted.exact else self._limit - len(found))
            if len(found) == self._limit:
                self.next = found[-1].name
                break
        return found

    async def _of_range(self, objects: Objects, wanted: NameRange, most: int) -> Sequence[ObjectInfo]:
        """The first names of a range, as many as that; a range with holes takes another look behind each."""
        found: list[ObjectInfo] = []
        after = self._after
        while len(found) < most:
            page = await objects.list(prefix=wanted.text, after=after, limit=most)
            found += [one for one in page if wanted.has(one.name)]
            if wanted.exact or len(page) < most:
                break
            after = wanted.behind(page[-1].name)
        return found[:most]

    async def of_directory(self, objects: Objects, ranges: Sequence[NameRange], directory: str) -> Sequence[Entry]:
        """Return the entries of a directory: objects in the ranges, and directories that contain such objects.

        Raises NoSuchObject for a directory that does not exist or of which the client may see nothing.
        """
        found: list[Entry] = []
        whole = any(names.has_all(f"{directory}/" if directory else "") for names in ranges)
        after, more, size = _marker(self._after), True, self._limit + 1 if whole else _PAGE
        while more and len(found) <= self._limit:
            page = await objects.entries(directory, after=after, limit=size)
            found += [one for one in page if whole or await _is_seen(objects, one, ranges)]
            after, more = (page[-1] if page else after), len(page) == size
        if not found and directory and not whole:
            raise NoSuchObject(f"{objects.namespace}/{directory}", NO_DIRECTORY)
        if len(found) > self._limit:
            found = found[: self._limit]
            self.next = _key(found[-1])
        return found


async def _is_seen(objects: Objects, entry: Entry, ranges: Sequence[NameRange]) -> bool:
    if isinstance(entry, ObjectInfo):
        return any(names.has(entry.name) for names in ranges)
    prefix = f"{entry.name}/"
    if any(names.has_all(prefix) for names in ranges):
        return True
    for wanted in (names.from_prefix(prefix) for names in ranges):
        if wanted is not None and any(map(wanted.has, await _first(objects, wanted.text))):
            return True
    return False


async def _first(objects: Objects, prefix: str) -> Sequence[str]:
    return [one.name for one in await objects.list(prefix=prefix, limit=1)]


def _key(entry: Entry) -> str:
    """Return the `after` that continues behind an entry of a directory."""
    return f"{entry.name}/" if isinstance(entry, DirectoryInfo) else entry.name


def _marker(after: str) -> Entry | None:
    if not after:
        return None
    if after.endswith("/"):
        return DirectoryInfo(after.rstrip("/"), 0, False, 0)
    return ObjectInfo(after, 0, 0, "", 0, None, {})
