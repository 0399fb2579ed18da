"""The copies of one ledger as a repair reads them: which a bookie lacks, and a good copy of each of those.

Where every bookie of an ensemble holds all entries, entries are read many at once, and one by one only around those
that are missing or damaged. Not here: what is done about them (`repair.py`); reading for users (`client/read`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from buckram.client.maintain.entry_lists import entry_list
from buckram.client.read.replicas import LedgerReads, OnDigestMismatch, run_race
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.answers import Answer, Negative, Positive, Unknown
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.reading import Race
from buckram.core.wire.availability import EntryList
from buckram.errors import BookieError, BookieIOError, HandleClosed, UnknownLedgerState
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, Entry, EntryId, Fragment, LedgerId

T = TypeVar("T")
AT_ONCE = 16
"""Entries that are read, or added, side by side."""


class CopyReads:
    """Reads the copies of a ledger at single bookies. `pace` limits the bytes that are read to be checked."""

    def __init__(
        self,
        services: Services,
        ledger_id: LedgerId,
        digest: Digest,
        quorum: Quorum,
        scope: TaskScope,
        pace: Pace,
        on_digest_mismatch: OnDigestMismatch,
    ) -> None:
        self._services, self._ledger_id, self._digest, self._quorum = services, ledger_id, digest, quorum
        self._scope, self._pace = scope, pace
        self._reads = LedgerReads(services, ledger_id, digest, scope, on_digest_mismatch=on_digest_mismatch)

    async def bad(self, target: BookieId, ids: Sequence[EntryId]) -> list[EntryId]:
        """Return those of `ids` that the bookie does not hold in good order, ascending.

        Raises the error of a bookie that does not answer: that is no evidence of anything. What the bookie does not
        list is not read: at worst it is copied once more. What it lists is read all the same.
        """
        rest = [entry for run in _runs(ids) for entry in run[await self._good(target, run) :]]
        bad: list[EntryId] = []
        if len(rest) > 1 and (listed := await self._may_list(target)) is not None:
            bad = [entry for entry in rest if entry not in listed]
            unlisted = set(bad)
            rest = [entry for entry in rest if entry not in unlisted]
        for run in _runs(rest):
            while run:
                bad += await self._bad_singly(target, run[:AT_ONCE])
                run = run[AT_ONCE:]
                run = run[await self._good(target, run) :]
        return sorted(bad)

    async def list_of(self, bookie: BookieId) -> EntryList | None:
        """Return the bookie's list of entries; None if it has none or is in limbo: then the entries are read."""
        try:
            return await entry_list(self._services, bookie, self._ledger_id, self._digest.birth)
        except UnknownLedgerState:
            return None

    async def _may_list(self, bookie: BookieId) -> EntryList | None:
        try:
            return await self.list_of(bookie)
        except BookieError:
            return None  # the reads say what is wrong

    async def _good(self, target: BookieId, run: Sequence[EntryId]) -> int:
        """Return how many entries of a run the files of the bookie have in good order before the first that they do
        not. Only copies of a ledger whose bookies hold all entries are read many at once."""
        good, more = 0, self._quorum.mirrored
        while more and good < len(run):
            held = _held(await self._batch(target, run[good:]))
            good += len(held or ())
            more = bool(held)
            await self._pace.take(sum(map(len, held or ())))
        return good

    async def _batch(self, target: BookieId, run: Sequence[EntryId]) -> Answer[list[bytes]]:
        opener = partial(self._digest.open_payloads, self._ledger_id, run[0])
        return await self._reads.batch(target, run[0], len(run), opener, _ignore, from_files=True)

    async def _bad_singly(self, target: BookieId, ids: Sequence[EntryId]) -> list[EntryId]:
        """Return those that are missing or damaged of entries that are read side by side."""
        held = [_held(answer) for answer in await self.all([self._reads.stored(target, entry) for entry in ids])]
        await self._pace.take(sum(len(one.payload) for one in held if one is not None))
        return [entry for entry, one in zip(ids, held, strict=True) if one is None]

    async def stored(self, target: BookieId, ids: Sequence[EntryId]) -> list[tuple[EntryId, Answer[Entry]]]:
        """Return what the bookie says about entries that it has just acknowledged, by what its files have. Those are
        left out that it has in good order, as far as many at once are read."""
        if self._quorum.mirrored:
            runs = [(run, await self._batch(target, run)) for run in _runs(ids)]
            ids = [e for run, held in runs for e in run[len(held.value) if isinstance(held, Positive) else 0 :]]
        answers = await self.all([self._reads.stored(target, entry) for entry in ids])
        return list(zip(ids, answers, strict=True))

    async def sources(self, fragment: Fragment, old: BookieId | None, ids: Sequence[EntryId]) -> list[Entry | str]:
        """Return for each entry a good copy from a member other than `old`, or why there is none."""
        found: list[Entry | str] = []
        for run in _runs(ids):
            while self._quorum.mirrored and len(run) > 1 and (several := await self._several(fragment, old, run)):
                found += several
                run = run[len(several) :]
            found += await self.all([self._source(fragment, old, entry) for entry in run])
        return found

    async def _several(self, fragment: Fragment, old: BookieId | None, run: Sequence[EntryId]) -> list[Entry]:
        """Return good copies of the first entries of a run, from one member; none if no member has a good one of the
        very first."""
        first, opener = run[0], partial(self._digest.open_prefix, self._ledger_id, run[0])

        async def question(bookie: BookieId) -> Answer[list[Entry]]:
            answer = await self._reads.batch(bookie, first, len(run), opener, _ignore)
            if not isinstance(answer, Unknown) or not answer.damaged:
                return answer
            # The accuser sees the bytes of single reads only.
            alone = await self._reads.entry(bookie, first)
            return Positive([alone.value]) if isinstance(alone, Positive) else alone

        order = self._services.bookies.read_order([member for member in fragment.ensemble if member != old])
        if not order:
            return []
        outcome = await run_race(Race(order), question, self._services, self._scope)
        return outcome.value if isinstance(outcome, Positive) else []

    async def _source(self, fragment: Fragment, old: BookieId | None, entry: EntryId) -> Entry | str:
        """Return a good copy from a member other than `old`, or why there is none."""
        members = [fragment.ensemble[p] for p in self._quorum.write_set(entry)]
        order = self._services.bookies.read_order([m for m in members if m != old])
        if not order:
            return "there is no other replica"
        race: Race[Entry] = Race(order)
        outcome = await run_race(race, lambda b: self._reads.entry(b, entry), self._services, self._scope)
        if isinstance(outcome, Positive):
            return outcome.value
        if isinstance(outcome, Negative):
            return "no other replica holds it"
        if isinstance(outcome.error, HandleClosed):
            raise outcome.error
        return str(outcome.error)

    async def all(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Wait for jobs that run side by side, and return their results in the order of the jobs."""
        tasks = [self._scope.spawn(job, "repair") for job in jobs]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


def _held(answer: Answer[T]) -> T | None:
    """Return what the bookie holds, None if it is missing or damaged. Raises the answer's error if that is unknown."""
    if isinstance(answer, Positive):
        return answer.value
    if isinstance(answer, Negative) or answer.damaged:
        return None
    if isinstance(answer.error, BookieIOError | UnknownLedgerState):
        # It answers that it cannot give the entry (bytes gone bad, limbo): another copy can only help.
        return None
    raise answer.error


def _runs(ids: Sequence[EntryId]) -> list[Sequence[EntryId]]:
    """Return the runs of consecutive entries in `ids`, which ascend."""
    starts = [i for i, entry in enumerate(ids) if i == 0 or entry != ids[i - 1] + 1]
    return [ids[start:end] for start, end in pairwise([*starts, len(ids)])]


def _ignore(entries: int, size: int) -> None:
    return None
