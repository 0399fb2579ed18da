"""A note for operators that a bookie keeps in the metadata store for as long as its session lasts."""

from __future__ import annotations

from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.seams import MetadataStore


class Note:
    """One ephemeral key. `leave` what is new, `take_back` when it is over; MetadataError: do it again later."""

    def __init__(self, metadata: MetadataStore, key: str) -> None:
        self._metadata, self._key = metadata, key
        self._left = False

    async def leave(self, text: bytes) -> None:
        """One of the process before is waited for: nothing happens until its session has ended."""
        self._left = True
        try:
            found = await self._metadata.keys.get(self._key)
            if found.owned and found.value != text:
                await self._metadata.keys.set(self._key, text, found.version)
        except NoSuchKey:
            await self._metadata.keys.create(self._key, text, ephemeral=True)
        except (KeyExists, VersionConflict):
            return

    async def take_back(self) -> None:
        if not self._left:
            return
        try:
            found = await self._metadata.keys.get(self._key)
            if found.owned:
                await self._metadata.keys.delete(self._key, found.version)
        except (NoSuchKey, VersionConflict):
            pass
        self._left = False
