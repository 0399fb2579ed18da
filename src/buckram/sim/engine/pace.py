"""How slow the parts of a life are, and how far its clocks differ. Drawn from the seed.

The pace is not a fault that ends. It lasts for the whole life, so all deadlines are relative to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from buckram.sim.engine.loop import SimLoop

FAST = (0.0002, 0.004)
LATE_S = 0.3
"""What clients can bear without an error; some lives have more."""
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """`disks`: the bounds of a sync, per bookie in turn (none: all are fast). Times are seconds."""

    disks: tuple[tuple[float, float], ...] = ()
    late_chance: float = 0.0
    late_s: float = 0.0
    """So many of the messages from and to the metadata store take up to so much longer, each by itself."""
    lag_s: float = 0.0
    """How far a ZooKeeper follower may lie behind; half of the sessions have one."""
    clocks_us: int = 5_000_000
    """How far the wall clock of a host is off at most, to either side."""
    jumps: bool = False
    """Wall clocks are set anew now and then, forwards and backwards."""

    def __str__(self) -> str:
        disks = "+".join(f"{round(high * 1000)} ms" for _, high in self.disks) if self.disks else "fast"
        late = f", metadata {self.late_s} s late" if self.late_s else ""
        lag = f", follower {self.lag_s} s behind" if self.lag_s else ""
        clocks = f", clocks {self.clocks_us // HOUR_US} h apart" if self.clocks_us >= HOUR_US else ""
        return f"disks {disks}{late}{lag}{clocks}{' and jumping' if self.jumps else ''}"

    def of_disk(self, index: int) -> tuple[float, float]:
        return self.disks[index % len(self.disks)] if self.disks else FAST

    @property
    def sync_s(self) -> float:
        """The longest time that one operation of one disk takes, beyond that of a fast one."""
        return max([high for _, high in self.disks], default=0.0)

    @property
    def metadata_s(self) -> float:
        """How much longer than usual one question to the metadata store may take, answer and watch included."""
        return 2 * self.late_s + self.lag_s

    def patience(self, seconds: float, *, syncs: int = 0, questions: int = 0) -> float:
        """A deadline of a fast life, for this one: so many operations of disks and of metadata are waited for in it."""
        return seconds + syncs * self.sync_s + questions * self.metadata_s


def draw_pace(seed: int, bookies: int) -> Pace:
    """Drawn by itself, so that it changes nothing else of a life."""
    rng = random.Random(f"pace {seed}")
    disks: tuple[tuple[float, float], ...] = ()
    if rng.random() < 0.35:
        slow = (0.02, rng.choice((0.04, 0.15)))
        disks = tuple(slow if rng.random() < 0.5 else FAST for _ in range(bookies))
    late_s = rng.choice((LATE_S, LATE_S, 2.0)) if rng.random() < 0.2 else 0.0
    lag_s = rng.choice((0.3, 2.0)) if rng.random() < 0.5 else 0.0
    apart = rng.random() < 0.3
    clocks_us = rng.choice((HOUR_US, 72 * HOUR_US)) if apart else 5_000_000
    return Pace(disks, 0.25 if late_s else 0.0, late_s, lag_s, clocks_us, apart and rng.random() < 0.5)


class SimClock:
    """A host's wall time: it is off, and jumps if the pace says so. Nothing that must hold may depend on it."""

    def __init__(self, loop: SimLoop, host: str, seed: int | str, pace: Pace) -> None:
        self._loop = loop
        rng = random.Random(f"clock {seed} {host}")
        skew, at = rng.randrange(-pace.clocks_us, pace.clocks_us), 0.0
        self._set: list[tuple[float, int]] = [(0.0, skew)]
        while pace.jumps and at < 200.0:
            at += rng.random() * 8.0
            self._set.append((at, rng.randrange(-pace.clocks_us, pace.clocks_us)))

    def put(self, skew_us: int) -> None:
        """It is set now, and stays as it is."""
        self._set = [(0.0, skew_us)]

    def wall_us(self) -> int:
        now = self._loop.time()
        while len(self._set) > 1 and self._set[1][0] <= now:
            del self._set[0]
        return 1_750_000_000_000_000 + self._set[0][1] + int(now * 1e6)
