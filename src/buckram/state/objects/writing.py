"""Writing the bytes of objects: small ones share ledgers (packs), a large one has a ledger of its own.

A ledger is known to the index before it gets its first byte, so that its space comes back whatever happens. Not here:
names (`core/objects/index.py`), reading (`state/objects/reading.py`), deleting ledgers
(`state/objects/garbage_collection.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from buckram.client.ledger_client import LedgerClient
from buckram.client.write.engine import LedgerAppender
from buckram.core.backoff import MACHINE, Delays
from buckram.core.objects.rows import Extent
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import BuckramError, CommandRefused, DataLost, HandleClosed, MirrorStream, ReplicaStopped
from buckram.runtime.process.tasks import TaskScope
from buckram.state.objects.index_client import IndexClient
from buckram.state.objects.presence import Presence
from buckram.streams.shared.ledgers import OBJECT, make_ledger, read_intent
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.types import LedgerId

CHUNK_BYTES = 1024 * 1024
SMALL_BYTES = 1024 * 1024
"""Objects up to this size go into packs."""
PACK_BYTES = 64 * 1024 * 1024
ENTRY_BYTES = 256 * 1024
"""Small objects of one moment share an entry up to this size."""
_IN_FLIGHT = 8
_TRIES = 3
Made = tuple[LedgerAppender, bool] | BuckramError
"""A ledger that was made, and whether it was recorded in time; or why there is none."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that are durable and not yet under a name. `sealed` has the ledgers that nothing is added to any more."""

    size: int
    digest: str
    extents: list[Extent]
    sealed: list[tuple[LedgerId, int]] = field(default_factory=list)


class LedgerMaker:
    """Makes ledgers for data, which the index knows before their first byte, and gives up those that failed."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        log: StreamName,
        head: Head,
        policy: Policy,
        index: IndexClient,
        scope: TaskScope,
    ) -> None:
        self._client, self._streams, self._log, self._head = client, streams, log, head
        self._policy, self._index, self._scope = policy, index, scope
        self.presence = Presence(streams, head.uid, f"{client.services.runtime.rng.getrandbits(128):032x}")

    async def make(self) -> LedgerAppender:
        """Create a ledger known to the index. Raises NotEnoughBookies, MetadataUnavailable, DataLost, MirrorStream."""
        await self._index.check_writable()
        await self.presence.show()
        for left in reversed(range(_TRIES)):
            # A caller that is cancelled meanwhile cannot know how far it got: the task goes on and gives the ledger up.
            making = self._scope.spawn(self._attempt(), "make a ledger")
            try:
                await asyncio.wait((making,))
            except asyncio.CancelledError:
                making.add_done_callback(self._not_wanted)
                raise
            if making.cancelled():
                raise HandleClosed(f"objects of {self._log.namespace} were closed")
            made = making.result()
            if isinstance(made, BuckramError):
                raise made
            writer, begun = made
            if begun:
                return writer
            if not left:
                raise DataLost(
                    str(self._log), f"ledger {writer.ledger_id} was given up, as others took this process for dead"
                )
        raise AssertionError("unreachable")

    async def _attempt(self) -> Made:
        """Do as `_make`, and return its error: the caller raises it, and no scope reports a task that failed."""
        try:
            return await self._make()
        except BuckramError as error:
            return error

    async def _make(self) -> tuple[LedgerAppender, bool]:
        """Create a ledger and record it in the index; whether this was in time, as for `_begin`."""
        writer, _ = await make_ledger(
            self._client,
            self._streams,
            self._log,
            self._head.uid,
            self._policy,
            epoch=self._head.epoch,
            purpose=OBJECT,
        )
        begun = False
        try:
            begun = await self._begin(writer.ledger_id)
        except BaseException:
            self.give_up([(writer.ledger_id, 0)])
            raise
        finally:
            if not begun:
                await writer.abandon()
        return writer, begun

    def _not_wanted(self, making: asyncio.Task[Made]) -> None:
        """Give up the ledger that was made for a caller who is gone."""
        if making.cancelled() or making.exception() is not None or self._scope.closed:
            return
        made = making.result()
        if isinstance(made, BuckramError):
            return
        writer, begun = made
        if begun:
            self._scope.spawn(writer.abandon(), f"abandon {writer.ledger_id}")
            self.give_up([(writer.ledger_id, 0)])

    async def _begin(self, ledger: LedgerId) -> bool:
        """Record a new ledger in the index. Return False if a sweeper has found it before that, and deletes it."""
        try:
            await self._index.execute(["begin", ledger, self.presence.name])
        except CommandRefused:
            return False
        # The index may have forgotten a ledger that was deleted between its creation and this command.
        intent = await retry_metadata(lambda: read_intent(self._streams, self._head.uid, ledger))
        if intent is None or intent.discard:
            self.give_up([(ledger, 0)])
            return False
        return True

    def give_up(self, ledgers: Iterable[tuple[LedgerId, int]]) -> None:
        """Seal these ledgers (with their bytes) in the index: bytes that have no name by then never get one."""
        for ledger, size in ledgers:
            if not self._scope.closed:
                self._scope.spawn(self._seal(ledger, size), f"give up {ledger}")

    async def _seal(self, ledger: LedgerId, size: int) -> None:
        """Seal a ledger in the index, however long that cannot be reached: no sweeper does it before this process is
        gone."""
        delays = Delays(MACHINE)
        while True:
            try:
                await self._index.execute(["seal", ledger, size])
                return
            except (HandleClosed, ReplicaStopped, MirrorStream):
                return  # nothing is written by this process any more
            except BuckramError:
                await asyncio.sleep(delays.take())


@dataclass(slots=True)
class _Small:
    data: bytes
    future: asyncio.Future[Extent]
    tries: int = 0


class Packs:
    """Puts small objects into the pack of this process. Objects of one moment share an entry."""

    def __init__(self, maker: LedgerMaker, index: IndexClient, scope: TaskScope) -> None:
        self._maker, self._index, self._scope = maker, index, scope
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Small] = deque()
        self._pack: LedgerAppender | None = None
        self._bytes = 0
        self._pump: asyncio.Task[None] | None = None
        self._appends: dict[asyncio.Task[None], None] = {}

    def put(self, data: bytes) -> asyncio.Future[Extent]:
        """Store bytes; the future gets their extent when they are durable."""
        future: asyncio.Future[Extent] = self._loop.create_future()
        self._add(_Small(data, future))
        return future

    def _add(self, small: _Small) -> None:
        self._waiting.append(small)
        if self._pump is None:
            self._pump = self._scope.spawn(self._run(), "packs")

    async def _run(self) -> None:
        """Send the waiting objects, at most a few entries at a time, until none waits."""
        try:
            await asyncio.sleep(0)  # Everything of this turn shares an entry.
            while self._waiting:
                if len(self._appends) >= _IN_FLIGHT:
                    await asyncio.wait(self._appends, return_when=asyncio.FIRST_COMPLETED)
                    continue
                if self._pack is None or self._bytes >= PACK_BYTES:
                    await self.seal()
                    self._pack, self._bytes = await self._maker.make(), 0
                group, size = [self._waiting.popleft()], 0
                size = len(group[0].data)
                while self._waiting and size + len(self._waiting[0].data) <= ENTRY_BYTES:
                    group.append(self._waiting.popleft())
                    size += len(group[-1].data)
                self._bytes += size
                task = self._scope.spawn(self._append(self._pack, group), "append")
                self._appends[task] = None
                task.add_done_callback(self._appends.pop)
        except Exception as error:
            waiting, self._waiting = self._waiting, deque()
            for small in waiting:
                _fail(small.future, error)
            if not isinstance(error, BuckramError):
                raise
        finally:
            self._pump = None

    async def _append(self, pack: LedgerAppender, group: list[_Small]) -> None:
        try:
            entry = await pack.append(b"".join(small.data for small in group))
        except BuckramError as error:
            # Another pack gets what this one did not take; whether it has the bytes does not matter.
            if self._pack is pack:
                self._pack = None
                self._maker.give_up([(pack.ledger_id, pack.length)])
            for small in group:
                small.tries += 1
                if small.tries >= _TRIES:
                    _fail(small.future, error)
                else:
                    self._add(small)
            return
        at = 0
        for small in group:
            if not small.future.done():
                small.future.set_result(Extent(pack.ledger_id, entry, at, len(small.data), 0))
            at += len(small.data)

    def forget(self, extents: Iterable[Extent]) -> None:
        """Leave the present pack if the index has given up one of these ledgers: the next object gets another pack."""
        if self._pack is not None and any(extent.ledger == self._pack.ledger_id for extent in extents):
            self._pack = None

    async def seal(self) -> None:
        """End the present pack: nothing is added to it any more."""
        pack, self._pack = self._pack, None
        if pack is not None:
            try:
                if self._appends:
                    await asyncio.wait(self._appends)
                await pack.close()
                await self._index.execute(["seal", pack.ledger_id, pack.length])
            except BaseException:
                self._maker.give_up([(pack.ledger_id, pack.length)])
                raise


async def write_large(maker: LedgerMaker, first: bytes, rest: AsyncIterator[bytes]) -> Stored:
    """Write an object's bytes into a ledger of its own; no object has them until they are put under a name."""
    writer = await maker.make()
    try:
        return await _write(writer, first, rest)
    except BaseException:
        maker.give_up([(writer.ledger_id, writer.length)])
        raise


async def _write(writer: LedgerAppender, first: bytes, rest: AsyncIterator[bytes]) -> Stored:
    digest, size = hashlib.sha256(), 0
    flying: deque[asyncio.Future[int]] = deque()
    async with writer:
        async for chunk in _chunks(first, rest):
            # Large pieces are hashed beside the loop, which sends the ones before meanwhile.
            hashing = asyncio.get_running_loop().run_in_executor(None, digest.update, chunk)
            while len(flying) >= _IN_FLIGHT:
                await flying.popleft()
            flying.append(asyncio.ensure_future(writer.append(chunk)))
            flying[-1].add_done_callback(_seen)
            size += len(chunk)
            await hashing
        while flying:
            await flying.popleft()
    extents = [Extent(writer.ledger_id, 0, 0, size, CHUNK_BYTES)]
    return Stored(size, f"sha256:{digest.hexdigest()}", extents, [(writer.ledger_id, size)])


async def _chunks(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of CHUNK_BYTES, the last one shorter. Each byte is copied once at most."""
    held: list[memoryview] = []
    missing = CHUNK_BYTES
    piece: bytes | None = first
    while piece is not None:
        place = 0
        if not held and len(piece) == CHUNK_BYTES:
            yield piece
            place = CHUNK_BYTES
        view = memoryview(piece)
        while place < len(piece):
            part = view[place : place + missing]
            held.append(part)
            place += len(part)
            missing -= len(part)
            if not missing:
                yield b"".join(held)
                held, missing = [], CHUNK_BYTES
        piece = await anext(rest, None)
    if held:
        yield b"".join(held)


def _seen(append: asyncio.Future[int]) -> None:
    """Mark the error of an append as seen: after a failure of the source or an earlier append, none awaits it."""
    if not append.cancelled():
        append.exception()


def _fail(future: asyncio.Future[Extent], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
