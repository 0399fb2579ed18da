"""The plan of a life of machines, drawn from its seed: cluster (`simulator/engine/plan.py`), replicas, clients,
faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from buckram.state.machine.settings import MachineSettings
from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs
from simulator.machine.faults import OWN_FAULTS

LIFE_S = 8.0
"""Time during which clients are busy, virtual seconds (approximately)."""


@dataclass(slots=True)
class MachinePlan:
    """The plan of one life of machines. `cluster` is the part that the engine's faults and hosts need."""

    cluster: Plan
    policy: dict[str, Any]
    settings: MachineSettings
    replicas: list[str]
    """The class of each replica, a key of `state.KINDS`. Those that are not "good" do not stand for leader."""
    clients: int = 3
    commands: int = 12
    """Number of commands of each client."""
    restless: float = 0.3
    """Chance, at each turn, that a replica takes over, steps down, takes a snapshot or is opened again."""
    crashing: float = 0.0
    """Chance that a replica's process crashes somewhere in the steps after such an act."""

    @property
    def seed(self) -> int:
        return self.cluster.seed

    def __str__(self) -> str:
        cluster = self.cluster
        return (
            f"{cluster.beginning}, replicas {self.replicas}, "
            f"{self.clients} clients with {self.commands} commands, {self.policy}, {self.settings}, "
            f"restless {self.restless:.2f}, crashes {self.crashing:.2f}, faults {cluster.faults}"
        )


def make_machine_plan(seed: int) -> MachinePlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"machines {seed}")
    cluster = make_plain_cluster(seed)
    cluster.busy_s = rng.choice((2.0, 4.0, 6.0))
    hurry(cluster)
    usual_configs(cluster)
    draw_faults(rng, cluster, OWN_FAULTS, (0, 1, 2), (1, 2, 3))
    policy = log_policy(rng, cluster, (4096, 4096, 65536), (0.5, 2.0, 60.0))
    plan = MachinePlan(cluster, policy, _settings(rng), ["good"] * rng.choice((2, 2, 3)))
    kind = rng.random()
    if kind < 0.12:
        plan.replicas.append("old")
    elif kind < 0.24:
        plan.replicas.append("wrong")
    plan.clients, plan.commands = rng.choice((1, 2, 3, 4)), rng.choice((6, 12, 25))
    plan.restless, plan.crashing = rng.choice((0.0, 0.3, 0.6)), rng.choice((0.0, 0.1, 0.3))
    return plan


def _settings(rng: random.Random) -> MachineSettings:
    return MachineSettings(
        snapshot_commands=rng.choice((4, 10, 30)),
        keep_snapshots=rng.choice((2, 2, 3)),
        digest_commands=rng.choice((2, 5, 20)),
        linger_ms=rng.choice((0.0, 2.0, 50.0)),
        max_pending=rng.choice((1, 3, 1024)),
    )


__all__ = ["LIFE_S", "MachinePlan", "make_machine_plan"]
