"""What time it is, for what is written down and for what is deleted by age: our own clock, held against the bookies'.

`now` is for stamps: our own time, or the median of the bookies where the two are far apart. `doubt` asks the bookies
anew and says why nothing may be deleted by age. The reckoning is core/cluster/wall_time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from buckram.client.shared.bookies import BookieWatcher
from buckram.client.shared.identities import Identities
from buckram.core.cluster.wall_time import Reading, Steadiness, WallClocks, between
from buckram.core.wire.introduction import Identity, answers_introductions, identity_mismatch
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, InvariantViolation
from buckram.net.pool import BookiePool
from buckram.net.tasks import TaskScope
from buckram.seams import Runtime
from buckram.types import BookieId

_log = logging.getLogger("buckram.client")
_ASKED = 5
"""So many bookies are asked; more would only make it dearer."""
_ANSWERS_S = 2.0
_STRAGGLERS_S = 0.2
"""When most have told the time, the others get so long."""
EVERY_S = 30.0


class Clocks:
    """One per client; owned by it. Nothing is asked before somebody wants to know."""

    def __init__(self, runtime: Runtime, bookies: BookieWatcher, identities: Identities) -> None:
        self._runtime, self._bookies, self._identities = runtime, bookies, identities
        self.pool: BookiePool | None = None
        """Who carries the questions; set before the first of them."""
        self.known = WallClocks()
        self._asked_at: float | None = None
        self._said = False
        self._jumped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on_identity(self, bookie: BookieId, identity: Identity) -> None:
        """A bookie said who it is, and what time it is there."""
        self.known.observe(bookie, identity.wall_us, self._mono(), self._runtime.clock.wall_us())

    # -- what time it is

    def now(self) -> int:
        """Microseconds since 1970, to be written down. From another thread, too, once this was used on the loop: bulk
        ledgers stamp the entries that they make of record batches there."""
        own, mono = self._runtime.clock.wall_us(), self._mono()
        if self.known.jumped(own, mono):
            self._set_jumped()
        return self.known.best(own, mono)

    async def doubt(self, rounds: Steadiness | None = None) -> str:
        """Why nothing may be deleted by age now; "" where nothing speaks against it. `rounds`: of who asks again."""
        answered = await self.ask()
        own, mono = self._runtime.clock.wall_us(), self._mono()
        moved = rounds.moved(own, mono) if rounds is not None else 0
        reading = self.known.reading(own, mono)
        if reading is not None and reading.apart:
            return str(reading)
        if moved:
            return f"wall time was set {between(moved)} since the last round: nothing goes by age until the next one"
        if not answered and self._bookies_with_clocks():
            return "no bookie says what time it is"
        return ""

    async def ensure(self) -> None:
        """To be called before the first `now` of some work: asks where that was not done lately."""
        if self._asked_at is None or self._loop_time() - self._asked_at > EVERY_S:
            await self.ask()

    async def follow(self) -> None:
        """Ask again and again, and at once when our clock was set. For ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._jumped.wait()
            self._jumped.clear()
            await self.ask()

    async def ask(self) -> int:
        """Ask some bookies what time it is; how many said so."""
        self.known.keep(self._bookies_with_clocks())
        began, self._asked_at = self._mono(), self._loop_time()
        asked = self._chosen()
        if asked:
            async with TaskScope("clocks") as scope:
                waiting = {scope.spawn(self._ask(bookie), f"time of {bookie}") for bookie in asked}
                until = self._loop_time() + _ANSWERS_S
                while waiting and (left := until - self._loop_time()) > 0:
                    _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    if 2 * self.known.since(began) > len(asked):
                        until = min(until, self._loop_time() + _STRAGGLERS_S)
        self._log_change()
        return self.known.since(began)

    def reading(self) -> Reading | None:
        """Return the reading of this moment, by what is known; None if no bookie has told the time."""
        return self.known.reading(self._runtime.clock.wall_us(), self._mono())

    def wrong(self) -> dict[BookieId, int]:
        """Bookies whose clocks are far from those of the others, and by how much (microseconds)."""
        return self.known.wrong(self._runtime.clock.wall_us(), self._mono())

    # -- inside -------------------------------------------------------------------------------------------

    def _bookies_with_clocks(self) -> dict[BookieId, None]:
        """Registered bookies that tell the time."""
        there = self._bookies.bookies
        found = {**there.writable, **there.readonly}
        return {bookie: None for bookie in sorted(found) if answers_introductions(found[bookie])}

    def _chosen(self) -> list[BookieId]:
        """Those that answered before come first: they have connections."""
        bookies = list(self._bookies_with_clocks())
        if len(bookies) <= _ASKED:
            return bookies
        connected = [bookie for bookie in bookies if bookie in self.known][:_ASKED]
        others = [bookie for bookie in bookies if bookie not in self.known]
        return connected + self._runtime.rng.sample(others, min(_ASKED - len(connected), len(others)))

    async def _ask(self, bookie: BookieId) -> None:
        assert self.pool is not None
        introduction = self._identities.expected(bookie).introduction
        try:
            reply = await self.pool.call(bookie, GetBookieInfo(0, introduction), timeout_s=_ANSWERS_S)
        except InvariantViolation:
            raise
        except BuckramError:
            return
        if (
            isinstance(reply, BookieInfoReply)
            and reply.identity
            and not identity_mismatch(introduction, reply.identity)
        ):
            self.on_identity(bookie, reply.identity)

    def _log_change(self) -> None:
        """Say once that the clocks are apart, and once that they are not any more."""
        reading = self.reading()
        apart = reading is not None and reading.apart
        if apart and not self._said:
            _log.warning("clocks are apart: %s; stamps follow the median, and nothing is deleted by age", reading)
        elif self._said and not apart:
            _log.warning("clocks agree again: %s", reading)
        self._said = apart

    def _mono(self) -> int:
        return int(self._loop_time() * 1_000_000)

    def _loop_time(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def _set_jumped(self) -> None:
        assert self._loop is not None, "the time was read on it"
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._jumped.set()
        else:
            self._loop.call_soon_threadsafe(self._jumped.set)


__all__ = ["EVERY_S", "Clocks"]
