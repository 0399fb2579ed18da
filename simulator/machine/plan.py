"""The plan of a life of machines, drawn from its seed: cluster (`simulator/engine/plan.py`), replicas, clients,
faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from buckram.config import BookieConfig
from buckram.state.machine.settings import MachineSettings
from buckram.types import DigestType
from simulator.engine.faults.registry import STREAMS
from simulator.engine.pace import LATE_S
from simulator.engine.plan import Plan, draw_independent_faults, make_cluster, set_pace
from simulator.machine.faults import OWN_FAULTS

DIGESTS = {DigestType.CRC32: "crc32", DigestType.CRC32C: "crc32c", DigestType.MAC: "mac", DigestType.DUMMY: "dummy"}
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
        cluster, shape = self.cluster, "/".join(map(str, self.cluster.shape))
        return (
            f"{cluster.bookies} bookies, {shape}, {cluster.metadata}, {cluster.pace}, replicas {self.replicas}, "
            f"{self.clients} clients with {self.commands} commands, {self.policy}, {self.settings}, "
            f"restless {self.restless:.2f}, crashes {self.crashing:.2f}, faults {cluster.faults}"
        )


def make_machine_plan(seed: int) -> MachinePlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"machines {seed}")
    cluster = make_cluster(seed)
    cluster.liar = cluster.attacker = cluster.hung_for_good = cluster.explicit = cluster.deferred = False
    cluster.racks, cluster.password, cluster.deleting, cluster.large = 0, b"", False, False
    cluster.again = cluster.late_wake = False
    cluster.busy_s = rng.choice((2.0, 4.0, 6.0))
    cluster.pace = replace(cluster.pace, late_s=min(cluster.pace.late_s, LATE_S))
    set_pace(cluster)
    cluster.configs.client = replace(cluster.configs.client, placement="rack:2")
    cluster.configs.bookie = BookieConfig()
    cluster.faults = cluster.faults[: rng.choice((0, 1, 2))]
    cluster.faults += rng.choices(list(OWN_FAULTS), list(OWN_FAULTS.values()), k=rng.choice((1, 2, 3)))
    none = rng.random() < 0.1
    draw_independent_faults(cluster, STREAMS)
    if cluster.bookies <= cluster.shape[0]:
        cluster.faults = [fault for fault in cluster.faults if fault != "wipe"]  # it leaves too few for new ledgers
    if none:
        cluster.faults = []
    plan = MachinePlan(cluster, _policy(rng, cluster), _settings(rng), ["good"] * rng.choice((2, 2, 3)))
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


def _policy(rng: random.Random, cluster: Plan) -> dict[str, Any]:
    return {
        "ensemble": "/".join(map(str, cluster.shape)),
        "digest": DIGESTS[cluster.digest],
        "roll_bytes": rng.choice((4096, 4096, 65536)),
        "roll_s": rng.choice((0.5, 2.0, 60.0)),
    }


__all__ = ["LIFE_S", "MachinePlan", "make_machine_plan"]
