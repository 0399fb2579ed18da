"""Following a machine's log: the newest snapshot, then every record as it is acknowledged, and how old the state is at
most.

The end of the log is looked up, and one look-up serves all waiters. A replica that has just been opened looks by
itself: until it has once reached the end, its state may be that of long ago, or empty, and no read is served from it.

Not here: becoming the leader (`state/machine/replica.py`), what a record does (`core/machine/fold.py`), what the answer
proves (`core/machine/read_proofs.py`), the question itself (`streams/read/locate.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from buckram.core.machine.fold import Fold
from buckram.core.machine.read_proofs import Freshness
from buckram.core.streams.metadata.changes import check_usable
from buckram.errors import (
    BuckramError,
    HandleClosed,
    NoSuchStream,
    ReplicaStopped,
    SnapshotDamaged,
    StateLost,
    TooStale,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.leader import OnApplied
from buckram.state.machine.snapshots import LogHandle, load_newest
from buckram.streams.read.locate import end_of_acknowledged, known_end
from buckram.streams.read.reader import Range, StreamReader


class Begun(NamedTuple):
    """Result of `load`: the published snapshots that are damaged, and the number of log segments still to read."""

    damaged: list[SnapshotDamaged]
    segments: int


async def load(place: LogHandle, fold: Fold) -> Begun:
    """Restore the newest good snapshot if it is newer than the state.

    Raises StateLost, ReplicaStopped (the state's own restore failed), NoSuchStream, ReadFailed, MetadataUnavailable.
    """
    head = (await place.streams.read(place.name)).head
    check_usable(str(place.name), head)
    found, damaged = await load_newest(place, head, fold.state.fault)
    if found is None:
        if fold.applied:
            fold.reset()
    elif found.row.offset > fold.applied:
        try:
            fold.restore(found.header, found.sessions, found.chunks)
        except Exception as error:
            text = f"restore() of the snapshot at offset {found.row.offset} failed with {error!r}"
            raise ReplicaStopped(str(place.name), found.row.offset, text) from error
    return Begun(damaged, sum(segment.base >= fold.applied for segment in head.tail))


async def tail(place: LogHandle, fold: Fold, on_applied: OnApplied) -> None:
    """Apply the records of the log, for ever. It may be cancelled at any time.

    Raises OffsetTruncated (load a snapshot), ReplicaStopped, StateLost (the log was ended), ReadFailed.
    """
    room = fold.state.room
    reader = StreamReader(
        place.client,
        place.streams,
        place.name,
        Range(start=fold.applied, follow=True),
        on_open=lambda reader: None,
        on_closed=lambda reader: None,
    )
    try:
        while (batch := await reader.next_batch()) is not None:
            try:
                for offset, value in enumerate(batch.values(), batch.first_offset):
                    while (full := room()) is not None:
                        on_applied()
                        await full
                    fold.apply(offset, value)
            finally:
                on_applied()
            await asyncio.sleep(0)  # Other tasks have their turn, also while very much is applied.
    finally:
        await reader.close()
    raise StateLost(str(place.name), "its log was ended; no command can follow")


_ASK_AGAIN_S = 0.5
"""Longest wait for the found end before it is looked up again, seconds: records that were stored but not acknowledged
are applied only after the next leader has decided on them."""
_PAUSE_S = 0.05
_LEAST_S = 2.0
"""Minimum time limit of a read, seconds, also if its `at_most_s` is less."""
_BEGIN_S = 30.0
"""Maximum time that a read waits for a replica that was just opened, seconds."""

AppliedAtLeast = Callable[[int], Awaitable[None]]
"""Returns when everything below an offset is applied."""


class FreshnessQuestion:
    """Keeps `freshness` up to date when a read needs it."""

    def __init__(
        self, place: LogHandle, freshness: Freshness, applied_at_least: AppliedAtLeast, scope: TaskScope
    ) -> None:
        self._place, self._freshness, self._applied_at_least, self._scope = place, freshness, applied_at_least, scope
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[None] | None = None
        self._trouble = ""
        self._ended: BuckramError | None = None
        self._begun, self._told = asyncio.Event(), asyncio.Event()
        """`_begun` is set when the end was reached; `_told` also by an error that may prevent that."""

    # -- the beginning ------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Return whether the state once had everything that could be read of the log after the replica was opened."""
        return self._begun.is_set()

    def set_begun(self) -> None:
        """Wake all that wait for the beginning: the end was reached, or the replica has stopped, which they check."""
        self._begun.set()
        self._told.set()

    def look_for_bookies(self) -> None:
        """After a failure to follow, let callers that wait for the beginning get an error if no bookie runs."""
        self._told.set()

    async def begin(self) -> None:
        """Find the end of the log, and note when it is reached."""
        place = self._place
        while not self._begun.is_set():
            try:
                head = (await place.streams.read(place.name)).head
                end = await known_end(place.client, place.name, head)
                self._trouble = f"its end is {end}, and what is before that is being applied"
                await self._applied_at_least(end)
            except (ReplicaStopped, HandleClosed, NoSuchStream) as error:
                self._ended = error
            except BuckramError as error:
                self._trouble = str(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            self.set_begun()

    async def begun(self) -> None:
        """Wait until `has_begun` holds, or the replica has stopped. Raises TooStale, NotEnoughBookies (none runs)."""
        try:
            async with asyncio.timeout(_BEGIN_S):
                while not self.has_begun:
                    if (nobody := self._place.client.services.bookies.nobody()) is not None:
                        raise nobody
                    self._told.clear()
                    await self._told.wait()
        except TimeoutError:
            raise TooStale(str(self._place.name), None, None, self._trouble) from None

    # -- later --------------------------------------------------------------------------------------------

    async def fresh(self, at_most_s: float) -> None:
        """Wait until the state lacks nothing that was acknowledged `at_most_s` seconds ago. Raises TooStale."""
        target = self._loop.time() - at_most_s
        try:
            async with asyncio.timeout(max(2 * at_most_s, _LEAST_S)):
                while self._freshness.as_of is None or self._freshness.as_of < target:
                    if self._scope.closed or self._ended is not None:
                        raise self._ended or HandleClosed(f"machine {self._place.name}: it was closed")
                    if self._asking is None:
                        self._asking = self._scope.spawn(self._question(), "freshness")
                    # One that was asked too early to serve this read is waited for all the same; the next one is ours.
                    await asyncio.wait((self._asking,))
        except TimeoutError:
            age = self._freshness.age(self._loop.time())
            raise TooStale(str(self._place.name), age, at_most_s, self._trouble) from None

    async def _question(self) -> None:
        asked_at, place = self._loop.time(), self._place
        try:
            end = await end_of_acknowledged(place.client, place.streams, place.name)
            self._trouble = "what is in the log could not be applied in time"
            async with asyncio.timeout(_ASK_AGAIN_S):
                await self._applied_at_least(end)
            self._freshness.confirmed(asked_at)
            self._trouble = ""
        except TimeoutError:
            pass
        except (ReplicaStopped, HandleClosed, NoSuchStream) as error:
            self._ended = error
        except BuckramError as error:
            self._trouble = str(error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._asking = None
