"""The plan of a life of objects, drawn from its seed: cluster (`simulator/engine/plan.py`), limits, putters, faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from buckram.state.machine.settings import MachineSettings
from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs
from simulator.objects.faults import OWN_FAULTS

LIFE_S = 12.0
"""Time during which putters are busy, virtual seconds (approximately)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of the code under test, in bytes and seconds."""

    small: int
    chunk: int
    pack: int
    entry: int
    search_s: float
    sweep_s: float = 1.0
    grace_s: float = 3.0
    turn_s: float = 0.3


@dataclass(slots=True)
class ObjectsPlan:
    """The plan of one life of objects. `cluster` is the part that the engine's faults and hosts need."""

    cluster: Plan
    policy: dict[str, Any]
    settings: MachineSettings
    sizes: Sizes
    putters: int = 2
    acts: int = 20
    """Number of acts of each putter; an act is a call, or a few at once."""
    names: int = 3
    """Number of names in each directory: with few of them calls meet more often."""
    crashing: float = 0.0
    """Chance that a putter's process crashes somewhere in the steps of an act."""
    cancelling: float = 0.0
    """Chance that an act is cancelled somewhere in its steps."""
    at_once: bool = False
    """True if putters sweep at once, too."""
    beside: bool = False
    """True if another store is filled and deleted meanwhile."""
    aimed: bool = False
    """True if calls are cancelled as their bytes are written, names replaced as their packs are rewritten, and objects
    that expire are looked at more often.
    """

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def calm(self) -> bool:
        """Return whether nothing is wrong in this life, so that every call has a result or a refusal."""
        return not (self.cluster.faults or self.crashing or self.cancelling)

    def __str__(self) -> str:
        cluster = self.cluster
        return (
            f"{cluster.beginning}, {self.putters} putters with "
            f"{self.acts} acts on {self.names} names, {self.sizes}, {self.policy}, {self.settings}, "
            f"crashes {self.crashing:.2f}, cancels {self.cancelling:.2f}{', sweeps at once' if self.at_once else ''}"
            f"{', a store beside' if self.beside else ''}{', aimed' if self.aimed else ''}, faults {cluster.faults}"
        )


def make_objects_plan(seed: int) -> ObjectsPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"objects {seed}")
    cluster = make_plain_cluster(seed)
    cluster.busy_s = rng.choice((3.0, 6.0, 9.0))
    # What expires is judged by the clocks of the hosts; faults set these wrong, and right again.
    cluster.pace = replace(cluster.pace, clocks_us=5_000_000, jumps=False)
    hurry(cluster)
    usual_configs(cluster)
    draw_faults(rng, cluster, OWN_FAULTS, (0, 0, 1, 2), (0, 1, 2, 3))
    policy = log_policy(rng, cluster, (4096, 65536), (2.0, 60.0))
    plan = ObjectsPlan(cluster, policy, _settings(rng), _sizes(rng))
    plan.putters, plan.acts = rng.choice((1, 2, 2, 3, 3)), rng.choice((20, 40, 60))
    plan.names = rng.choice((2, 3, 3))
    if cluster.faults or rng.random() < 0.5:
        plan.crashing, plan.cancelling = rng.choice((0.0, 0.05, 0.15)), rng.choice((0.0, 0.1, 0.3))
    plan.at_once, plan.beside = rng.random() < 0.4, rng.random() < 0.1
    plan.aimed = random.Random(f"aimed objects {seed}").random() < 0.3
    return plan


def _settings(rng: random.Random) -> MachineSettings:
    return MachineSettings(
        snapshot_commands=rng.choice((5, 20, 60)),
        digest_commands=rng.choice((3, 10)),
        linger_ms=rng.choice((0.0, 2.0, 50.0)),
        max_pending=rng.choice((1, 1024)),
    )


def _sizes(rng: random.Random) -> Sizes:
    return Sizes(
        small=rng.choice((100, 200)),
        chunk=rng.choice((32, 100)),
        pack=rng.choice((200, 600, 2000)),
        entry=rng.choice((100, 250)),
        search_s=rng.choice((2.0, 20.0)),
    )


__all__ = ["LIFE_S", "ObjectsPlan", "Sizes", "make_objects_plan"]
