"""Keys that are written and removed whatever they hold: reports and settings, where the last writer wins.

Not here: changes that depend on what is there, which are compare-and-set where they are made.
"""

from __future__ import annotations

from contextlib import suppress

from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.seams import KeyStore

_TRIES = 20


async def overwrite(keys: KeyStore, key: str, value: bytes) -> None:
    """Have a key hold this value; it is written, and gets a new version, even if it holds it already.

    Raises MetadataUnavailable.
    """
    for _ in range(_TRIES):
        try:
            await keys.set(key, value, (await keys.get(key)).version)
            return
        except VersionConflict:
            continue
        except NoSuchKey:
            with suppress(KeyExists):
                await keys.create(key, value)
                return
    raise MetadataUnavailable(f"{key}: others changed it {_TRIES} times meanwhile; try again")


async def remove(keys: KeyStore, key: str) -> None:
    """Delete a key if it exists. One that somebody changes at this very moment stays."""
    with suppress(NoSuchKey, VersionConflict):
        await keys.delete(key, (await keys.get(key)).version)


__all__ = ["overwrite", "remove"]
