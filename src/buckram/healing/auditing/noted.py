"""A queue of the notes of members that may lack entries: which are looked at now, as there may be very many.

The folder is listed again when it changed, and now and then; its notes are read one by one only when they are due. A
note whose bookie is registered is due when it is new, when the bookie is back, and after growing pauses if it could not
be settled. For bookies that are away, each look reads a limited number of ledgers' records, in turn, to see whether the
ledgers are gone or others have their places. Not here: looking (`healing/auditing/absence_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from buckram.metadata.records.incomplete_copies import noted_members
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId

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


__all__ = ["AWAY_AT_ONCE", "Note", "NoteQueue"]
