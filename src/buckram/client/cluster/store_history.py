"""A client's view of the metadata store's past: a store that is behind what bookies have seen of it is refused.

The history is read when the client connects and again whenever it changed or a bookie tells of a later epoch. What the
client does with the store goes through `guarded`, so that nothing is read from or written to one that is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from buckram.core.cluster.store_history import HIGHEST_EPOCH, why_not_accepted
from buckram.errors import MetadataError, NotEnoughBookies, StoreWentBack
from buckram.metadata.tree.layout import SUSPECTS
from buckram.seams import MetadataStore
from buckram.types import History

_FREE = ("close", "history", "sync", "reopen", "end_session", "identity_required")
_REMEDY = (
    "look at `buckram cluster check`; put the newest metadata back, or `buckram cluster restore` a backup and "
    "`buckram cluster accept-restore` it"
)


class StoreHistory:
    """`start` once. `check` raises StoreWentBack for a store that must not be used."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._stale = False
        self._heard = 0
        self.history = History()

    async def start(self) -> None:
        """Read the history. Raises StoreWentBack for a store that was restored and not accepted, and
        MetadataUnavailable."""
        self.history = await self._read()
        self._judge(self.history)

    @property
    def epoch(self) -> int:
        """Return the highest epoch that is known."""
        return max(self.history.epoch, self._heard)

    def note_epoch(self, epoch: int) -> None:
        """Note that a bookie has seen this epoch."""
        if self._heard < epoch <= HIGHEST_EPOCH:
            self._heard = epoch

    async def check(self) -> None:
        """Check the store if its history changed or a later epoch was heard of; costs nothing otherwise. Raises
        MetadataError."""
        if not self._stale and self._heard <= self.history.epoch:
            return
        async with self._lock:
            if self._stale or self._heard > self.history.epoch:
                self._judge(await self._read())

    async def _read(self) -> History:
        self._stale = False
        try:
            return await self._store.history(self._changed)
        except BaseException:
            self._stale = True
            raise

    def _changed(self) -> None:
        self._stale = True

    def _judge(self, now: History) -> None:
        uri = self._store.uri
        try:
            if now.moved and not now.accepted:
                raise StoreWentBack(f"{uri} cannot be used: {why_not_accepted(now)}")
            if not now.accepted:
                raise StoreWentBack(
                    f"{uri} was restored from a backup, and no operator has accepted it yet: start all bookies, "
                    "then `buckram cluster accept-restore`"
                )
            if now.epoch < self.epoch:
                raise StoreWentBack(
                    f"{uri} went back: its epoch is {now.epoch}, and {self.epoch} was seen by bookies; {_REMEDY}"
                )
            began = self.history.epoch == 0 and now.epoch == 1  # a cluster of an older release got its first
            if now.restore != self.history.restore and not began:
                raise StoreWentBack(
                    f"{uri} was restored while this client was connected (epoch {self.history.epoch}, now {now.epoch}):"
                    " what the client knows of it may be outdated; connect again"
                )
        except StoreWentBack:
            self._stale = True  # as long as it is refused it is looked at again
            raise
        self.history = now

    async def explain(self, error: NotEnoughBookies) -> None:
        """Raise StoreWentBack in place of this error if bookies are missing because they do not believe the store; else
        return."""
        try:
            found = await self._store.keys.children(f"{self._store.own}/{SUSPECTS}", limit=5)
        except MetadataError:
            return
        if found:
            raise StoreWentBack(
                f"{self._store.uri} went back: {', '.join(found)} and maybe other bookies know a newer state of "
                f"it, and take no entries until it is repaired ({error}); {_REMEDY}"
            ) from error


def guarded(store: MetadataStore, past: StoreHistory) -> MetadataStore:
    """Return the store so guarded that it is used only while it is not refused."""
    return cast(MetadataStore, _Guarded(store, past))


def unguarded(store: MetadataStore) -> MetadataStore:
    """Return the store behind a guarded one, for callers that look at it without believing it; any other store as it
    is."""
    return cast(MetadataStore, store.inner) if isinstance(store, _Guarded) else store


class _Guarded:
    def __init__(self, inner: Any, past: StoreHistory) -> None:
        self.inner, self._past = inner, past
        self._made: dict[str, tuple[Any, Any]] = {}
        """Wrappers by attribute name, each with the attribute it wraps, so that they are not made anew for each
        request."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        known = self._made.get(name)
        if known is not None and known[0] == found:
            return known[1]
        if name == "keys":
            made: Any = _Guarded(found, self._past)
        elif name in _FREE or not inspect.iscoroutinefunction(found):
            return found
        else:
            made = _checked(found, self._past)
        self._made[name] = found, made
        return made


def _checked(operation: Callable[..., Awaitable[Any]], past: StoreHistory) -> Callable[..., Awaitable[Any]]:
    @wraps(operation)
    async def checked(*args: Any, **options: Any) -> Any:
        await past.check()
        return await operation(*args, **options)

    return checked
