"""Audit of refused requests: counted by principal and kind, and written to the audit trail once a minute.

A refusal costs an addition in memory. The number of principals is bounded, and a million refusals of one principal
make one event. Not here: what is refused (`serve/http/tokens.py`, and the doors of each server), refusals of bookies
(`bookie/accounting/audit_queue.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from starlette.requests import HTTPConnection

from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.tenants.audit_trail import OTHERS, REFUSALS, REFUSED
from buckram.core.tenants.audit_trail import Refusals as Interval
from buckram.errors import BuckramError
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Clock, MetadataStore
from buckram.serve.http.problems import HttpProblem

TELL_S = 60.0
MOST_PRINCIPALS = 50
"""Maximum principals with counts of their own in a minute; later ones are counted together."""
_WHO = "buckram.principal"


class Refusals:
    """Counts the refusals of one server. `start` it; `close` writes what is left."""

    def __init__(self, store: MetadataStore, server: str, clock: Clock) -> None:
        """Count for a server; `server`: its URL, the peer of the events."""
        self._store, self._server, self._clock = store, server, clock
        self._interval = Interval(first=0, most=MOST_PRINCIPALS)
        self._left: dict[str, Counter[str]] = {}
        """Counts to be written, by principal; they wait here while the metadata store is away."""
        self._scope = TaskScope("refusals")

    def start(self) -> None:
        """Tell the audit trail from now on."""
        self._scope.keep(self._keep, "tell")

    async def close(self) -> None:
        """Idempotent."""
        await self._scope.close()
        with suppress(BuckramError):
            await self.tell()

    def count(self, principal: str, kind: str) -> None:
        """Count a refusal of a principal; `kind` is one of the few codes of answers."""
        self._interval.noted(self._clock.wall_us(), principal, kind, room=False)

    async def tell(self) -> None:
        """Leave a note for each principal that was refused something since. MetadataError."""
        for counted in self._interval.take(self._clock.wall_us()):
            known = counted.principal in self._left or len(self._left) < MOST_PRINCIPALS
            self._left.setdefault(counted.principal if known else OTHERS, Counter()).update(counted.kinds)
        for name, kinds in list(self._left.items()):
            detail = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
            what, server = f"{kinds.total()} refusals", self._server
            await leave_note(self._store, REFUSALS, what, "", detail, principal=name, result=REFUSED, peer=server)
            del self._left[name]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            with suppress(BuckramError):  # it is told the next time
                await self.tell()


def known_as(connection: HTTPConnection, principal: Principal) -> None:
    """Remember the sender of a request, so that a later refusal can be attributed."""
    connection.scope[_WHO] = principal.name


def note_refused(connection: HTTPConnection, problem: HttpProblem) -> None:
    """Count a problem that ended a request, if it is a refusal and the server counts them."""
    refusals: Refusals | None = getattr(connection.app.state, "refusals", None)
    if refusals is not None and problem.refuses:
        refusals.count(connection.scope.get(_WHO, ANONYMOUS.name), problem.code)
