"""The server side of a simulated ZooKeeper: its tree, its faults, and a follower that lags.

Not here: sessions (`simulator/engine/zookeeper.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from buckram.metadata.zookeeper.session import Change
from buckram.types import KeyValue
from simulator.engine.metadata import MetadataFaults, Snapshot
from simulator.engine.zk_connection import DirectConnection
from simulator.engine.zk_follower import CallLater, Follower
from simulator.engine.zk_tree import ReportChange, ZkTree

if TYPE_CHECKING:
    from simulator.engine.zookeeper import SimZkSession

T = TypeVar("T")


class SimZooKeeper(MetadataFaults):
    """One server, which loses no data. `down`: it is unavailable, and sessions do not expire."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(rng)
        self.tree = ZkTree(now_ms)
        self._now_ms = now_ms
        self.follower: Follower | None = None
        self.sessions: list[SimZkSession] = []
        self.expire_after_silence = 0.3
        """The chance that a session whose client got no answer for `timeout_s` has expired."""
        self.stale_read: Callable[[], None] = lambda: None
        """Called when a follower answers a session from an old state."""

    def peek(self, key: str) -> KeyValue | None:
        return self.tree.peek(key)

    def open(self, name: str = "client") -> SimZkSession:
        """Open a session without a simulated network on the running loop: messages arrive in the next turn."""
        from simulator.engine.zookeeper import SimZkSession

        return SimZkSession(self, DirectConnection(name))

    def snapshot(self) -> Snapshot:
        tree = self.tree.without_sessions()
        return Snapshot(tree.values(), tree)

    def _replace_by(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot.kept, ZkTree)
        for session in self.sessions:
            session.expire()
        if self.follower is not None:
            self.follower.catch_up()
            self.follower.tree.copy_from(snapshot.kept)
        self.tree.copy_from(snapshot.kept)

    def lag(self, most_s: float, later: CallLater) -> None:
        """Open half of the new sessions on a follower, which lags by up to `most_s` seconds."""
        self.follower = Follower(self.rng, self._now_ms, most_s, later)
        self.follower.tree.copy_from(self.tree)

    def commit(self, step: Callable[[ZkTree], T]) -> T:
        """Apply a change of any session. One that raises changes nothing."""
        done = step(self.tree)
        if self.follower is not None:
            self.follower.commit(step)
        return done

    def open_session(self, report: ReportChange, *, lagging: bool) -> int:
        """Open a session. `report` gets the watches that fire on the server that the session reads from."""
        leader = self.tree

        def step(tree: ZkTree) -> int:
            return tree.open_session(report if (tree is not leader) is lagging else _ignore_watch)

        return self.commit(step)

    def end_session(self, session: int) -> None:
        if self.tree.alive(session):
            for path in self.commit(lambda tree: tree.end_session(session)):
                self.changed("", path)


def _ignore_watch(path: str, change: Change) -> None:
    """Ignore a watch: the session reads from the other server."""
