"""The pace of a life: how slow its parts are, and how far its clocks differ. Drawn from the seed.

The pace is not a fault that ends. It lasts for the whole life, so all deadlines are relative to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.engine.loop import SimLoop

FAST = (0.0002, 0.004)
LATE_S = 0.3
"""A delay of metadata that clients bear without an error; some lives have longer ones."""
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one life. Times are seconds. `disks` are the bounds of a sync, per bookie; empty: all are fast."""

    disks: tuple[tuple[float, float], ...] = ()
    late_chance: float = 0.0
    late_s: float = 0.0
    """The share of messages from and to the metadata store that are late, and by how much they are at most."""
    lag_s: float = 0.0
    """Maximum lag of a ZooKeeper follower, seconds; half of the sessions are on one."""
    clocks_us: int = 5_000_000
    """Maximum error of a host's wall clock in either direction, microseconds."""
    jumps: bool = False
    """True if wall clocks are set forwards or backwards from time to time."""

    def __str__(self) -> str:
        disks = "+".join(f"{round(high * 1000)} ms" for _, high in self.disks) if self.disks else "fast"
        late = f", metadata {self.late_s} s late" if self.late_s else ""
        lag = f", follower {self.lag_s} s behind" if self.lag_s else ""
        clocks = f", clocks {self.clocks_us // HOUR_US} h apart" if self.clocks_us >= HOUR_US else ""
        return f"disks {disks}{late}{lag}{clocks}{' and jumping' if self.jumps else ''}"

    def of_disk(self, index: int) -> tuple[float, float]:
        """Return the bounds of a sync of the disk with this number."""
        return self.disks[index % len(self.disks)] if self.disks else FAST

    @property
    def sync_s(self) -> float:
        """Return the longest time that one operation of a slow disk takes, seconds; 0.0 if all are fast."""
        return max([high for _, high in self.disks], default=0.0)

    @property
    def metadata_s(self) -> float:
        """Return the extra seconds that a request to the metadata store may take, with its reply or watch."""
        return 2 * self.late_s + self.lag_s

    def deadline_s(self, seconds: float, *, syncs: int = 0, metadata_requests: int = 0) -> float:
        """Return the deadline in this life of what takes `seconds` in a fast one.

        It waits for `syncs` disk operations and `metadata_requests` requests to the metadata store one after another.
        """
        return seconds + syncs * self.sync_s + metadata_requests * self.metadata_s


def draw_pace(seed: int, bookies: int) -> Pace:
    """Draw the pace from random numbers of its own, so that it changes nothing else of a life."""
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


class Passed:
    """Time that passes for the clocks of all hosts at once, while no timer of any loop goes on.

    `unseen` passes, too, but no monotonic clock counted it: all machines were paused.
    """

    def __init__(self) -> None:
        self.us = self.unseen = 0


class SimClock:
    """The wall clock of a host: it is wrong, and is set from time to time if the pace says so."""

    def __init__(self, loop: SimLoop, host: str, seed: int | str, pace: Pace, passed: Passed | None = None) -> None:
        self._loop, self._passed = loop, passed or Passed()
        rng = random.Random(f"clock {seed} {host}")
        skew, at = rng.randrange(-pace.clocks_us, pace.clocks_us), 0.0
        self._set: list[tuple[float, int]] = [(0.0, skew)]
        while pace.jumps and at < 200.0:
            at += rng.random() * 8.0
            self._set.append((at, rng.randrange(-pace.clocks_us, pace.clocks_us)))

    def put(self, skew_us: int) -> None:
        """Set the clock's error, microseconds, from now on."""
        self._set = [(0.0, skew_us)]

    def wall_us(self) -> int:
        now = self._loop.time()
        while len(self._set) > 1 and self._set[1][0] <= now:
            del self._set[0]
        return 1_750_000_000_000_000 + self._set[0][1] + self._passed.us + self._passed.unseen + int(now * 1e6)

    def up_us(self) -> int:
        return self._passed.us + int(self._loop.time() * 1e6)

    def boot(self) -> str:
        return ""  # no boot id: a restarted process cannot tell how long it was down
