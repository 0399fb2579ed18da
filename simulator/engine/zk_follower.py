"""A ZooKeeper follower that lags: its sessions read an older state until they write or call `sync`.

The follower applies the leader's changes to the same kind of tree, in the same order, but later. Like a real one it
fires its own sessions' watches when it applies a change, and replies to a write or sync after all earlier changes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from buckram.errors import BuckramError
from simulator.engine.zk_tree import ZkTree

Change = Callable[[ZkTree], Any]
"""A change of a tree, which leader and follower apply to their own."""


class CallLater(Protocol):
    """Runs a function after a delay, in seconds."""

    def __call__(self, delay_s: float, run: Callable[[], None], /) -> object: ...


class Follower:
    """A follower. The leader reports each change to `commit`; `most_s` is how far the follower lags at most."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int], most_s: float, later: CallLater) -> None:
        self._rng, self._now_ms, self._most_s, self._later = rng, now_ms, most_s, later
        self._at_ms = 0
        self.tree = ZkTree(lambda: self._at_ms)
        self._due: deque[tuple[float, int, Change]] = deque()
        self._until = 0.0

    def commit(self, step: Change) -> None:
        """Apply a change of the leader later."""
        now_ms = self._now_ms()
        lag = self._rng.random() * self._most_s if self._rng.random() < 0.5 else 0.0
        self._until = max(self._until, now_ms / 1000 + lag)
        self._due.append((self._until, now_ms, step))
        self._later(self._until - now_ms / 1000, self._advance)

    def _advance(self) -> None:
        now = self._now_ms() / 1000 + 0.002  # times in milliseconds are rounded down
        while self._due and self._due[0][0] <= now:
            self._apply_next()

    def _apply_next(self) -> None:
        _, self._at_ms, step = self._due.popleft()
        try:
            step(self.tree)
        except BuckramError as error:
            raise AssertionError(f"a follower cannot apply a change of the leader: {error!r}") from error

    def catch_up(self) -> bool:
        """Apply all outstanding changes. Return whether there were any."""
        behind = bool(self._due)
        while self._due:
            self._apply_next()
        return behind
