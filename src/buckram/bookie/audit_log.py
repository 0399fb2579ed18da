"""What a bookie notes for the audit trail, until somebody writes it down: a bounded list in memory.

Noting never waits. When the list is full the oldest events go, and how many that were is an event itself.
Not here: who writes them down (`audit/writing.py`), the events (`core/tenants/audit.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from buckram.bookie.service.session import Session
from buckram.core.tenants.audit import DONE, AuditEvent
from buckram.seams import Clock, Stats

MOST_EVENTS = 10_000


class AuditLog:
    """`note` is for the bookie; `wait`, `batch` and `written` are for the writer."""

    def __init__(self, clock: Clock, stats: Stats, most: int = MOST_EVENTS) -> None:
        self._clock, self._most = clock, most
        self.bookie = ""
        """Its id, once it is known."""
        self._events: deque[AuditEvent] = deque()
        self._lost = 0
        self._some = asyncio.Event()
        self._noted = stats.counter("buckram_bookie_audit_events_total", "events noted for the audit trail")
        self._dropped = stats.counter(
            "buckram_bookie_lost_audit_events_total", "events that were dropped because the trail could not be written"
        )

    def __len__(self) -> int:
        return len(self._events)

    def note(
        self, session: Session, action: str, what: str, namespace: str = "", result: str = DONE, detail: str = ""
    ) -> None:
        """Note what who is on a connection did."""
        self.add(self.event(str(session.principal), action, what, namespace, result, session.peer, detail))

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
        self._noted.inc()
        if len(self._events) >= self._most:
            self._events.popleft()
            self._lost += 1
            self._dropped.inc()
        self._events.append(event)
        self._some.set()

    async def wait(self) -> None:
        """Wait until there is an event."""
        await self._some.wait()

    def batch(self, most: int) -> Sequence[AuditEvent]:
        """The oldest events, ahead of them how many were lost before. They stay until they are `written`."""
        lost: list[AuditEvent] = []
        if self._lost:
            lost = [self.event("", "lost", f"{self._lost} events")]
        return [*lost, *list(self._events)[:most]]

    def written(self, events: Sequence[AuditEvent]) -> None:
        """These are in the trail."""
        for event in events:
            if event.action == "lost":
                self._lost -= min(self._lost, int(event.what.partition(" ")[0]))
            elif self._events and self._events[0] is event:
                self._events.popleft()
        if not self._events:
            self._some.clear()
