"""The plan of a life of databases: that of a life of machines with its seed, and SQL settings."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.engine.plan import Plan
from simulator.machine.plan import MachinePlan, make_machine_plan


@dataclass(slots=True)
class DatabasePlan:
    """The plan of one life of databases. `machines` are the replicas, their settings, and how restless they are."""

    machines: MachinePlan
    part_bytes: int
    """Maximum bytes of one record of a group; a larger group is cut into parts."""
    cache_kib: int
    """SQLite's page cache, KiB: a transaction with more dirty pages spills them."""
    checkpoint_frames: int
    forks: int = 1

    @property
    def seed(self) -> int:
        return self.machines.seed

    @property
    def cluster(self) -> Plan:
        return self.machines.cluster

    def __str__(self) -> str:
        return (
            f"{self.machines}, parts of {self.part_bytes}, cache {self.cache_kib} KiB, checkpoints after "
            f"{self.checkpoint_frames} frames, {self.forks} forks"
        )


def make_database_plan(seed: int) -> DatabasePlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"database {seed}")
    machines = make_machine_plan(seed)
    machines.replicas = ["good"] * rng.choice((2, 2, 3))
    machines.commands = min(machines.commands, 12)
    return DatabasePlan(
        machines,
        part_bytes=rng.choice((600, 3000, 512 * 1024)),
        cache_kib=rng.choice((40, 40, 16 * 1024)),
        checkpoint_frames=rng.choice((10, 40, 4000)),
        forks=rng.choice((0, 1, 1)),
    )


__all__ = ["DatabasePlan", "make_database_plan"]
