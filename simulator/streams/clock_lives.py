"""Lives of clocks (T2 to T5): they jump for seconds, stay ahead for good, run slow, or one of them
is wrong for long, while records are written, time passes by hours, and bookies start again.

Nothing is ended before its true age, and what is truly old is ended soon after clocks are right. A stream with a
retention of a day stands for all that an age ends. Where all clocks go ahead for good, the time that they show is the
true one from then on: as after a pause of all machines that none of their clocks counted.
"""

from __future__ import annotations

import asyncio
import random

from buckram.core.cluster.believed_time import Jump
from simulator.streams.bench import Bench
from simulator.streams.maintenance import JanitorActor
from simulator.streams.recording import RecordingWriter

_S, _HOUR, _DAY = 1_000_000, 3600 * 1_000_000, 86_400 * 1_000_000
RETENTION_S = 86_400.0
_SLACK_US = 61 * _S
"""Tolerance of a record's age, microseconds: right clocks may differ by a minute."""
_LATE_US = 2 * _HOUR
"""Age beyond the retention, microseconds, at which a record must be gone once clocks were right for more than an
hour."""
_STEPS = 14
_LOOK_S = 20.0
"""Time after which each bookie has looked at its clock again, seconds."""
_WATCHED = (_HOUR // 5,) * 5
"""Steps of an hour, microseconds, in which each bookie looks at its clock often enough to see a lasting time."""
_HOSTS = ("b1", "b2", "b3", "w1", "j1")


class ClockLife:
    """One life of clocks; `rng` draws its events."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.b, self.rng = bench, rng
        self.janitor = JanitorActor(bench.stage, "j1")
        self.written: list[tuple[int, int]] = []
        """The end offset and the true time of each append."""

    def true_us(self) -> int:
        return self.b.world.passed.us + self.b.world.passed.unseen + int(self.b.world.loop.time() * 1e6)

    def set_clocks(self, wrong_us: int = 0) -> None:
        for host in _HOSTS:
            self.b.world.clock(host).put(wrong_us)

    async def run(self) -> None:
        self.set_clocks()
        recording = await self.b.writer("w1")
        assert await self.janitor.up(20)
        await self.append(recording)
        away = [self.jump, self.jump, self.one_wrong, self.stay, self.slow]
        steps = [*away, self.restart, self.off, self.age, self.hold]
        for _ in range(_STEPS):
            await self.append(recording)
            step = self.rng.choice(steps)
            self.b.world.trace.note("clocks", step.__name__)
            await step()
            await self.clean()
            if self.rng.random() < 0.3:
                await self.b.roll(recording)
        await self.end()

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """Return the jumps of the clocks that the janitor believes in."""
        janitor = self.janitor._janitor
        return () if janitor is None else janitor[1]._jumps

    # -- what happens -------------------------------------------------------------------------------------

    async def append(self, recording: RecordingWriter) -> None:
        await self.b.append(recording, 2)
        self.written.append((recording.writer.next_offset, self.true_us()))

    async def age(self) -> None:
        self.b.world.passed.us += self.rng.choice((_HOUR // 4, 2 * _HOUR, 9 * _HOUR))
        await asyncio.sleep(_LOOK_S)

    async def hold(self) -> None:
        """Let an hour pass while bookies look at their clocks often, so that the present time comes to be believed."""
        for passed in _WATCHED:
            self.b.world.passed.us += passed
            await asyncio.sleep(_LOOK_S)

    async def jump(self) -> None:
        """Set all clocks ahead or back for some seconds, in which a janitor runs more than once."""
        self.set_clocks(self.rng.choice((-40, -2, 2, 40)) * _DAY)
        for _ in range(self.rng.randint(1, 3)):
            await asyncio.sleep(self.rng.random() * 4)
            await self.clean()
        self.set_clocks()

    async def stay(self) -> None:
        """Set all clocks ahead for good."""
        self.b.world.passed.unseen += self.rng.choice((2 * _HOUR, 2 * _DAY, 40 * _DAY))
        await asyncio.sleep(_LOOK_S)

    async def one_wrong(self) -> None:
        """Set one host's clock wrong for hours, then right again."""
        host = self.rng.choice(_HOSTS)
        self.b.world.clock(host).put(self.rng.choice((-40, 40)) * _DAY)
        for _ in range(3):
            await self.clean()
            self.b.world.passed.us += _HOUR
            await asyncio.sleep(_LOOK_S)
        await self.clean()
        self.b.world.clock(host).put(0)

    async def slow(self) -> None:
        """Let all clocks lose a third of the time for a while."""
        lost = 0
        for _ in range(4):
            self.b.world.passed.us += _HOUR // 2
            lost += _HOUR // 6
            self.set_clocks(-lost)
            await asyncio.sleep(_LOOK_S)
            await self.clean()
        self.set_clocks()

    async def restart(self) -> None:
        """Restart a bookie, perhaps while all clocks are wrong."""
        wrong = self.rng.choice((0, 0, 40, -40)) * _DAY
        machine = self.b.world.machines[self.rng.choice(("b1", "b2", "b3"))]
        self.set_clocks(wrong)
        self.b.world.crash(machine, power=False)
        self.b.world.passed.us += self.rng.choice((0, _HOUR))
        await asyncio.sleep(1.0)
        await self.b.faults.restart(machine)
        await self.clean()
        self.set_clocks()
        await asyncio.sleep(_LOOK_S)

    async def off(self) -> None:
        """Stop all bookies for half an hour or three days."""
        machines = [self.b.world.machines[name] for name in ("b1", "b2", "b3")]
        for machine in machines:
            self.b.world.crash(machine, power=False)
        self.b.world.passed.us += self.rng.choice((_HOUR // 2, 3 * _DAY))
        await asyncio.sleep(1.0)
        for machine in machines:
            await self.b.faults.restart(machine)
        await self.clean()

    # -- what has to hold ---------------------------------------------------------------------------------

    async def clean(self) -> None:
        await self.janitor.inside(self.janitor.clean(), "clean")
        earliest = self.b.history.head.earliest if self.b.history.head else 0
        now, begin = self.true_us(), 0
        for end, time in self.written:
            age = now - time
            if begin < earliest:
                self.b.report.check(
                    "clocks", age >= RETENTION_S * _S - _SLACK_US, "records of {} s were ended", age // _S
                )
            begin = end

    async def end(self) -> None:
        """Set clocks right for more than an hour, then check that old records are gone.

        Records that were stamped during a doubt that ended with another time live for one retention more, since their
        age is not known.
        """
        self.set_clocks()
        for passed in (0, *_WATCHED, 120 * _S, 60 * _S):
            await self.pass_and_clean(passed)
        if not self.jumps:
            self.check_ended()
        await self.pass_and_clean(_DAY + _LATE_US + 120 * _S)
        self.check_ended()

    async def pass_and_clean(self, passed: int) -> None:
        self.b.world.passed.us += passed
        await asyncio.sleep(_LOOK_S)
        await self.clean()

    def check_ended(self) -> None:
        earliest, old = self.b.history.head.earliest if self.b.history.head else 0, 0
        for end, time in self.written:
            if self.true_us() - time > RETENTION_S * _S + _LATE_US:
                old = end
        self.b.report.check("clocks", earliest >= old, "what is old is not ended: {} of {}", earliest, old)


async def clock_life(b: Bench) -> None:
    """Clocks jump, stay ahead, run slow, and are wrong one by one: a naive janitor goes by its clock, by rounds, or by
    a time that never goes back."""
    await ClockLife(b, random.Random(f"clocks {b.world.seed}")).run()


__all__ = ["RETENTION_S", "ClockLife", "clock_life"]
