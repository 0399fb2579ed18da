"""What a server over HTTP refuses, for the audit trail: counted by principal and kind, and told once a minute.

A refusal costs an addition in memory. What is told is bounded in principals, so that whoever is refused a million times
makes one event of it. Not here: what is refused (`serve/http/tokens.py`, and the doors of each server), refusals of
bookies (`bookie/audit_log.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from starlette.requests import HTTPConnection

from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.tenants.audit import REFUSALS, REFUSED
from buckram.core.tenants.refusals import OTHERS
from buckram.core.tenants.refusals import Refusals as Interval
from buckram.errors import BuckramError
from buckram.metadata.audit_notes import leave_note
from buckram.runtime.net.tasks import TaskScope
from buckram.seams import Clock, MetadataStore
from buckram.serve.http.problems import HttpProblem

TELL_S = 60.0
MOST_PRINCIPALS = 50
"""Those that come when there are so many in a minute are counted together."""
_WHO = "buckram.principal"


class Refusals:
    """Of one server. `start`, and `close`, which tells what was not told yet."""

    def __init__(self, store: MetadataStore, server: str, clock: Clock) -> None:
        """`server`: its URL, of which the events are."""
        self._store, self._server, self._clock = store, server, clock
        self._interval = Interval(first=0, most=MOST_PRINCIPALS)
        self._left: dict[str, Counter[str]] = {}
        """What is to be told; it waits here while the metadata store is away."""
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
        """Somebody was refused something; `kind` is one of the few codes of answers."""
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
    """Remember who sends a request, for what it is refused later."""
    connection.scope[_WHO] = principal.name


def note_refused(connection: HTTPConnection, problem: HttpProblem) -> None:
    """Count a problem that ended a request, if it is a refusal and the server counts them."""
    refusals: Refusals | None = getattr(connection.app.state, "refusals", None)
    if refusals is not None and problem.refuses:
        refusals.count(connection.scope.get(_WHO, ANONYMOUS.name), problem.code)


__all__ = ["MOST_PRINCIPALS", "Refusals", "known_as", "note_refused"]
