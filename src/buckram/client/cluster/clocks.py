"""The time, for stamps and for what ends by its age: our own clock, held against its past and against the bookies'
clocks.

`now` is for stamps: the time as this process believes it, or the median of the bookies where the two are far apart.
`doubt` asks the bookies anew and returns why nothing may be ended by its age; `moment` returns the bounds of the time
by what is known. The reckoning is in core/cluster: `believed_time` (our own clock) and `wall_time` (those of others).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.identities import Identities
from buckram.core.cluster.believed_time import BelievedTime, Jump, Moment, Recorded, middle
from buckram.core.cluster.wall_time import Reading, WallClocks
from buckram.core.wire.introduction import (
    DOUBTS_TIME,
    GUESSES_TIME,
    JUDGES_TIME,
    Identity,
    answers_introductions,
    identity_mismatch,
)
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo
from buckram.errors import AccessRefused, BuckramError, InvariantViolation, MetadataError
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.process.clock import up_reading
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Runtime
from buckram.types import BookieId

_log = logging.getLogger("buckram.client")
_ASKED = 5
"""Maximum number of bookies that are asked for the time; a higher one would only add cost."""
_ANSWERS_S = 2.0
_STRAGGLERS_S = 0.2
"""Time that stragglers get once most bookies have told the time, seconds."""
EVERY_S, _AGAIN_S = 30.0, 1.0
_WATCH_S = 30.0
"""Interval of looks at our clock while it is in doubt, seconds: a time is believed only if it was seen to hold."""
_UNTOLD = "no bookie tells its time"


class Clocks:
    """The time of one client. No bookie is asked before the time is first needed."""

    def __init__(
        self,
        runtime: Runtime,
        bookies: BookieWatcher,
        identities: Identities,
        recorded: Callable[[], Awaitable[Mapping[BookieId, Recorded]]],
        believe_after_s: float = 3600.0,
    ) -> None:
        """Create the clocks; `recorded` reads what bookies recorded, for when none of them answers."""
        self._runtime, self._bookies, self._identities = runtime, bookies, identities
        self._read_recorded = recorded
        self._recorded: tuple[int, int] | None = None
        """Median of what bookies recorded, as a lower bound of the time; None once any of them has answered."""
        self._own = BelievedTime(int(believe_after_s * 1_000_000))
        self._up = up_reading(runtime.clock, self._loop_time)
        self.pool: BookiePool | None = None
        """Connections that carry the requests; set before the first of them."""
        self.known = WallClocks()
        self._asked_at: float | None = None
        self._was_asked = False
        self._said = False
        self._jumped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

    def close(self) -> None:
        """Watch our clock no longer."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()

    def on_identity(self, bookie: BookieId, identity: Identity) -> None:
        """Take the time of a bookie from its identity."""
        certain = not identity.features & DOUBTS_TIME if identity.features & JUDGES_TIME else None
        wall, guess = self._runtime.clock.wall_us(), bool(identity.features & GUESSES_TIME)
        self.known.observe(bookie, identity.wall_us, self._up(), wall, certain=certain, guess=guess)

    # -- what time it is

    def now(self) -> int:
        """Return microseconds since 1970, for stamps. Callable from another thread once it was used on the loop: bulk
        ledgers stamp the entries that they make of record batches there."""
        wall, up = self._runtime.clock.wall_us(), self._up()
        if self.known.jumped(wall, up):
            self._set_jumped()
        return self.known.best(self._own.best(wall, up), up)

    def moment(self) -> Moment:
        """Return what may be the time, by what is known now."""
        wall, up = self._runtime.clock.wall_us(), self._up()
        own = self._own.moment(wall, up)
        told = self.known.reading(own.best, up)
        reading = told or Reading(own.best, own.best, own.best, 0)
        low, high = min(own.low, reading.low), max(own.high, reading.high)
        if own.why or reading.apart:
            return Moment(low, high, reading.best, own.why or str(reading))
        best = own.best  # and that of the reading, because it is not apart
        doubting = self.known.doubting
        if doubting:
            why = f"{doubting} of {self.known.telling} bookies doubt the time (`buckram doctor`)"
            return Moment(low, high, best, why, bounded=False)
        if told is not None or self.known.telling or not (why := self._why_untold()):
            return Moment(low, high, best)
        return Moment(low, max((high, *(self._recorded or ()))), best, why, bounded=False)

    def _why_untold(self) -> str:
        """Return why our clock alone cannot be trusted while no bookie has told the time; "" where none ever does."""
        if not self._was_asked:
            return "no bookie has been asked for its time yet"
        return _UNTOLD if self._recorded or self._have_clocks() else ""

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """Return the jumps of our own clock that came to be believed."""
        return self._own.jumps

    def ended(self, at_us: int) -> bool:
        """Return whether a time has certainly come, so that what ends then has ended."""
        certain = self.moment().certain
        return certain is not None and at_us <= certain

    async def doubt(self) -> str:
        """Ask the bookies, and return why nothing may be ended by its age now; "" where nothing speaks against it."""
        answered = await self.ask()
        why = self.moment().why
        return why or (_UNTOLD if not answered and (self._recorded or self._have_clocks()) else "")

    async def ensure(self) -> None:
        """Ask bookies for the time if that was not done lately, or is in doubt. Call it before the first `now` of some
        work."""
        if self._asked_at is not None:
            since = self._loop_time() - self._asked_at
            if since <= _AGAIN_S or (since <= EVERY_S and not self.moment().why):
                return
        await self.ask()

    async def follow(self) -> None:
        """Ask again and again, and at once when our clock was set, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._jumped.wait()
            self._jumped.clear()
            await self.ask()

    async def ask(self) -> int:
        """Ask some bookies for the time; return how many gave it."""
        self.known.keep(self._bookies_with_clocks())
        began, self._asked_at = self._up(), self._loop_time()
        asked = self._chosen()
        if asked:
            async with TaskScope("clocks") as scope:
                waiting = {scope.spawn(self._ask(bookie), f"time of {bookie}") for bookie in asked}
                until = self._loop_time() + _ANSWERS_S
                while waiting and (left := until - self._loop_time()) > 0:
                    _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    if 2 * self.known.since(began) > len(asked):
                        until = min(until, self._loop_time() + _STRAGGLERS_S)
        wall, sure = self._runtime.clock.wall_us(), self.known.sure(self._up())
        if sure is not None:
            self._own.told(*sure, wall, self._up())
        answered = self.known.since(began)
        self._recorded = None if answered else await self._middle_of_recorded()
        self._was_asked = True
        self._log_change()
        if self._watch is None:
            self._look_again()
        return answered

    async def _middle_of_recorded(self) -> tuple[int, int] | None:
        """Return the median of what bookies recorded, as those in the middle."""
        try:
            return middle(one.time_us for one in (await self._read_recorded()).values())
        except AccessRefused:  # bookies of earlier releases show it to administrators only
            return None
        except MetadataError:
            return self._recorded or (0, 0)

    def reading(self) -> Reading | None:
        """Return the reading of this moment, by what is known; None if no bookie has told the time."""
        up = self._up()
        return self.known.reading(self._own.best(self._runtime.clock.wall_us(), up), up)

    def wrong(self) -> dict[BookieId, int]:
        """Return bookies whose clocks are far from those of the others, and by how much (microseconds)."""
        return self.known.wrong(self._runtime.clock.wall_us(), self._up())

    # -- inside -------------------------------------------------------------------------------------------

    def _have_clocks(self) -> bool:
        """Return whether bookies are registered that tell the time."""
        there = self._bookies.bookies
        return any(map(answers_introductions, (*there.writable.values(), *there.readonly.values())))

    def _bookies_with_clocks(self) -> dict[BookieId, None]:
        """Return the registered bookies that tell the time."""
        there = self._bookies.bookies
        found = {**there.writable, **there.readonly}
        return {bookie: None for bookie in sorted(found) if answers_introductions(found[bookie])}

    def _chosen(self) -> list[BookieId]:
        """Return the bookies to ask: those that answered before come first, because they have connections."""
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

    def _look_again(self) -> None:
        """Look at our clock, and again after a while as long as it is in doubt: the time may not be asked for
        meanwhile."""
        self._own.observe(self._runtime.clock.wall_us(), self._up())
        self._watch = None
        if self._own.doubtful and not self._closed:
            self._watch = asyncio.get_running_loop().call_later(_WATCH_S, self._look_again)

    def _log_change(self) -> None:
        """Log once that the time is in doubt, and once that the doubt is over."""
        why = self.moment().why
        if why and not self._said:
            _log.warning("the time is in doubt: %s; nothing is ended by its age", why)
        elif self._said and not why:
            _log.warning("the time is certain again: %s", self.reading() or "no bookie tells it")
        self._said = bool(why)

    def _loop_time(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def _set_jumped(self) -> None:
        if self._loop is None:  # the time was never read yet, so nobody waits for it on another thread
            self._jumped.set()
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._jumped.set()
        else:
            self._loop.call_soon_threadsafe(self._jumped.set)
