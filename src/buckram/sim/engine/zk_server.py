"""The server side of a simulated ZooKeeper: its tree, its faults, and a follower that lags.

Not here: sessions (`sim/engine/zookeeper.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from buckram.metadata.zookeeper.watches import Change
from buckram.seams import KeyValue
from buckram.sim.engine.metadata import MetadataFaults, Snapshot
from buckram.sim.engine.zk_follower import Follower, Later
from buckram.sim.engine.zk_line import DirectLine
from buckram.sim.engine.zk_tree import Report, ZkTree

if TYPE_CHECKING:
    from buckram.sim.engine.zookeeper import SimZkSession

T = TypeVar("T")


class SimZooKeeper(MetadataFaults):
    """One server, whose data no failure touches. `down`: it is away, sessions live on."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(rng)
        self.tree = ZkTree(now_ms)
        self._now_ms = now_ms
        self.follower: Follower | None = None
        self.sessions: list[SimZkSession] = []
        self.expire_after_silence = 0.3
        """The chance that a session whose client heard nothing for `timeout_s` has expired."""
        self.stale_read: Callable[[], None] = lambda: None
        """Called when a session is answered from a state that is no more."""

    def peek(self, key: str) -> KeyValue | None:
        return self.tree.peek(key)

    def open(self, name: str = "client") -> SimZkSession:
        """A session without a simulated network, on the running loop: what is sent arrives in the next turn."""
        from buckram.sim.engine.zookeeper import SimZkSession

        return SimZkSession(self, DirectLine(name))

    def snapshot(self) -> Snapshot:
        tree = self.tree.without_sessions()
        return Snapshot(tree.values(), tree)

    def _go_back(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot.kept, ZkTree)
        for session in self.sessions:
            session.expire()
        if self.follower is not None:
            self.follower.catch_up()
            self.follower.tree.copy_from(snapshot.kept)
        self.tree.copy_from(snapshot.kept)

    def lag(self, most_s: float, later: Later) -> None:
        """From now on half of the new sessions are on a follower that lies behind by up to `most_s`."""
        self.follower = Follower(self.rng, self._now_ms, most_s, later)
        self.follower.tree.copy_from(self.tree)

    def commit(self, step: Callable[[ZkTree], T]) -> T:
        """A change, of whichever session: what raises changes nothing."""
        done = step(self.tree)
        if self.follower is not None:
            self.follower.commit(step)
        return done

    def open_session(self, report: Report, *, lagging: bool) -> int:
        """`report` hears of watches that fire where the session reads."""
        leader = self.tree

        def step(tree: ZkTree) -> int:
            return tree.open_session(report if (tree is not leader) is lagging else _unheard)

        return self.commit(step)

    def end_session(self, session: int) -> None:
        if self.tree.alive(session):
            for path in self.commit(lambda tree: tree.end_session(session)):
                self.changed("", path)


def _unheard(path: str, change: Change) -> None:
    """The session reads elsewhere."""
