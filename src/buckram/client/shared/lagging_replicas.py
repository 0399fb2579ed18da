"""Members of this client's ledgers that were away or late and lack entries: they get them when they are back.

An add is acknowledged by Qa bookies; the others get it over their connections a little later, as long as those live
(`Copies`). So the end of a client waits, for a bounded time, for the copies of the ledgers that it has sealed: cut off
at once, the slowest bookie would lack entries for good, and only an audit would find that out.

The writer of an open ledger copies what a member lacks itself (`LaggingMembers`), from the moment the member is written
to again. The client remembers a ledger that was closed before (`LaggingLedgers`) for as long as the client lives; a
note in the metadata store (`BehindNotes`) lives longer, and the client takes it back once it has copied the entries.
The ledger's record does not change: a bookie that is gone for good is replaced by repair.

Not here: the keys of notes (`metadata/records/incomplete_copies.py`), copying (`client/maintain/fill.py`), who else
looks at the notes (`healing/auditing/absence_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from buckram.client.cluster.bookie_changes import BookieChange, log
from buckram.client.cluster.bookies import BookieWatcher
from buckram.core.backoff import LAGGING_MEMBER, Delays
from buckram.errors import BuckramError, HandleClosed, InvariantViolation, MetadataError, NoSuchLedger
from buckram.metadata.records.incomplete_copies import WITHIN_S, IncompleteCopy, forget_behind, note_behind
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore, Stats
from buckram.types import BookieId, LedgerId

CopyMissing = Callable[[Collection[BookieId]], Awaitable[bool]]
"""Copies the entries that these bookies lack; returns whether all of them have everything then."""

CopyToMember = Callable[[BookieId], Awaitable[bool]]
"""Copies to one member what is confirmed when it is called; returns whether it has all of that then."""

NoteMembers = Callable[[Collection[BookieId]], Awaitable[bool]]
"""Notes that these members may lack entries; returns whether that is written. Raises no error."""

_MOST = 10_000

ENDING_S = 0.5
"""Longest wait for copies to end after they were cancelled, seconds."""


class LaggingLedgers:
    """Closed ledgers with members that were away; `close()` forgets them, and then `cluster check` still names them."""

    def __init__(self, bookies: BookieWatcher) -> None:
        self._bookies = bookies
        self._ledgers: dict[LedgerId, tuple[tuple[BookieId, ...], CopyMissing]] = {}
        self._scope = TaskScope("lagging")
        self._busy = False
        bookies.on_change(self._changed)

    def __len__(self) -> int:
        return len(self._ledgers)

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._ledgers

    def add(self, ledger_id: LedgerId, members: Collection[BookieId], copy_missing: CopyMissing) -> None:
        """Add a ledger; the oldest is forgotten if there are too many."""
        if not members or self._scope.closed:
            return
        if len(self._ledgers) >= _MOST:
            del self._ledgers[next(iter(self._ledgers))]
        self._ledgers[ledger_id] = (tuple(members), copy_missing)
        self._look()

    async def close(self) -> None:
        self._ledgers.clear()
        await self._scope.close()

    def _changed(self, change: BookieChange) -> None:
        if change.appeared:
            self._look()

    def _look(self) -> None:
        if not self._busy and not self._scope.closed and self._due():
            self._busy = True
            self._scope.spawn(self._copy_all(), "copy")

    def _due(self) -> list[LedgerId]:
        there = self._bookies.bookies.writable
        return [ledger for ledger, (members, _) in self._ledgers.items() if any(b in there for b in members)]

    async def _copy_all(self) -> None:
        delays = Delays(LAGGING_MEMBER)
        try:
            while due := self._due():
                for ledger_id in due:
                    await self._one(ledger_id)
                if self._due():
                    await asyncio.sleep(delays.take())
        finally:
            self._busy = False

    async def _one(self, ledger_id: LedgerId) -> None:
        members, copy_missing = self._ledgers[ledger_id]
        there = [b for b in members if b in self._bookies.bookies.writable]
        try:
            done = await copy_missing(there)
        except (NoSuchLedger, HandleClosed):
            self._ledgers.pop(ledger_id, None)
            return
        except InvariantViolation:
            raise
        except BuckramError:
            return  # tried again
        if done:
            left = tuple(b for b in members if b not in there)
            if left:
                self._ledgers[ledger_id] = (left, copy_missing)
            else:
                self._ledgers.pop(ledger_id, None)


class LaggingMembers:
    """The lagging members of one writer: those that failed it, or were away from the start, until they have what was
    confirmed meanwhile.

    A replaced bookie is still a member of the fragment before. A bookie that stays in `left` for `note_after_s` is
    noted in metadata, so that it gets its entries even if the writer does not live so long.
    """

    def __init__(
        self,
        away: Collection[BookieId],
        copy: CopyToMember,
        scope: TaskScope,
        *,
        note: NoteMembers,
        note_after_s: float,
    ) -> None:
        self.left = dict.fromkeys(away, 0)
        """Lagging bookies, each with the number of the failure since which it lags; 0 if it was away from the start."""
        self._copy, self._scope, self._note, self._note_after_s = copy, scope, note, note_after_s
        self._failures = 0
        self._under_way: dict[BookieId, None] = {}
        for bookie in self.left:
            self._note_later(bookie, 0)

    def failed(self, bookie: BookieId) -> None:
        """Record a member as lagging: it did not confirm all that it was sent, or is sent no more."""
        self._failures += 1
        self.left[bookie] = self._failures
        self._note_later(bookie, self._failures)

    def returned(self, bookie: BookieId) -> None:
        """Begin to copy to a member that is written to again, or was replaced: all that it lacks now was confirmed
        before."""
        if bookie in self.left and bookie not in self._under_way and not self._scope.closed:
            self._under_way[bookie] = None
            self._scope.spawn(self._work(bookie), "fill in")

    async def settle(self, within_s: float, there: Collection[BookieId]) -> list[BookieId]:
        """Copy to the members that are `there`, for `within_s`, after the last entry was written. Return those that may
        lack entries after that."""
        copies = [self._scope.spawn(self._last(bookie), "fill in") for bookie in self.left if bookie in there]
        if copies:
            _, late = await asyncio.wait(copies, timeout=within_s)
            for copy in late:
                copy.cancel()
            if late:  # one that does not end is left to the scope: its member counts as lacking either way
                await asyncio.wait(late, timeout=ENDING_S)
        return list(self.left)

    async def _work(self, bookie: BookieId) -> None:
        delays = Delays(LAGGING_MEMBER)
        try:
            while bookie in self.left:
                if not await self._once(bookie) and bookie in self.left:
                    await asyncio.sleep(delays.take())
        except HandleClosed:
            return
        finally:
            self._under_way.pop(bookie, None)

    async def _last(self, bookie: BookieId) -> None:
        with suppress(HandleClosed):
            await self._once(bookie)

    async def _once(self, bookie: BookieId) -> bool:
        """Copy once, and return whether the member has everything now. It stays in `left` if it failed again
        meanwhile."""
        failure = self.left.get(bookie)
        try:
            if not await self._copy(bookie):
                return False
        except (HandleClosed, InvariantViolation):
            raise
        except BuckramError:
            return False  # it went away again, or those that have the entries
        if self.left.get(bookie) == failure:
            self.left.pop(bookie, None)
        return True

    def _note_later(self, bookie: BookieId, failure: int) -> None:
        if not self._scope.closed:
            self._scope.spawn(self._note_left(bookie, failure), "note")

    async def _note_left(self, bookie: BookieId, failure: int) -> None:
        await asyncio.sleep(self._note_after_s)
        if self.left.get(bookie) == failure:
            await self._note([bookie])


# -- adds that some bookie has not answered yet ---------------------------------------------------------------


class Copies:
    """The unanswered copies of one ledger's sender. It is in `pending` while copies of a complete ledger are on their
    way."""

    __slots__ = ("_pending", "expected", "unanswered")

    def __init__(self, pending: dict[Copies, None]) -> None:
        self._pending = pending
        self.expected: asyncio.Event | None = None
        """Set once everything is answered; None while nothing depends on that, and answers are only counted."""
        self.unanswered = 0
        """Entries, counted once for each bookie that they were sent to."""

    def answered(self, count: int) -> None:
        """Take note of copies that were stored or failed for good."""
        self.unanswered -= count
        if not self.unanswered and self.expected is not None:
            self._pending.pop(self, None)
            self.expected.set()

    def complete(self) -> None:
        """Expect the outstanding copies from now on: the ledger is sealed, and its sender is no longer looked after."""
        if self.unanswered:
            self._event()
            self._pending[self] = None

    async def wait(self, timeout_s: float) -> None:
        """Wait until every bookie has answered all that it was sent, but not longer than this."""
        if self.unanswered:
            answered = self._event()
            try:
                async with asyncio.timeout(timeout_s):
                    await answered.wait()
            except TimeoutError:
                self._pending.pop(self, None)

    def _event(self) -> asyncio.Event:
        """Set once everything is answered."""
        if self.expected is None or self.expected.is_set():
            self.expected = asyncio.Event()
        return self.expected


# -- notes in the metadata store ------------------------------------------------------------------------------


class BehindNotes:
    """The notes about one ledger."""

    def __init__(self, store: MetadataStore, ledger_id: LedgerId, stats: Stats) -> None:
        self._store, self._ledger_id, self._stats = store, ledger_id, stats
        self._noted: dict[BookieId, IncompleteCopy] = {}

    def noted(self, bookies: Collection[BookieId]) -> dict[BookieId, IncompleteCopy]:
        """Return the present notes about these bookies."""
        return {bookie: self._noted[bookie] for bookie in bookies if bookie in self._noted}

    async def note(self, bookies: Collection[BookieId], within_s: float = WITHIN_S) -> bool:
        """Note that these members may lack entries, and warn. Return whether the notes are known to be written within
        `within_s`."""
        names = ", ".join(bookies)
        try:
            for one in await note_behind(self._store, self._ledger_id, bookies, within_s):
                self._noted[one.bookie] = one
        except MetadataError as error:
            text = (
                "ledger %d: %s may lack entries, and no note of that could be written, so check it with "
                "`buckram ledger check`: %s"
            )
            log.warning(text, self._ledger_id, names, error)
            return False
        count = self._stats.counter(
            "buckram_client_ledgers_behind_total", "notes that members of a ledger may lack entries of it"
        )
        count.inc(len(bookies))
        log.warning("ledger %d is noted as lacking copies: %s did not confirm all entries", self._ledger_id, names)
        return True

    async def clear(self, noted: Mapping[BookieId, IncompleteCopy]) -> None:
        """Take back notes, because everything was copied since; later notes stay. If only administrators may remove
        them from the store, autorecovery does so after a look."""
        for bookie, one in noted.items():
            if self._noted.get(bookie) == one:
                del self._noted[bookie]
            with suppress(MetadataError):
                await forget_behind(self._store, one)
