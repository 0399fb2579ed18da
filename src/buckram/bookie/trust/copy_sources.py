"""The directories of this machine that a bookie copies entries from: only those of bookies of its own cluster.

A request for a copy names a bookie and its directory. The directory is used only if its cookie is the one that the
metadata store has for that bookie. Not here: copying (`bookie/service/entries/pulls.py`).
"""

from __future__ import annotations

import asyncio

from buckram.bookie.trust.cookie import COOKIE_FILE
from buckram.core.cluster.cookie import Cookie, parse_cookie
from buckram.core.wire.located import Located
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.seams import FileRange, LocalDirectory, LocalFiles, MetadataStore
from buckram.types import BookieId

KNOWN_S = 30.0
"""Time a directory stays accepted without another look at the cookies, seconds."""
_MOST, _COOKIE_BYTES = 64, 4096


class Sources:
    """Opens the directories of neighbours."""

    def __init__(self, files: LocalFiles, metadata: MetadataStore) -> None:
        self._files, self._metadata = files, metadata
        self._known: dict[tuple[BookieId, str, str], tuple[float, LocalDirectory]] = {}

    async def __call__(self, source: BookieId, located: Located, /) -> LocalDirectory | None:
        """Return the directory; None if it is not on this machine or not that bookie's. Raises MetadataError."""
        key, now = (source, located.directory, located.identity), asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        self._known.pop(key, None)
        directory = self._files.open(located.directory, located.identity)
        if directory is None:
            return None
        cookie = await _cookie_in(directory)
        if cookie is None or not cookie.instance_id:
            return None
        try:
            registered = parse_cookie((await self._metadata.read_cookie(source)).value)
        except (NoSuchKey, MalformedRecord):
            return None
        if registered != cookie:
            return None
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = now + KNOWN_S, directory
        return directory


async def _cookie_in(directory: LocalDirectory) -> Cookie | None:
    try:
        ((data, at),) = await directory.read([FileRange(COOKIE_FILE, 0, _COOKIE_BYTES)])
        return parse_cookie(bytes(data[at : at + _COOKIE_BYTES]))
    except (OSError, MalformedRecord):
        return None
