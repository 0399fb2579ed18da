"""The time as a bookie believes it: its clock, compared with its own past and with what other bookies recorded.

A bookie that is certain records the time in metadata once a minute. One that starts finds there what it and the others
believed last; while it is in doubt it looks for what others record, and for the word of an operator. Not here: the
judgement (`core/cluster/believed_time.py`), the records (`metadata/records/recorded_time.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from buckram.core.cluster.believed_time import (
    RECORD_US,
    BelievedTime,
    Moment,
    Recorded,
    advanced,
    agreed_jumps,
    agreeing,
    middle,
)
from buckram.core.cluster.wall_time import shown
from buckram.core.wire.introduction import DOUBTS_TIME, GUESSES_TIME, JUDGES_TIME
from buckram.errors import MetadataError
from buckram.metadata.records.recorded_time import read_accepted, read_times, write_time
from buckram.runtime.process.clock import boot_of, up_reading
from buckram.seams import Clock, MetadataStore, Stats
from buckram.types import BookieId

log = logging.getLogger("buckram.bookie")
LOOK_S = 15.0
"""Interval of looks at the clock, and, while the time is in doubt, at metadata, seconds."""


class Timekeeper:
    """`prepare` once the bookie's id is known, then `run`. Before that its clock counts as it is."""

    def __init__(self, clock: Clock, metadata: MetadataStore, believe_after_s: float, stats: Stats) -> None:
        self._clock, self._metadata = clock, metadata
        loop = asyncio.get_running_loop()
        self._up, self._boot = up_reading(clock, loop.time), boot_of(clock)
        self._believed = BelievedTime(int(believe_after_s * 1_000_000))
        self._bookie = ""
        self._recorded_at: int | None = None
        """The monotonic time of our last record."""
        self._seen: dict[BookieId, int] = {}
        """Times that the other bookies had recorded at the last look, microseconds."""
        self._accepted = 0
        self._said = ""
        self._doubt_gauge = stats.gauge("buckram_bookie_time_in_doubt", "1 while the bookie does not know the time")
        self._jumps = stats.counter(
            "buckram_bookie_time_jumps_total", "how often the bookie came to believe another time"
        )
        self._jumps_recorded = 0
        self._wake = asyncio.Event()

    def moment(self) -> Moment:
        """Return what may be the time now."""
        moment = self._believed.moment(self._clock.wall_us(), self._up())
        if moment.why or self._believed.believed_jumps == self._jumps_recorded:
            return moment
        # Nothing may end by the new time before it is recorded what was dated while the time was in doubt.
        self._wake.set()
        return replace(moment, why="the time that is believed now is not recorded yet")

    async def ensure(self) -> None:
        """Do nothing: `prepare` compared the clock, and `run` goes on to compare it."""

    def told(self) -> tuple[int, int]:
        """Return the time for clients, and the features that tell how certain it is."""
        moment = self.moment()
        doubt = (DOUBTS_TIME if moment.why else 0) | (GUESSES_TIME if self._believed.guesses else 0)
        return moment.best, JUDGES_TIME | doubt

    async def prepare(self, bookie: BookieId) -> None:
        """Compare the clock with what was recorded, by this bookie and by the others that are registered.
        MetadataError."""
        self._bookie = bookie
        times = await read_times(self._metadata)
        others = await self._others(times)
        wall, up = self._clock.wall_us(), self._up()
        mine = times.get(bookie)
        self._believed.jumps = agreed_jumps(times.values()) if mine is None else mine.jumps
        if mine is not None and mine.boot and mine.boot == self._boot and up >= mine.up_us:
            self._believed.continued(mine.time_us + up - mine.up_us, wall, up)
        elif mine is not None:
            self._believed.begin(mine.time_us, wall, up)
        elif (known := middle(others.values())) is not None:
            self._believed.begin(known[0], wall, up)
        self._compare(others)
        self._take(await read_accepted(self._metadata))
        self._say()

    async def run(self) -> None:
        """Look at the clock, and record the time, until cancelled."""
        while True:
            try:
                await self.look()
            except MetadataError as error:
                log.info("bookie %s: the time is not recorded or compared now: %s", self._bookie, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """Look at the clock once: record a time that is certain; ask metadata about one that is not. MetadataError."""
        self._wake.clear()
        if self._believed.moment(self._clock.wall_us(), self._up()).why:
            await self._ask()
        moment, up = self._believed.moment(self._clock.wall_us(), self._up()), self._up()
        jumps = self._believed.believed_jumps
        news = jumps - self._jumps_recorded
        due = self._recorded_at is None or up - self._recorded_at >= RECORD_US - LOOK_S * 500_000
        if not moment.why and (news or due):
            time = Recorded(moment.best, self._boot, up, self._believed.jumps)
            await write_time(self._metadata, self._bookie, time)
            self._recorded_at, self._jumps_recorded = up, jumps
            self._jumps.inc(news)
        self._say()

    async def _ask(self) -> None:
        times = await read_times(self._metadata)
        self._compare(await self._others(times))
        self._take(await read_accepted(self._metadata))

    def _take(self, accepted: int) -> None:
        """Take the word of an operator, once."""
        if accepted and accepted != self._accepted:
            self._accepted = accepted
            if self._believed.accept(accepted, self._clock.wall_us(), self._up()):
                log.warning("bookie %s: an operator accepted the time %s", self._bookie, shown(accepted))

    async def _others(self, times: Mapping[BookieId, Recorded]) -> dict[BookieId, int]:
        """Return the recorded times of the other bookies that are registered now, microseconds."""
        registered = {one.bookie_id for _, one in (await self._metadata.bookies()).everybody()}
        return {name: time.time_us for name, time in times.items() if name in registered and name != self._bookie}

    def _compare(self, others: dict[BookieId, int]) -> None:
        """Adopt the time of the other bookies, if most of them live and are certain of it."""
        wall, up = self._clock.wall_us(), self._up()
        alive, self._seen = advanced(others, self._seen), others
        if agreeing(others, wall):
            self._believed.told(wall, wall, wall, up)
        elif alive and 2 * len(alive) > len(others) and not agreeing(alive, wall):
            low, high = middle(alive.values()) or (0, 0)
            self._believed.told(low, high, wall, up)

    def _say(self) -> None:
        why = self.moment().why
        self._doubt_gauge.set(1 if why else 0)
        if bool(why) != bool(self._said):
            if why:
                log.warning("bookie %s: the time is in doubt: %s", self._bookie, why)
            else:
                log.warning("bookie %s: the time is certain again: %s", self._bookie, shown(self.moment().best))
        self._said = why
