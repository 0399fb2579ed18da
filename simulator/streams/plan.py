"""The plan of a life of streams, drawn from its seed: the cluster (`simulator/engine/plan.py`), and who does what to
it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.config import BookieConfig
from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster
from simulator.streams.faults import OWN_FAULTS

MODES = ("publisher", "truncator", "janitor", "compactor", "deleter", "forker", "hostile", "ending", "small_pages")
LIFE_S = 6.0
"""Time during which actors are busy, virtual seconds (approximately)."""


@dataclass(slots=True)
class StreamPlan:
    """The plan of a life of streams. `cluster` is the part that the engine's faults and machines need."""

    cluster: Plan
    streams: list[str]
    policy: dict[str, Any]
    writers: int = 2
    readers: int = 2
    sessions: int = 3
    publisher: bool = False
    truncator: bool = False
    janitor: bool = False
    compactor: bool = False
    deleter: bool = False
    forker: bool = False
    hostile: bool = False
    ending: bool = False
    small_pages: bool = False
    """True for pages of four segments, so that a life fills some."""
    crashing: float = 0.0
    """Chance that an operation begins with a crash somewhere in it."""
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def faults(self) -> list[str]:
        return self.cluster.faults

    def __str__(self) -> str:
        cluster = self.cluster
        modes = [name for name in MODES if getattr(self, name)]
        return (
            f"{cluster.beginning}, "
            f"{len(self.streams)} streams, {self.policy}, "
            f"{self.writers} writers, {self.readers} readers, {' '.join(modes)}, crashes {self.crashing:.2f}, "
            f"faults {cluster.faults}"
        )


def make_stream_plan(seed: int) -> StreamPlan:
    rng = random.Random(f"streams {seed}")
    cluster = make_plain_cluster(seed)
    cluster.late_wake = rng.random() < 0.2
    cluster.busy_s = rng.choice((1.0, 2.0, 4.0))
    hurry(cluster)
    config = cluster.configs.client
    cluster.configs.client = replace(
        config,
        join_segments=3,
        placement="rack:2",
        max_pending_bytes=rng.choice((2000, 1 << 24, 1 << 24)),
    )
    if rng.random() < 0.15:
        cluster.configs.bookie = BookieConfig(collection_interval_s=4.0, collection_age_s=6.0)
    elif cluster.collecting:
        cluster.configs.bookie = BookieConfig()
    draw_faults(rng, cluster, OWN_FAULTS, (1, 2, 2, 3), (0, 1, 1, 2))
    plan = StreamPlan(cluster, ["one", "two"][: rng.choice((1, 1, 1, 2))], _policy(rng, cluster))
    plan.writers, plan.readers = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    plan.sessions = rng.choice((1, 2, 3, 4))
    plan.publisher, plan.truncator = rng.random() < 0.25, rng.random() < 0.35
    plan.janitor, plan.deleter = rng.random() < 0.35, rng.random() < 0.12
    plan.ending = rng.random() < 0.15
    plan.small_pages = rng.random() < 0.5
    plan.crashing = rng.choice((0.0, 0.15, 0.35))
    plan.compactor = rng.random() < 0.3
    plan.forker = rng.random() < 0.25
    plan.hostile = rng.random() < 0.2
    return plan


def _policy(rng: random.Random, cluster: Plan) -> dict[str, Any]:
    policy = log_policy(rng, cluster, (4096, 4096, 8192, 65536), (0.2, 0.5, 2.0, 60.0))
    policy["compression"] = rng.choice(("none", "none", "none", "zstd"))
    kind = rng.random()
    if kind < 0.1:
        policy["retention_s"] = rng.choice((0.5, 1.0, 3.0))
    elif kind < 0.2:
        policy["retention_bytes"] = rng.choice((2000, 20_000))
    elif kind < 0.3:
        policy["retention_consumed"] = True
    if kind < 0.2 and rng.random() < 0.5:
        policy["retention_cursors"] = True
    return policy


__all__ = ["LIFE_S", "OWN_FAULTS", "StreamPlan", "make_stream_plan"]
