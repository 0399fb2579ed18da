"""The queue of a bookie's audit events until the writer of the trail takes them: bounded lists in memory.

Noting never waits. An event gets its place in the chain (`core/tenants/audit_trail.py`) when it is noted, so nothing
that has a place is dropped: when there are too many deeds the next ones are only counted, and how many that were is an
event itself. Refusals have their own room, and are counted per principal beyond the first few
(`core/tenants/audit_trail.py`); they never take that of deeds.
Not here: who writes events down (`cli/security/audit_writer.py`), the events (`core/tenants/audit_trail.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from buckram.bookie.service.connections.session import Session
from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.tenants.audit_trail import DONE, LOST, REFUSALS, REFUSED, AuditEvent, Links, Refusals, bounded
from buckram.seams import Clock, Stats

MOST_EVENTS = 10_000
MOST_REFUSALS = 2_000
_MOST_NOTES = 1_000
_DEED, _REFUSAL, _NOTE = "deed", "refusal", "note"


class _Waiting(NamedTuple):
    event: AuditEvent
    kind: str
    key: str
    """Key of the note of another process that the event was read from; "" for what this bookie noted itself."""


class AuditLog:
    """`note` is for the bookie; the rest is for the writer."""

    def __init__(self, clock: Clock, stats: Stats, most: int = MOST_EVENTS, most_refusals: int = MOST_REFUSALS) -> None:
        self._clock, self._most, self._most_refusals = clock, most, most_refusals
        self.stats = stats
        self.bookie = ""
        """Its id, once it is known."""
        self._links = Links(secrets.token_hex(8))
        self._waiting: deque[_Waiting] = deque()
        self._count: Counter[str] = Counter()
        self._lost = 0
        self._refusals = Refusals()
        self._written_notes: set[str] = set()
        self._taken: set[str] = set()
        """Notes that have a place in the chain already."""
        self._copy: Callable[[AuditEvent], None] | None = None
        self._some = asyncio.Event()
        self._noted = stats.counter("buckram_bookie_audit_events_total", "events noted for the audit trail")
        self._refused = stats.counter(
            "buckram_bookie_audit_refusals_total",
            "logins and requests that were refused, also those that are only counted",
        )
        self._dropped = stats.counter(
            "buckram_bookie_lost_audit_events_total", "events that were dropped because the trail could not be written"
        )

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def chain(self) -> str:
        return self._links.chain

    def copy_to(self, copy: Callable[[AuditEvent], None]) -> None:
        """Pass each event to a callback, first those that wait already; also events that the trail has no room for."""
        self._copy = copy
        for waiting in self._waiting:
            copy(waiting.event)

    def note(
        self, session: Session, action: str, what: str, namespace: str = "", result: str = DONE, detail: str = ""
    ) -> None:
        """Note what who is on a connection did, or was refused."""
        event = self.event(str(session.principal), action, what, namespace, result, session.peer, detail)
        if result == REFUSED:
            self.refuse(event)
        else:
            self.add(event)

    def refuse_page(self, principal: Principal, path: str, why: str) -> None:
        """Note that a page over HTTP was refused."""
        action = "login" if principal == ANONYMOUS else "read"
        self.refuse(self.event(str(principal), action, f"page {path}", result=REFUSED, detail=why))

    def event(
        self,
        principal: str,
        action: str,
        what: str,
        namespace: str = "",
        result: str = DONE,
        peer: str = "",
        detail: str = "",
    ) -> AuditEvent:
        """Make an event of this moment."""
        now = self._clock.wall_us()
        return AuditEvent(now, principal, action, what, namespace, result, peer, self.bookie, detail)

    def add(self, event: AuditEvent) -> None:
        """Note a deed."""
        self._say_lost()
        if self._count[_DEED] >= self._most:
            self._lost += 1
            self._dropped.inc()
            if self._copy is not None:
                self._copy(event.bounded())
            return
        self._append(event, _DEED)

    def refuse(self, event: AuditEvent) -> None:
        """Note a refusal, or count it."""
        self._refused.inc()
        self.settle()
        room = self._count[_REFUSAL] < self._most_refusals
        if self._refusals.noted(event.time_us, bounded(event.principal), event.action, room=room):
            self._append(event, _REFUSAL)

    def settle(self) -> None:
        """Make events of what was counted, where the time for it has come and there is room."""
        self._say_lost()
        now = self._clock.wall_us()
        if self._refusals.over(now) and self._count[_REFUSAL] <= self._most_refusals:
            self._say_counted(now)

    def close(self) -> None:
        """Make events of what was counted until now."""
        self._say_lost()
        self._say_counted(self._clock.wall_us())

    def _say_counted(self, now: int) -> None:
        for principal, kinds, within_us in self._refusals.take(now):
            detail = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
            what = f"{sum(kinds.values())} more refusals"
            event = self.event(principal, REFUSALS, what, "", REFUSED, "", f"{detail}, within {within_us // 10**6} s")
            self._append(event, _REFUSAL)

    def _say_lost(self) -> None:
        if self._lost and self._count[_DEED] < self._most:
            lost, self._lost = self._lost, 0
            self._append(self.event("", LOST, f"{lost} events"), _DEED)

    def take(self, notes: Mapping[str, AuditEvent | None]) -> None:
        """Note what other processes left, by the keys of their notes, each once."""
        for key, event in notes.items():
            if key in self._taken or len(self._taken) >= _MOST_NOTES:
                continue
            self._taken.add(key)
            unreadable = self.event("", LOST, "1 note of another process that cannot be parsed", detail=key)
            self._append(event or unreadable, _NOTE, key)

    def _append(self, event: AuditEvent, kind: str, key: str = "") -> None:
        self._noted.inc()
        event = self._links.add(event)
        self._waiting.append(_Waiting(event, kind, key))
        self._count[kind] += 1
        if self._copy is not None:
            self._copy(event)
        self._some.set()

    async def wait(self) -> None:
        """Wait until there is an event."""
        await self._some.wait()

    def batch(self, most: int) -> Sequence[AuditEvent]:
        """Return the oldest events, at most `most`. They stay in the queue until `written`."""
        return [waiting.event for waiting in islice(self._waiting, most)]

    def written(self, events: Sequence[AuditEvent]) -> None:
        """Remove events from the queue once the trail holds them; the keys of their notes go into `written_notes`."""
        for event in events:
            if self._waiting and self._waiting[0].event is event:
                _, kind, key = self._waiting.popleft()
                self._count[kind] -= 1
                if key:
                    self._written_notes.add(key)
        self._say_lost()
        if not self._waiting:
            self._some.clear()

    @property
    def written_notes(self) -> Collection[str]:
        """Return the keys of notes that are in the trail and may be removed."""
        return list(self._written_notes)

    def dropped_note(self, key: str) -> None:
        """Forget a note that has been removed from the metadata store."""
        self._written_notes.discard(key)
        self._taken.discard(key)
