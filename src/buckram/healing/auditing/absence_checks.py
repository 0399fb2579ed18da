"""First checks of an elected auditor: ledgers that clients noted, and those of bookies that were away.

A note is removed when the member lists everything, or when the ledger is marked: then a replicator copies, and removes
the mark once that is verified. A bookie that is back counts as verified when its copies of all ledgers were looked at
that may have been open while it was away.

There may be very many notes, so a queue decides which are looked at now. The folder is listed again when it changed,
and now and then; its notes are read one by one only when they are due. A note whose bookie is registered is due when it
is new, when the bookie is back, and after growing pauses if it could not be settled. For bookies that are away, each
look reads a limited number of ledgers' records, in turn, to see whether the ledgers are gone or others have their
places.

Not here: which ledgers may have been open (`core/healing/absences.py`), the keys of notes
(`metadata/records/incomplete_copies.py`), the check of all ledgers (`healing/auditing/periodic_checks.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress

from buckram.client.ledger_client import LedgerClient
from buckram.config import HealingConfig
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.healing.absences import Attendance, Unsettled, sessions_of
from buckram.core.healing.needs import members_of
from buckram.errors import (
    ClusterNotInitialised,
    KeyExists,
    MalformedRecord,
    MetadataError,
    NoSuchKey,
    NoSuchLedger,
    StoreReplaced,
    VersionConflict,
)
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_walk import Checked
from buckram.healing.auditing.periodic_checks import CopiesCheck
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.incomplete_copies import IncompleteCopy, forget_behind, noted_members, read_behind
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.pace import Pace
from buckram.seams import MetadataStore
from buckram.types import MAX_LEDGER_ID, BookieId, BookieSet, LedgerId, LedgerMetadata, LedgerState, Versioned

log = logging.getLogger("buckram.healing")

LOOK_S = 5.0
"""Interval between two looks at copies that could not be verified, seconds, whatever watches say."""

WALK_S = 120.0
"""Interval between two walks over all ledgers, seconds. It is longer than a session lives without its process, so that
a hang that is noticed now began after the walk before the last one.
"""

_PAGE, _AT_ONCE = 1000, 64

_BETWEEN = 100
"""Number of ledgers after which registrations and new notes are looked at in between."""


class FirstChecks:
    """First checks of one candidate. `run` never ends by itself; cancel it."""

    def __init__(self, client: LedgerClient, auditor: Auditor, config: HealingConfig) -> None:
        self._auditor, self._config = auditor, config
        self._store = store = client.services.store
        self._clock = client.services.runtime.clock
        self._tree, self._board = Underreplication(store.keys, store.root, auditor.name), HealingStatusStore(store)
        requests, reads = Pace(config.check_requests_per_s), Pace(config.copy_bytes_per_s)
        self._check = CopiesCheck(client, self._tree, requests, reads)
        self._changed = asyncio.Event()
        self._notes = NoteQueue(store, self._changed.set, least_s=LOOK_S, most_s=WALK_S)
        self._attendance: Attendance | None = None
        """Attendance of bookies; None if not read since this auditor was elected."""
        self._version = -1
        self._walked_at = float("-inf")
        stats = client.services.runtime.stats
        self._unverified = stats.gauge(
            "buckram_healing_unverified_bookies", "bookies that were away and whose copies have not been checked since"
        )

    async def run(self) -> None:
        """Look again and again while elected. Ends with a bug or a replaced store only."""
        delays = Delays(STORE_WATCH)
        while True:
            self._changed.clear()
            wait_s = LOOK_S
            try:
                await self.look()
                delays.reset()
            except (StoreReplaced, ClusterNotInitialised):
                raise
            except MetadataError as error:
                log.warning("auditor %s: the bookies that were away are not known: %s", self._auditor.name, error)
                self._attendance = None
                wait_s = delays.take()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def look(self) -> None:
        """Wait until elected, then run every part of the checks once."""
        if not self._auditor.elected:
            self._attendance = None
            await self._auditor.until_elected()
        there = await self._see()
        if asyncio.get_running_loop().time() - self._walked_at >= WALK_S:
            await self._walk()
        if not await self._tree.enabled(self._changed.set):
            return
        await self._look_at_notes()
        assert self._attendance is not None
        for bookie, unsettled in self._attendance.to_look_at(there).items():
            await self._look_at_returned(bookie, unsettled, there[bookie])

    # -- who is there -------------------------------------------------------------------------------------

    async def _see(self) -> dict[BookieId, str]:
        """Write down who is registered now, before anything is done about it."""
        attendance, anew = self._attendance, False
        if attendance is None:
            attendance, self._version = await self._read()
            self._attendance, anew = attendance, True
        there = sessions_of(await self._store.bookies(self._changed.set))
        before = attendance.unverified
        changed = attendance.seen(there, anew=anew)
        if attendance.away:
            attendance.forget(dict.fromkeys([*there, *await self._store.known_bookies()]))
        if changed:
            await self._write()
        for bookie in attendance.unverified:
            if bookie not in before:
                log.info("auditor %s: bookie %s was away: its copies are checked now", self._auditor.name, bookie)
        self._unverified.set(len(attendance.unverified))
        return there

    async def _read(self) -> tuple[Attendance, int]:
        try:
            return await self._board.attendance()
        except MalformedRecord as error:
            log.warning("auditor %s: %s", self._auditor.name, error)
            raise

    async def _write(self) -> None:
        assert self._attendance is not None
        try:
            self._version = await self._board.say_attendance(self._attendance, self._version)
        except (VersionConflict, KeyExists, NoSuchKey):
            self._attendance = None  # another auditor wrote it: read its record before anything else
            raise MetadataError("another auditor has just recorded which bookies were away") from None

    async def _walk(self) -> None:
        """Find out which ledgers are open; all that was closed before needs no look when a bookie comes back later."""
        assert self._attendance is not None
        walks = self._attendance.walks
        last = Unsettled() if walks is None else walks[1]
        found_open: list[LedgerId] = []
        for first in range(0, len(last.open), _AT_ONCE):
            part = last.open[first : first + _AT_ONCE]
            states = await asyncio.gather(*(self._is_open(ledger) for ledger in part))
            found_open += [ledger for ledger, is_open in zip(part, states, strict=True) if is_open]
        since = last.since
        async for ledger, metadata in self._from(last.since):
            since = ledger + 1
            if metadata is None or not metadata.closed:
                found_open.append(ledger)
        await self._see()  # a bookie that left meanwhile is judged by the walks before this one
        if self._attendance is not None:
            self._attendance.walked(Unsettled.of(since, found_open))
            await self._write()
            self._walked_at = asyncio.get_running_loop().time()

    async def _is_open(self, ledger: LedgerId) -> bool:
        try:
            return not (await self._store.read_ledger(ledger)).metadata.closed
        except NoSuchLedger:
            return False
        except MalformedRecord:
            return True

    async def _from(self, since: LedgerId) -> AsyncIterator[tuple[LedgerId, LedgerMetadata | None]]:
        """Yield all ledgers from this one on, with None for a record that cannot be read."""
        after = since - 1
        while page := await self._store.read_ledgers(after=after, limit=_PAGE):
            for ledger, found in page:
                yield ledger, found.metadata if isinstance(found, Versioned) else None
            after = page[-1][0]

    # -- looking ------------------------------------------------------------------------------------------

    async def _look_at_notes(self) -> None:
        """Look at each note that is due: it is removed when nothing lacks, or when the ledger is marked."""
        await self._notes.refresh()
        if not len(self._notes):
            return
        there, marked = await self._store.bookies(), False
        sessions = sessions_of(there)
        for number, one in enumerate(self._notes.due(sessions)):
            if number % _BETWEEN == _BETWEEN - 1:  # many of them take a while
                await self._see()
                there = await self._store.bookies()
            note, found = await read_behind(self._store, *one), Checked()
            if note is None or (await self._is_settled(note, there, found) and await forget_behind(self._store, note)):
                self._notes.settled(one)
            elif one[1] in sessions:
                self._notes.unsettled(one, sessions[one[1]])
            marked |= bool(found.marked)
        if marked:
            await self._board.marked()

    async def _is_settled(self, note: IncompleteCopy, there: BookieSet, found: Checked) -> bool:
        try:
            metadata = (await self._store.read_ledger(note.ledger)).metadata
        except NoSuchLedger:
            return True
        except MalformedRecord:
            return False
        if metadata.state is LedgerState.IN_RECOVERY:
            return False  # known only once it is closed, and its record may name other members then
        if note.bookie not in members_of(metadata):
            return True  # another bookie has its place, with all its copies
        if there.find(note.bookie) is None or not await self._check.look_at(note.ledger, note.bookie, found):
            return False
        # The look at an open ledger ends where it was confirmed: one that was closed meanwhile goes further.
        return metadata.closed or not (await self._store.read_ledger(note.ledger)).metadata.closed

    async def _look_at_returned(self, bookie: BookieId, unsettled: Unsettled, session: str) -> None:
        """Look at all copies that a returned bookie may lack.

        What could not be told is looked at again in the next round.
        """
        assert self._attendance is not None
        found, unknown, looked = Checked(), list[LedgerId](), 0
        candidates = [ledger async for ledger in self._candidates(bookie, unsettled)]
        for number, ledger in enumerate(candidates):
            if not await self._check.look_at(ledger, bookie, found):
                unknown.append(ledger)
            looked += 1
            if looked % _BETWEEN == 0:
                await self._look_at_notes()
                if (await self._see()).get(bookie) != session or self._attendance is None:
                    return  # it went again: all of it is looked at when it is back
                rest = [*unknown, *candidates[number + 1 :]]
                self._attendance.left[bookie] = len(rest)
                if unsettled.since > MAX_LEDGER_ID or looked % (10 * _BETWEEN) == 0:
                    await self._write()
        if found.marked:
            await self._board.marked()
        if (await self._see()).get(bookie) != session or self._attendance is None:
            return
        rest_of = Unsettled(MAX_LEDGER_ID + 1, tuple(unknown)) if unknown else None
        self._attendance.left[bookie] = len(unknown)
        if self._attendance.looked_at(bookie, session, rest_of):
            await self._write()
            self._unverified.set(len(self._attendance.unverified))
            text = "auditor %s: bookie %s is back: %d ledgers checked, %d lack copies, %d could not be checked"
            log.info(text, self._auditor.name, bookie, looked, found.marked, len(unknown))

    async def _candidates(self, bookie: BookieId, unsettled: Unsettled) -> AsyncIterator[LedgerId]:
        """Yield the ledgers to look at, open ones first because they are still written."""
        for ledger in unsettled.open:
            yield ledger
        if unsettled.since > MAX_LEDGER_ID:
            return
        async for ledger, metadata in self._from(unsettled.since):
            if metadata is None or bookie in members_of(metadata):
                yield ledger


# -- the queue of notes ---------------------------------------------------------------------------------------

Note = tuple[LedgerId, BookieId]

AWAY_AT_ONCE = 500
"""Maximum number of records of ledgers with members that are away that one look reads."""

_SHARE = 20
"""Listing takes at most one part in so many of the time."""


class NoteQueue:
    """The notes, as of the newest listing. `wake` is called when there may be more."""

    def __init__(self, store: MetadataStore, wake: Callable[[], None], *, least_s: float, most_s: float) -> None:
        self._store, self._wake, self._least_s, self._most_s = store, wake, least_s, most_s
        self._loop = asyncio.get_running_loop()
        self._listed: dict[Note, None] = {}
        self._listed_at, self._took_s = float("-inf"), 0.0
        self._changed = True
        self._again: dict[Note, tuple[str, float, float]] = {}
        """Retry state of each unsettled note: the session of the bookie then, when to look again, and the pause in
        seconds.
        """
        self._turn: Note = (-1, "")
        """Last note of a bookie that is away whose ledger was looked at; the next look goes on after it."""

    def __len__(self) -> int:
        return len(self._listed)

    async def refresh(self) -> None:
        """List the folder again if that is due. Raises MetadataError."""
        began = self._loop.time()
        age_s = began - self._listed_at
        if age_s < self._most_s and not (self._changed and age_s >= max(self._least_s, _SHARE * self._took_s)):
            return
        self._changed = False
        self._listed = dict.fromkeys(await noted_members(self._store, self._note_change))
        self._listed_at = self._loop.time()
        self._took_s = self._listed_at - began
        self._again = {note: state for note, state in self._again.items() if note in self._listed}

    def due(self, there: Mapping[BookieId, str]) -> list[Note]:
        """Return the notes to look at now. `there`: the session of each registered bookie."""
        now = self._loop.time()
        found = [note for note in self._listed if note[1] in there and self._is_due(note, there[note[1]], now)]
        away = [note for note in self._listed if note[1] not in there]
        first = next((at for at, note in enumerate(away) if note > self._turn), 0)
        turns = [*away[first:], *away[:first]][:AWAY_AT_ONCE]
        if turns:
            self._turn = turns[-1]
        return [*found, *turns]

    def _is_due(self, note: Note, session: str, now: float) -> bool:
        state = self._again.get(note)
        return state is None or state[0] != session or state[1] <= now

    def settled(self, note: Note) -> None:
        """Drop a note that was taken back."""
        self._again.pop(note, None)
        self._listed.pop(note, None)

    def unsettled(self, note: Note, session: str) -> None:
        """Try a note again later: its bookie is registered, but whether it lacks entries could not be told, or there is
        a later note.
        """
        state = self._again.get(note)
        pause_s = min(2 * state[2], self._most_s) if state is not None and state[0] == session else self._least_s
        self._again[note] = session, self._loop.time() + pause_s, pause_s

    def _note_change(self) -> None:
        self._changed = True
        self._wake()
