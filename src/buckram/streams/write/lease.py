"""The lease: at most one writer at a time is polite enough to write. What makes it certain is the epoch and the fence.

An ephemeral key of the writer's metadata session. Its value names the holder, for the error that others get.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from buckram.core.streams.changes import check_usable
from buckram.core.streams.names import StreamName
from buckram.errors import (
    KeyExists,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    VersionConflict,
    WriterExists,
)
from buckram.net.tasks import TaskScope
from buckram.seams import CheckVersion, Create, Delete
from buckram.streams.shared.metadata import StreamStore, head_retries

_RETRY_S = 0.2
_CLOSE_S = 5.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Holder:
    name: str
    nonce: str
    since: int

    def encode(self) -> bytes:
        return json.dumps({"name": self.name, "nonce": self.nonce, "since": self.since}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Holder:
        """Anything unreadable is a holder without a name: the lease is only for politeness."""
        try:
            raw = json.loads(data)
            return cls(str(raw["name"]), str(raw["nonce"]), int(raw["since"]))
        except (ValueError, KeyError, TypeError):
            return cls("unknown", "", 0)


class Lease:
    """`lost(reason)` is called once, on the loop, when somebody else holds it. `acquire` before, `close` after use."""

    def __init__(
        self,
        streams: StreamStore,
        name: StreamName,
        uid: str,
        me: Holder,
        lost: Callable[[str], None],
        guard: Callable[[], None],
    ) -> None:
        self._streams, self._name, self._uid, self._me, self._lost = streams, name, uid, me, lost
        self._guard = guard
        self._keys, self._stream, self._key = streams.keys, str(name), streams.layout.lease(uid)
        self._scope = TaskScope(f"lease of {name}")
        self._stale = asyncio.Event()
        self._closed = False

    async def acquire(self, *, takeover: bool = False, wait: bool = False) -> None:
        """Hold it. Held by another: WriterExists, or wait for its end, or replace it (takeover). HandleClosed."""
        retries = head_retries()
        while True:
            freed = asyncio.Event()
            try:
                await self._create()
                break
            except KeyExists:
                pass
            except (MetadataUnavailable, VersionConflict) as error:
                await retries.wait(error)  # it may be there now: look
            try:
                found = await self._keys.get(self._key, freed.set if wait and not takeover else None)
                holder = Holder.decode(found.value)
                if holder.nonce == self._me.nonce:
                    break
                if takeover:
                    await self._keys.multi(
                        [
                            Delete(self._key, found.version),
                            Create(self._key, self._me.encode(), ephemeral=True),
                        ]
                    )
                    break
                if not wait:
                    raise WriterExists(self._stream, holder.name, holder.since)
                await self._free(freed)
                retries = head_retries()
            except (NoSuchKey, KeyExists, VersionConflict):
                continue  # it changed under our eyes
            except MetadataUnavailable as error:
                await retries.wait(error)
        self._stale.set()
        self._scope.spawn(self._watch(), "watch")

    async def _free(self, freed: asyncio.Event) -> None:
        """Until the holder's key changed; HandleClosed when our client is closed, whose watches are silent then."""
        while not freed.is_set():
            self._guard()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await freed.wait()

    async def close(self) -> None:
        """Give it up if it is ours. Idempotent; when the store is away it goes with the session."""
        if self._closed:
            return
        self._closed = True
        await self._scope.close()
        retries = head_retries(_CLOSE_S)
        while True:
            try:
                found = await self._keys.get(self._key)
                if Holder.decode(found.value).nonce == self._me.nonce:
                    await self._keys.delete(self._key, found.version)
                return
            except NoSuchKey:
                return
            except MetadataError as error:
                try:
                    await retries.wait(error)
                except MetadataError:
                    return

    async def _watch(self) -> None:
        """After every change of the key: is it still ours? One that went with our session is created again."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                reason = await self._look()
            except NoSuchStream as error:
                reason = str(error)
            except MetadataError:  # somebody was faster, or the store is away
                self._stale.set()
                await asyncio.sleep(_RETRY_S)
                continue
            if reason:
                self._lost(reason)
                return

    async def _look(self) -> str:
        """Why it is lost; empty while it is ours."""
        try:
            found = await self._keys.get(self._key, self._stale.set)
        except NoSuchKey:
            await self._create()
            self._stale.set()  # for a watch on the new one
            return ""
        holder = Holder.decode(found.value)
        return "" if holder.nonce == self._me.nonce else f"writer {holder.name!r} took the lease"

    async def _create(self) -> None:
        """Under the head's version, so that no key appears below a stream that is deleted. NoSuchStream."""
        at = await self._streams.read(self._name)
        check_usable(self._stream, at.head)
        if at.head.uid != self._uid:
            raise NoSuchStream(self._stream, "was deleted and created anew")
        await self._keys.multi(
            [
                CheckVersion(self._streams.layout.head(self._name), at.version),
                Create(self._key, self._me.encode(), ephemeral=True),
            ]
        )
