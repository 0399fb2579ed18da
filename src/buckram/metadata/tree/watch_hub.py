"""A hub of many one-shot subscribers on a group of keys, with at most one outstanding watch for each key.

A client that follows the bookies subscribes again and again while most registrations stay unchanged. Without this hub
each subscription would leave another watch on every registration.
"""

from __future__ import annotations

from buckram.seams import KeyStore, Notify
from buckram.types import KeyValue


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
