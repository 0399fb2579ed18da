"""The lease of a stream, which keeps a second writer from opening it, and the claim under which a writer changes it.

The lease is an ephemeral metadata key. It only saves writers from fencing each other by accident: what guarantees a
single writer are the epoch in the head, which the claim names, and the fence of the ledger. The key belongs to the
writer's metadata session, and its value names the holder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.metadata.changes import check_usable
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
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.types import CheckVersion, Create, Delete

# -- the claim --------------------------------------------------------------------------------------------

AppendClock = Callable[[], int]
"""Returns the wall time in microseconds UTC that records are stamped with (T1 in docs/reference/protocol.md)."""


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """The stream that a writer opened and the epoch under which it may change the head.

    `uid` tells the stream from others of the same name, `nonce` this writer from others of the same epoch.
    """

    client: LedgerClient
    streams: StreamStore
    name: StreamName
    uid: str
    epoch: int
    nonce: str

    def now(self) -> int:
        """Return the time that records are stamped with; an AppendClock."""
        return self.client.services.clocks.now()


# -- the lease --------------------------------------------------------------------------------------------

_RETRY_S = 0.2
_CLOSE_S = 5.0
_LOOK_S = 1.0
LeaseLost = Callable[[str], None]
"""Called once, on the event loop, when another writer holds the lease; the text says which one."""
HandleGuard = Callable[[], None]
"""Raises HandleClosed or ForkedClient when the client may not be used any more."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The writer that holds a lease: its name, a nonce that no other writer has, and since when (microseconds UTC)."""

    name: str
    nonce: str
    since: int

    def encode(self) -> bytes:
        """Return the value of the lease's key."""
        return json.dumps({"name": self.name, "nonce": self.nonce, "since": self.since}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Holder:
        """Parse the value of a lease's key. An unreadable one is an unknown holder, since no safety depends on it."""
        try:
            raw = json.loads(data)
            return cls(str(raw["name"]), str(raw["nonce"]), int(raw["since"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return cls("unknown", "", 0)


class Lease:
    """One writer's lease. Call `acquire` before writing and `close` afterwards."""

    def __init__(
        self,
        streams: StreamStore,
        name: StreamName,
        uid: str,
        me: Holder,
        on_lost: LeaseLost,
        guard: HandleGuard,
    ) -> None:
        self._streams, self._name, self._uid, self._me, self._on_lost = streams, name, uid, me, on_lost
        self._guard = guard
        self._keys, self._stream, self._key = streams.keys, str(name), streams.layout.lease(uid)
        self._scope = TaskScope(f"lease of {name}")
        self._sending: asyncio.Task[MetadataError | NoSuchStream | None] | None = None
        """The last request that may have created the key."""
        self._watching: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self._closed = False

    async def acquire(self, *, takeover: bool = False, wait: bool = False) -> None:
        """Take the lease. If another writer has it: wait until it is free, replace it (`takeover`), or WriterExists.

        Raises NoSuchStream, MetadataUnavailable, and HandleClosed if the client is closed during the wait.
        """
        retries = head_retries()
        while True:
            freed = asyncio.Event()
            try:
                await self._settled(self._create())
                break
            except KeyExists:
                pass
            except (MetadataUnavailable, VersionConflict) as error:
                await retries.wait(error)  # The key may have been created all the same, so read it below.
            try:
                found = await self._keys.get(self._key, freed.set if wait and not takeover else None)
                holder = Holder.decode(found.value)
                if holder.nonce == self._me.nonce:
                    break
                if takeover:
                    await self._settled(self._replace(found.version))
                    break
                if not wait:
                    raise WriterExists(self._stream, holder.name, holder.since)
                await self._wait_for_change(freed)
                retries = head_retries()
            except (NoSuchKey, KeyExists, VersionConflict):
                continue  # The key changed since it was read.
            except MetadataUnavailable as error:
                await retries.wait(error)
        self._stale.set()
        self._watching = self._scope.keep(self._watch, "watch", wake=self._stale.set)

    async def _wait_for_change(self, freed: asyncio.Event) -> None:
        """Wait until the holder's key has changed. A closed client's watches never fire, so `guard` is polled."""
        while not freed.is_set():
            self._guard()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await freed.wait()

    async def close(self) -> None:
        """Delete the lease if this writer holds it. Idempotent. While the store is away the session's end frees it."""
        if self._closed:
            return
        self._closed = True
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()  # It may send a request of its own, which is waited for as well.
            await asyncio.wait((self._watching,))
        if self._sending is not None:
            await asyncio.wait((self._sending,))
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
        """Check after every change of the key whether it is still this writer's; if it vanished, create it again."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                reason = await self._check_holder()
            except NoSuchStream as error:
                reason = str(error)
            except MetadataError:  # Another client changed the key at the same time, or the store is unavailable.
                self._stale.set()
                await asyncio.sleep(_RETRY_S)
                continue
            if reason:
                self._on_lost(reason)
                return

    async def _check_holder(self) -> str:
        """Return why the lease is lost; empty while this writer holds it. The next change of the key sets `_stale`."""
        try:
            found = await self._keys.get(self._key, self._stale.set)
        except NoSuchKey:
            await self._settled(self._create())
            self._stale.set()  # The next check sets a watch on the new key.
            return ""
        holder = Holder.decode(found.value)
        return "" if holder.nonce == self._me.nonce else f"writer {holder.name!r} took the lease"

    async def _settled(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a request to its end, also if the caller is cancelled meanwhile.

        One that is under way when `close` looks for the key could create it afterwards: then no writer would have the
        lease, and none could get it for as long as this session lives.
        """
        self._sending = task = self._scope.spawn(_outcome(work), "request")
        await asyncio.shield(task)
        error = task.result()
        if error is not None:
            raise error

    async def _replace(self, version: int) -> None:
        """Take the lease from the writer whose key has this version."""
        await self._keys.multi(
            [Delete(self._key, version), Create(self._key, self._me.encode(), ephemeral=True)],
        )

    async def _create(self) -> None:
        """Create the key on condition of the head's version, so that none appears below a deleted stream.

        Raises NoSuchStream if the stream is gone or is another one of the same name.
        """
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


async def _outcome(work: Coroutine[Any, Any, None]) -> MetadataError | NoSuchStream | None:
    """Return the error as a value: the caller may be gone, and an exception of the task would stay unretrieved."""
    try:
        await work
    except (MetadataError, NoSuchStream) as error:
        return error
    return None
