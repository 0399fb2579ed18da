"""A note for operators that a bookie keeps in the metadata store for as long as its session lasts."""

from __future__ import annotations

from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.seams import MetadataStore


class Note:
    """One ephemeral key. Every method may raise MetadataError and may then be called again later."""

    def __init__(self, metadata: MetadataStore, key: str) -> None:
        self._metadata, self._key = metadata, key
        self._written = False

    async def write(self, text: bytes) -> bool:
        """Create or replace the note. Return False, with nothing done, while a note of an earlier process is there."""
        self._written = True
        try:
            found = await self._metadata.keys.get(self._key)
            if found.owned and found.value != text:
                await self._metadata.keys.set(self._key, text, found.version)
            return found.owned
        except NoSuchKey:
            await self._metadata.keys.create(self._key, text, ephemeral=True)
            return True
        except (KeyExists, VersionConflict):
            return False

    async def remove(self) -> None:
        """Remove the note, if this process wrote it."""
        if not self._written:
            return
        try:
            found = await self._metadata.keys.get(self._key)
            if found.owned:
                await self._metadata.keys.delete(self._key, found.version)
        except (NoSuchKey, VersionConflict):
            pass
        self._written = False
