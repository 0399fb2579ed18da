"""Operations on keys of any meaning: listing children page by page, overwriting and removing, and watching many keys.

`overwrite` and `remove` are for keys whose last writer wins, whatever they hold: reports and settings. `WatchHub` has
many one-shot subscribers on a group of keys, with at most one outstanding watch for each key. A client that follows the
bookies subscribes again and again while most registrations stay unchanged; without the hub each subscription would
leave another watch on every registration.

Not here: changes that depend on what a key holds, which are compare-and-set where they are made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.seams import KeyStore, Notify
from buckram.types import KeyValue

_PAGE = 1000


async def all_names(
    keys: KeyStore, parent: str, *, watch: Notify | None = None, page: int = _PAGE
) -> AsyncIterator[str]:
    """Yield names in order, read in pages of at most `page` names. The watch fires when a name is added or removed.

    Names that are added or removed meanwhile may be missed. Raises MetadataError; a failure never looks like the end.
    """
    after = ""
    while names := await keys.children(parent, after=after, limit=page, watch=watch):
        for name in names:
            yield name
        after, watch = names[-1], None


async def all_children(keys: KeyStore, parent: str, *, page: int = _PAGE) -> AsyncIterator[tuple[str, KeyValue]]:
    """Yield names and values in the order of names, read in pages. Raises MetadataError.

    Names that are added or removed meanwhile may be missed. A failure raises, and never looks like the end.
    """
    after = ""
    while found := await keys.children_with_values(parent, after=after, limit=page):
        for child in found:
            yield child
        after = found[-1][0]


# -- keys whose last writer wins ------------------------------------------------------------------------------

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


# -- watches on many keys -------------------------------------------------------------------------------------


class WatchHub:
    """Reads through `keys`; a change of anything that was read with `watched` notifies all subscribers once."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._subscribers: dict[Notify, None] = {}
        self._armed: dict[tuple[str, str], Notify] = {}

    def subscribe(self, notify: Notify) -> None:
        """Subscribe; to be called before reading, so that no change falls between."""
        self._subscribers[notify] = None

    async def get(self, key: str, *, watched: bool) -> KeyValue:
        return await self._keys.get(key, self._arm("value", key) if watched else None)

    async def children(self, parent: str, after: str, limit: int, *, watched: bool) -> list[str]:
        watch = self._arm("children", parent) if watched else None
        return await self._keys.children(parent, after=after, limit=limit, watch=watch)

    def _arm(self, kind: str, key: str) -> Notify:
        # Handing in the same function again is free (a function set twice on a key fires once), and unlike "it is
        # armed already" it stays right when the read that should have armed it failed.
        place = (kind, key)
        watch = self._armed.get(place)
        if watch is None:
            watch = self._armed[place] = self._on_change(place)
        return watch

    def _on_change(self, place: tuple[str, str]) -> Notify:
        def changed() -> None:
            self._armed.pop(place, None)
            subscribers = list(self._subscribers)
            self._subscribers.clear()
            for notify in subscribers:
                notify()

        return changed
