"""Copying what one member of a fragment stores to another bookie: whole batches, verified, durable when it is done.

Entries travel as they are stored, digest and LAC included. Not here: which bookie is the target, and the change of the
metadata afterwards (`healing/ledger_repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from buckram.client.read.replicas import LedgerReads
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.healing.status import Row, add_to_rows
from buckram.core.ledgers.answers import Negative, Positive, Unknown
from buckram.core.ledgers.quorum import Quorum
from buckram.core.wire.adds import ack_frames, frame_copies
from buckram.errors import BookieError, BuckramError, HandleClosed
from buckram.net.pace import Pace
from buckram.net.tasks import TaskScope
from buckram.types import BookieId, EntryId, Fragment, LedgerId, Position, Slot

_BATCH_ENTRIES = 20_000
_AHEAD_BYTES = 8 * 1024 * 1024
_RUN_ENTRIES = 1000
_WALKERS = 32


@dataclass(slots=True)
class Copied:
    """What was copied for one member of a fragment."""

    entries: int = 0
    bytes: int = 0
    lost: list[Row] = field(default_factory=list)
    """Entries of which no member has a good copy: every one denied it, or gave bytes that do not fit their digest."""
    unread: list[Row] = field(default_factory=list)
    """Entries that may be on a bookie that did not answer."""
    error: str = ""
    """Why the first of these was not read."""

    @property
    def whole(self) -> bool:
        return not self.lost and not self.unread


class FragmentCopy:
    """Copies of one fragment of one ledger. `gone`: bookies that are not asked."""

    def __init__(
        self,
        services: Services,
        ledger: LedgerId,
        quorum: Quorum,
        fragment: Fragment,
        digest: Digest,
        key: bytes,
        scope: TaskScope,
        *,
        gone: Collection[BookieId],
        pace: Pace,
    ) -> None:
        self._services, self.ledger, self._quorum, self._fragment = services, ledger, quorum, fragment
        self._digest, self._key, self._scope, self._gone, self._pace = digest, key, scope, gone, pace
        self._reads = LedgerReads(services, ledger, digest, scope)

    async def to(self, target: BookieId, position: Position, last: EntryId) -> Copied:
        """Make `target` hold what `position` stores up to `last`. Raises the error of a target that refuses."""
        done, sink = Copied(), _Acks(self.ledger, self._digest.birth)
        # One iterator for all walkers: a striped fragment has millions of short ranges.
        ranges = self._quorum.held_ranges(position, self._fragment.first_entry, last)

        async def walk() -> BuckramError | None:
            try:
                for first, end in ranges:
                    await self._range(target, position, first, end, sink, done)
            except BookieError as error:
                return error
            return None

        width = 1 if self._quorum.mirrored else _WALKERS
        walkers = [self._scope.spawn(walk(), f"copy {self.ledger}") for _ in range(width)]
        try:
            for walker in walkers:
                if (error := await walker) is not None:
                    raise error
            await sink.acknowledged(0)
        finally:
            for walker in walkers:
                walker.cancel()
        return done

    async def _range(
        self, target: BookieId, position: Position, first: EntryId, last: EntryId, sink: _Acks, done: Copied
    ) -> None:
        at = first
        while at <= last:
            bodies = await self._read(position, at, last, done)
            if bodies:
                self._send(target, at, bodies, sink)
                done.entries += len(bodies)
                size = sum(map(len, bodies))
                done.bytes += size
                await sink.acknowledged(_AHEAD_BYTES)
                await self._pace.take(size)
            at += max(1, len(bodies))

    async def _read(self, position: Position, at: EntryId, last: EntryId, done: Copied) -> Sequence[bytes]:
        """Good entries from `at` on; none when entry `at` cannot be had, which is noted then."""
        ensemble, errors = self._fragment.ensemble, list[BuckramError]()
        holders = [p for p in self._quorum.write_set(at) if p != position and ensemble[p] not in self._gone]
        order = list(self._services.bookies.read_order([ensemble[p] for p in holders]))
        if ensemble[position] not in self._gone:
            order.append(ensemble[position])  # it lives and gives way: the last to be asked, and perhaps the only one
        for bookie in order:
            end = self._shared_end(ensemble.index(bookie), at, last)
            count = min(_BATCH_ENTRIES, end - at + 1)
            answer = await self._reads.batch(bookie, at, count, self._verified(at), _ignore, from_files=True)
            if isinstance(answer, Positive):
                return answer.value
            if isinstance(answer, Unknown) and not answer.damaged:
                errors.append(answer.error)
                if isinstance(answer.error, HandleClosed):
                    raise answer.error
            else:
                assert isinstance(answer, Negative | Unknown)
        away = [ensemble[p] for p in self._quorum.write_set(at) if ensemble[p] in self._gone]
        if errors or away:
            done.error = done.error or (str(errors[0]) if errors else f"bookie {away[0]} is gone")
            add_to_rows(done.unread, at)
        else:
            add_to_rows(done.lost, at)
        return ()

    def _shared_end(self, position: Position, at: EntryId, last: EntryId) -> EntryId:
        """The last entry from `at` on that this position stores without a gap."""
        return next((high for low, high in self._quorum.held_ranges(position, at, last) if low <= at), at)

    def _verified(self, first: EntryId) -> Callable[[Sequence[bytes]], list[bytes]]:
        def verify(bodies: Sequence[bytes]) -> list[bytes]:
            good = len(self._digest.open_digests(self.ledger, first, bodies))
            return list(bodies[:good])

        return verify

    def _send(self, target: BookieId, first: EntryId, bodies: Sequence[bytes], sink: _Acks) -> None:
        lane = self._services.pool.lane(target)
        ours = self._services.bookies.incarnation(target) is not None
        for start in range(0, len(bodies), _RUN_ENTRIES):
            part = bodies[start : start + _RUN_ENTRIES]
            low = first + start
            high = low + len(part) - 1
            frames = frame_copies(self._key, part)
            sink.sent(len(frames), low, high)
            lane.send(frames, ack_frames(self.ledger, low, len(part)), [(sink, Slot(0), low, high)], copies_on_v2=ours)


def _ignore(entries: int, size: int) -> None:
    return None


class _Acks:
    """Counts what the target has not acknowledged yet, and keeps its first refusal."""

    def __init__(self, ledger: LedgerId, birth: bytes) -> None:
        self.name = (ledger, birth) if birth else None
        self._pending: dict[EntryId, tuple[EntryId, int]] = {}
        self._bytes = 0
        self._error: BuckramError | None = None
        self._changed = asyncio.Event()

    def sent(self, size: int, first: EntryId, last: EntryId) -> None:
        self._pending[first] = last, size
        self._bytes += size

    def acked(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId) -> None:
        self._answered(first, last)

    def add_failed(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError) -> None:
        if self._error is None:
            self._error = error if isinstance(error, BuckramError) else BookieError(bookie_id, str(error))
        self._answered(first, last)

    def _answered(self, first: EntryId, last: EntryId) -> None:
        """Runs are answered in pieces where entries are answered one by one."""
        for start in [s for s in self._pending if s <= last and self._pending[s][0] >= first]:
            end, size = self._pending.pop(start)
            left = 0
            if start < first:
                self._pending[start] = first - 1, 0
            if end > last:
                left = size * (end - last) // (end - start + 1)
                self._pending[last + 1] = end, left
            self._bytes -= size - left
        self._changed.set()

    async def acknowledged(self, at_most: int) -> None:
        """Until at most so many bytes (0: nothing at all) wait for an answer; raises what the target refused with."""
        while self._error is None and (self._bytes > at_most or (not at_most and self._pending)):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
