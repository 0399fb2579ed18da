"""Copies what one member of a fragment stores to another bookie: whole batches, verified, durable when it is done.

Entries travel as they are stored, digest and LAC included. Not here: which bookie is the target, and the change of the
metadata afterwards (`healing/repair/ledger_repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from buckram.client.read.local import LocalReads
from buckram.client.read.replicas import LedgerReads
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import total_bytes
from buckram.core.healing.status import Row, add_to_rows
from buckram.core.ledgers.answers import Negative, Positive, Unknown
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.reading import Span
from buckram.core.wire.adds import ack_frames, frame_copies
from buckram.errors import BookieError, BuckramError, HandleClosed
from buckram.healing.repair.server_side_copy import AHEAD_BYTES, PACED_AHEAD_BYTES, CopyLimits, Pulls
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, EntryId, Fragment, LedgerId, Position, Slot

_BATCH_ENTRIES = 20_000
_MOST_LACKING = 10_000
"""Number of missing entries at which a copy is given up, because a record may claim any number of entries."""
_RUN_ENTRIES, _RUN_BYTES = 1000, 256 * 1024
"""Limits of one run of entries that is sent at once. The target syncs about so many bytes at a time, while other
writers on the same disk wait.
"""
_WALKERS = 32
_READS_AHEAD = 3


@dataclass(slots=True)
class Copied:
    """Result of copying for one member of a fragment."""

    entries: int = 0
    bytes: int = 0
    lost: list[Row] = field(default_factory=list)
    """Entries of which no member has a good copy: each either does not have it or returned bytes with a wrong
    digest.
    """
    unread: list[Row] = field(default_factory=list)
    """Entries that may be on a bookie that did not answer."""
    error: str = ""
    """Reason why the first of the unread entries was not read; empty if all were."""
    lacking: int = 0
    """Number of entries that could not be read; at `_MOST_LACKING` the copy looks for no more."""

    @property
    def given_up(self) -> bool:
        return self.lacking >= _MOST_LACKING

    @property
    def whole(self) -> bool:
        return not self.lost and not self.unread


class FragmentCopy:
    """Copies of one fragment of one ledger. `gone`: bookies that are not asked; `entry_bytes`: estimate of the bytes of
    an entry, 0 if unknown.
    """

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
        limits: CopyLimits,
        entry_bytes: int = 0,
    ) -> None:
        self._services, self.ledger, self._quorum, self._fragment = services, ledger, quorum, fragment
        self._digest, self._key, self._scope, self._gone, self._pace = digest, key, scope, gone, pace
        self._reads = LedgerReads(services, ledger, digest, scope)
        self._local, self._entry_bytes = LocalReads(services, ledger, digest, scope), entry_bytes
        self._limits = limits
        self._pulls = Pulls(services, ledger, digest, self._local, scope, pace, limits)

    async def to(self, target: BookieId, position: Position, last: EntryId) -> Copied:
        """Make `target` hold what `position` stores up to `last`. Raises the error with which the target refused."""
        done = Copied()
        # One iterator for all walkers: a striped fragment has millions of short ranges.
        ranges = self._quorum.held_ranges(position, self._fragment.first_entry, last)
        files = self._has_files(last)
        if files:
            found = [await self._pulled(target, position, *one, done) for one in ranges]
            left = [one for one in found if one is not None]
            if not left:
                return done
            ranges = iter(left)
        # One batch is small, and there are many of them.
        one_batch = self._quorum.mirrored and last - self._fragment.first_entry < self._piece_entries()
        async with nullcontext() if one_batch else self._limits.through:
            await self._through(target, position, ranges, files, one_batch, done)
        return done

    async def _pulled(
        self, target: BookieId, position: Position, first: EntryId, last: EntryId, done: Copied
    ) -> Row | None:
        """Have the target copy the entries itself, from the files of a bookie on its machine; return the range that is
        left, if any.
        """
        after, size = await self._pulls.copy(target, self._holders(position, first), first, last)
        done.entries, done.bytes = done.entries + after - first, done.bytes + size
        return (after, last) if after <= last else None

    async def _through(
        self,
        target: BookieId,
        position: Position,
        ranges: Iterator[Row],
        files: bool,
        one_batch: bool,
        done: Copied,
    ) -> None:
        """Copy these ranges of entries through this process."""
        sink = _Acks(self.ledger, self._digest.birth)
        if self._quorum.mirrored and not files:
            ranges = _pieces(ranges, self._piece_entries())

        async def walk() -> BuckramError | None:
            try:
                for first, end in ranges:
                    if done.given_up:
                        break
                    at = await self._from_files(target, position, first, end, sink, done) if files else first
                    await self._range(target, position, at, end, sink, done)
            except BookieError as error:
                return error
            return None

        if one_batch:
            if (error := await walk()) is not None:  # a single batch needs no concurrency
                raise error
            await sink.acknowledged(0)
            return
        width = 1 if files else _READS_AHEAD if self._quorum.mirrored else _WALKERS
        walkers = [self._scope.spawn(walk(), f"copy {self.ledger}") for _ in range(width)]
        try:
            for walker in walkers:
                if (error := await walker) is not None:
                    raise error
            await sink.acknowledged(0)
        finally:
            for walker in walkers:
                walker.cancel()

    def _has_files(self, last: EntryId) -> bool:
        """Return whether the fragment is large enough to look for the files of a bookie on this machine.

        Only with E == Qw, where each member has all entries.
        """
        least = self._services.config.local_read_bytes
        size = (last - self._fragment.first_entry + 1) * self._entry_bytes
        return self._quorum.mirrored and 0 < least < size and self._local.may()

    def _piece_entries(self) -> int:
        """Return the number of entries of one piece: a batch or two, so that the next one is read while this one is
        sent.
        """
        return max(1, min(_BATCH_ENTRIES, 2 * self._services.config.read_batch_bytes // max(64, self._entry_bytes)))

    async def _from_files(
        self, target: BookieId, position: Position, first: EntryId, last: EntryId, sink: _Acks, done: Copied
    ) -> EntryId:
        """Copy from the files of a bookie on this machine, as far as possible; return the entry where it ended."""
        holders = self._holders(position, first)
        span = Span(self._fragment.ensemble, first, last)
        async with aclosing(self._local.chunks(span, holders, self._runs)) as chunks:
            async for chunk in chunks:
                first += len(chunk)
                await self._pass_on(target, chunk, sink, done)
        return first

    async def _range(
        self, target: BookieId, position: Position, first: EntryId, last: EntryId, sink: _Acks, done: Copied
    ) -> None:
        at = first
        while at <= last and not done.given_up:
            chunk = await self._read(position, at, last, done)
            if chunk:
                await self._pass_on(target, chunk, sink, done)
            at += max(1, len(chunk))

    async def _pass_on(self, target: BookieId, chunk: Sequence[_Run], sink: _Acks, done: Copied) -> None:
        """Send runs of entries, and wait while too much is not acknowledged. `chunk` has the run of each entry."""
        lane = self._services.pool.lane(target)
        ours = self._services.bookies.incarnation(target) is not None
        at = 0
        while at < len(chunk):
            run = chunk[at]
            at += run.entries
            last = run.first + run.entries - 1
            # Before, not after: many fragments are copied side by side, and share one limit.
            await self._pace.take(run.size)
            sink.sent(len(run.frames), run.first, last)
            acks = ack_frames(self.ledger, run.first, run.entries)
            lane.send(run.frames, acks, [(sink, Slot(0), run.first, last)], copies_on_v2=ours)
            done.entries += run.entries
            done.bytes += run.size
            await sink.acknowledged(PACED_AHEAD_BYTES if self._pace.limited else AHEAD_BYTES)

    def _runs(self, ledger: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[_Run]:
        """For each good entry from the first on the run that it is sent with: no object is made for an entry."""
        good = self._digest.count_good(ledger, first, bodies)
        runs: list[_Run] = []
        entries = max(1, min(_RUN_ENTRIES, _RUN_BYTES * good // max(1, total_bytes(bodies[:good]))))
        for start in range(0, good, entries):
            part = bodies[start : min(good, start + entries)]
            run = _Run(first + start, len(part), total_bytes(part), frame_copies(self._key, part))
            runs += [run] * run.entries
        return runs

    def _holders(self, position: Position, entry: EntryId) -> list[BookieId]:
        """Return the bookies to ask for an entry, in this order."""
        ensemble = self._fragment.ensemble
        holders = [p for p in self._quorum.write_set(entry) if p != position and ensemble[p] not in self._gone]
        order = list(self._services.bookies.read_order([ensemble[p] for p in holders]))
        if ensemble[position] not in self._gone:
            order.append(ensemble[position])  # it lives and is replaced: asked last, and perhaps the only holder
        return order

    async def _read(self, position: Position, at: EntryId, last: EntryId, done: Copied) -> Sequence[_Run]:
        """Return the run of each good entry from `at` on; none if entry `at` cannot be had, which is noted then."""
        ensemble, errors = self._fragment.ensemble, list[BuckramError]()
        opener = partial(self._runs, self.ledger, at)
        for bookie in self._holders(position, at):
            end = self._shared_end(ensemble.index(bookie), at, last)
            count = min(_BATCH_ENTRIES, end - at + 1)
            answer = await self._reads.batch(bookie, at, count, opener, _ignore, from_files=True)
            if isinstance(answer, Positive):
                return answer.value
            if isinstance(answer, Unknown) and not answer.damaged:
                errors.append(answer.error)
                if isinstance(answer.error, HandleClosed):
                    raise answer.error
            else:
                assert isinstance(answer, Negative | Unknown)
        away = [ensemble[p] for p in self._quorum.write_set(at) if ensemble[p] in self._gone]
        done.lacking += 1
        if done.given_up:
            done.error = f"{done.lacking} entries are missing, and the entries after them were not checked"
            add_to_rows(done.unread, at)
        elif errors or away:
            done.error = done.error or (str(errors[0]) if errors else f"bookie {away[0]} is gone")
            add_to_rows(done.unread, at)
        else:
            add_to_rows(done.lost, at)
        return ()

    def _shared_end(self, position: Position, at: EntryId, last: EntryId) -> EntryId:
        """Return the last entry from `at` on that this position stores without a gap."""
        return next((high for low, high in self._quorum.held_ranges(position, at, last) if low <= at), at)


class _Run(NamedTuple):
    """Consecutive entries that are sent together. `size`: their stored bytes, `frames`: the bytes to send."""

    first: EntryId
    entries: int
    size: int
    frames: bytes


def _pieces(ranges: Iterator[Row], most: int) -> Iterator[Row]:
    """Split the entries into ranges of at most so many."""
    for low, high in ranges:
        for start in range(low, high + 1, most):
            yield start, min(high, start + most - 1)


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
        """Account for the answer to a run; bookies that answer entry by entry answer a run in pieces."""
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
        """Wait until at most so many bytes (0: nothing at all) are unacknowledged.

        Raises the error with which the target refused.
        """
        while self._error is None and (self._bytes > at_most or (not at_most and self._pending)):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
