"""How long to wait before a failed attempt is made again: delays that double, and every policy of Buckram in one table.

Not here: waiting (`net/retry.py`), and for how long somebody goes on trying, which each caller says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Random(Protocol):
    """What is needed of random.Random."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: the first one, and the longest."""

    first_s: float
    most_s: float


class Delays:
    """The delays of one attempt after another. With `rng` each is between a half and one and a half of its size, so
    that many who failed together do not come back together."""

    __slots__ = ("_next_s", "_policy", "_rng")

    def __init__(self, policy: Backoff, rng: Random | None = None) -> None:
        self._policy, self._rng = policy, rng
        self._next_s = policy.first_s

    @property
    def next_s(self) -> float:
        """The delay that `take` gives next, without its random part."""
        return self._next_s

    def take(self) -> float:
        """The delay before the next attempt; the one after it is twice as long."""
        delay = self._next_s
        self._next_s = min(2 * delay, self._policy.most_s)
        return delay if self._rng is None else delay * (0.5 + self._rng.random())

    def reset(self) -> None:
        """An attempt succeeded: the next failure begins with the first delay."""
        self._next_s = self._policy.first_s


STORE_CALL = Backoff(0.05, 1.0)
"""A client's request to the metadata store: a session comes back within a second or so, and somebody waits."""
STORE_CONFLICT = Backoff(0.02, 1.0)
"""A compare-and-set of a ledger's record: conflicts are over in milliseconds, a lagging server takes longer."""
STREAM_HEAD = Backoff(0.01, 1.0)
"""A compare-and-set of a stream's head, which several writers and the janitor change."""
STORE_WATCH = Backoff(0.05, 2.0)
"""Following a key whose last known value stays in force meanwhile: nobody waits for it."""
REGISTRATION = Backoff(0.05, 2.0)
"""A bookie registers: all bookies do at once when the store comes back, so it has a random part."""
ADMISSION = Backoff(0.02, 1.0)
"""A bookie asks metadata about a ledger that it has never seen, while an add waits."""
BUSY_BOOKIE = Backoff(0.1, 1.0)
"""An audit asks a bookie again that may only be busy."""
LAGGING_MEMBER = Backoff(1.0, 60.0)
"""Entries are copied to a member that was away: minutes do not matter, other traffic does."""
BOOKIE_REPLACEMENT = Backoff(0.5, 10.0)
"""A degraded writer looks for another bookie; a new one that registers ends the wait."""
ROLL = Backoff(0.05, 5.0)
"""A stream's writer makes its next segment; records go to the current one meanwhile."""
TAIL = Backoff(0.02, 1.0)
"""A tailing reader polls bookies that could not wait for it; a change of the metadata ends the wait."""
