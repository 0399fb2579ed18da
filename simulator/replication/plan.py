"""The plan of a life of replication, drawn from its seed: two clusters, their faults, writers, and operators' acts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs
from simulator.replication.faults import OWN_FAULTS

LIFE_S = 60.0
"""Time after which an operator begins nothing more, virtual seconds."""
OTHER = "b: "
"""How the names of faults in the second cluster begin."""
ACTS = {
    "promote": 5,
    "promote alone": 3,
    "promote without force": 1,
    "restore": 2,
    "truncate": 2,
    "create anew": 1,
    "grant": 1,
}
"""Relative weights of operators' acts."""
EAGER = 0.3
"""Share of lives whose writers are eager."""
_OTHER_SEEDS = 1_000_003
_BOOKIES = 3
"""Bookies of each cluster: what more of them do is what lives of streams are about."""
_SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 2))


@dataclass(slots=True)
class ReplicationPlan:
    """The plan of one life. `cluster` is that of the first cluster, with the faults of both; `other` that of the
    second.
    """

    cluster: Plan
    other: Plan
    policies: tuple[dict[str, Any], dict[str, Any]]
    """Settings of the namespace in each cluster."""
    streams: tuple[str, ...]
    acts: list[str]
    writers: int = 2
    copiers: int = 1
    sessions: int = 6
    """Number of times that a writer opens a stream."""
    stubborn: float = 0.3
    """Chance that a writer goes on where it is, although the other side was promoted."""
    crashing: float = 0.2
    """Chance that a process of the tool, or of a writer, is killed in what it does next."""
    pause_s: float = 2.0
    """Maximum time between two acts of an operator."""
    wrong_way: float = 0.1
    """Chance that somebody runs a copy to the side that writes."""
    eager: bool = False
    """Writers append nearly without pauses, and readers move a cursor often: a mirror is never up to date for long."""

    @property
    def seed(self) -> int:
        return self.cluster.seed

    def faults_of(self, other: bool) -> list[str]:
        """Return the faults of one cluster, without the beginning that says which."""
        chosen = [name for name in self.cluster.faults if name.startswith(OTHER) is other]
        return [name.removeprefix(OTHER) for name in chosen]

    def __str__(self) -> str:
        one, two = (
            f"{plan.bookies} bookies, {'/'.join(map(str, plan.shape))}, {plan.metadata}, {plan.pace}, {policy}"
            for plan, policy in zip((self.cluster, self.other), self.policies, strict=True)
        )
        return (
            f"{one} and {two}; streams {self.streams}, {self.writers} writers, {self.copiers} copiers, "
            f"acts {self.acts}, stubborn {self.stubborn:.1f}, crashes {self.crashing:.1f}, "
            f"pauses {self.pause_s}, wrong way {self.wrong_way}, {'eager, ' if self.eager else ''}"
            f"faults {self.cluster.faults}"
        )


def make_replication_plan(seed: int) -> ReplicationPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"replication {seed}")
    first, second = _cluster(rng, seed), _cluster(rng, seed + _OTHER_SEEDS)
    faults = [name for name in first.faults if name not in OWN_FAULTS]
    faults += [OTHER + name for name in second.faults if name not in OWN_FAULTS]
    faults += [name for name in (*first.faults, *second.faults) if name in OWN_FAULTS]
    first.faults = faults if rng.random() >= 0.1 else []
    policies = (_policy(rng, first), _policy(rng, second))
    acts = rng.choices(list(ACTS), list(ACTS.values()), k=rng.choice((1, 2, 2, 3, 4, 5)))
    plan = ReplicationPlan(first, second, policies, ("orders", "visits")[: rng.choice((1, 1, 2))], acts)
    plan.writers, plan.copiers = rng.choice((1, 2, 3)), rng.choice((1, 1, 2))
    plan.sessions = rng.choice((3, 5, 8))
    plan.stubborn, plan.crashing = rng.choice((0.0, 0.3, 0.8)), rng.choice((0.0, 0.2, 0.5))
    plan.pause_s = rng.choice((0.5, 2.0, 5.0))
    if "restore" in acts:
        first.metadata = second.metadata = "memory"
    late = random.Random(f"late replication {seed}")
    plan.eager, plan.wrong_way = late.random() < EAGER, late.choice((0.1, 0.1, 0.1, 0.5))
    return plan


def _cluster(rng: random.Random, seed: int) -> Plan:
    cluster = make_plain_cluster(seed)
    if cluster.shape[0] > _BOOKIES:
        cluster.shape = rng.choice(_SHAPES)
    cluster.bookies = _BOOKIES
    cluster.busy_s = rng.choice((3.0, 6.0, 12.0))
    hurry(cluster)
    # Beside the faults, every request pays the pace of two clusters.
    cluster.pace = replace(cluster.pace, late_s=0.0, late_chance=0.0, lag_s=min(cluster.pace.lag_s, 0.3))
    usual_configs(cluster)
    draw_faults(rng, cluster, OWN_FAULTS, (0, 0, 1), (0, 1, 1))
    return cluster


def _policy(rng: random.Random, cluster: Plan) -> dict[str, Any]:
    return log_policy(rng, cluster, (4096, 4096, 65536), (0.5, 2.0, 60.0))


__all__ = ["ACTS", "LIFE_S", "OTHER", "ReplicationPlan", "make_replication_plan"]
