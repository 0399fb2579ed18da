"""Delays before a failed attempt is repeated, which double, and every policy of Buckram in one table.

Not here: waiting (`runtime/process/retry.py`), and the deadline of all attempts, which each caller sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Random(Protocol):
    """The part of random.Random that delays need."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Bounds of the delays between attempts, in seconds: the first one, and the longest."""

    first_s: float
    most_s: float


class Delays:
    """The delays between attempts, in seconds.

    With `rng` each is multiplied by a random factor from 0.5 to 1.5, so that clients that failed together do not retry
    together.
    """

    __slots__ = ("_next_s", "_policy", "_rng")

    def __init__(self, policy: Backoff, rng: Random | None = None) -> None:
        self._policy, self._rng = policy, rng
        self._next_s = policy.first_s

    @property
    def next_s(self) -> float:
        """Return the delay that `take` returns next, without its random factor."""
        return self._next_s

    def take(self) -> float:
        """Return the delay before the next attempt; the one after it is twice as long, up to the limit."""
        delay = self._next_s
        self._next_s = min(2 * delay, self._policy.most_s)
        return delay if self._rng is None else delay * (0.5 + self._rng.random())

    def reset(self) -> None:
        """Begin again with the first delay, after a success."""
        self._next_s = self._policy.first_s


STORE_CALL = Backoff(0.05, 1.0)
"""A client's request to the metadata store: sessions usually recover within a second, and a caller waits."""
STORE_CONFLICT = Backoff(0.02, 1.0)
"""A compare-and-set of a ledger's record: conflicts are over in milliseconds, a lagging server takes longer."""
LEADER_WAIT = Backoff(0.02, 0.5)
"""A server whose replica follows, while the leader of a database changes: a client waits for the answer."""
STREAM_HEAD = Backoff(0.01, 1.0)
"""A compare-and-set of a stream's head, which several writers and the janitor change."""
READABLE = Backoff(0.002, 0.1)
"""A look how far a stream is readable after its open ledger was waited for: the wait itself paces it."""
STORE_WATCH = Backoff(0.05, 2.0)
"""Following a key whose last known value stays in force meanwhile, so that no caller waits."""
FOLLOWER = Backoff(0.5, 30.0)
"""A loop that follows something, after an unexpected error: it begins anew."""
REGISTRATION = Backoff(0.05, 2.0)
"""A bookie's registration; all bookies register at once when the store comes back, so callers add a random factor."""
ADMISSION = Backoff(0.02, 1.0)
"""A bookie's look at the metadata of a ledger that it has never seen, while an add waits."""
UNREAD_OWNER = Backoff(0.5, 30.0)
"""A bookie's next attempt to read the owner of ledgers, after a failure: their requests pass meanwhile, none waits."""
SCRUB = Backoff(1.0, 60.0)
"""A bookie's check of its own files that lacks descriptors or the metadata store; nobody waits for it."""
LIMBO = Backoff(5.0, 300.0)
"""A bookie's look whether its ledgers are complete again after a loss: others copy meanwhile, and each look costs."""
BUSY_BOOKIE = Backoff(0.1, 1.0)
"""An audit's next request to a bookie that may only be busy."""
LAGGING_MEMBER = Backoff(1.0, 60.0)
"""Copying entries to a member that was away: it may take minutes and must not slow down other traffic."""
BOOKIE_REPLACEMENT = Backoff(0.5, 10.0)
"""A degraded writer's search for another bookie; the registration of a new bookie ends the wait."""
ROLL = Backoff(0.05, 5.0)
"""A stream writer's creation of its next segment; records go to the current one meanwhile."""
TAIL = Backoff(0.02, 1.0)
"""A tailing reader's polls of bookies that refused a long poll; a change of the metadata ends the wait."""
MACHINE = Backoff(0.05, 2.0)
"""A machine's next attempt to follow its log or to become the leader; the store or bookies were away."""
RELAY = Backoff(0.05, 1.0)
"""A relay's next round of gateways, none of which could be asked: one is started again, while a driver waits."""
REPLICATION = Backoff(0.2, 15.0)
"""The copy of a stream into another cluster, which cannot be reached or refuses it; the source keeps the records."""
