"""The plan of a life of self-healing, drawn from its seed: the cluster, the workers and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from buckram.config import BookieConfig, ClientConfig, HealingConfig, NetConfig
from buckram.types import DigestType
from simulator.engine.plan import Plan, draw_sites
from simulator.engine.world import Configs

SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1), (4, 3, 2), (4, 2, 2))
FAULTS = (
    "late bookie",
    "crash worker",
    "expire worker",
    "cut worker",
    "disable",
    "second loss",
    "crash bookie",
    "decommission",
    "delay",
    "check",
    "bad mark",
    "copies gone",
    "full",
    "new bookie",
    "cut auditor",
)
HANGS = "hang bookie"
"""The fault of a bookie that is paused for a while and resumes; the share of the lives with it is HANGING."""
CUT_MEMBER, HANG_AT_CLOSE, AWAY_TWICE = ABSENT = "cut member", "hang at close", "away twice"
"""The faults by which a member misses a part of a ledger although it is registered when that is closed
(`absences.py`)."""
MISSING = 0.25
"""Share of the lives with one of the faults ABSENT."""
HANGING, MUTE = 0.35, 0.3
"""Share of the lives with the fault HANGS, and share of these whose clients note nothing and that have no other
faults."""
ASKED = {"drain": 0.15, "replace": 0.08, "maintenance": 0.12, "rebalance": 0.12}
"""Share of the lives with each command of operators."""
RACKS, BOOKIES_OF_A_RACK = 3, 2
"""Number of racks under a rule of racks, and bookies of each: one rack is no more than a third of all bookies."""
SPREAD = 2
"""Number of racks that each write quorum spans under the rule."""


@dataclass(slots=True)
class HealingPlan:
    """The plan of a life of self-healing. `cluster` is the part that the engine's faults use."""

    cluster: Plan
    config: HealingConfig
    auditors: int
    replicators: int
    ledgers: int
    lost: int
    """Number of bookies that are lost for good."""
    readers: int = 0
    recoverers: int = 0
    deleters: int = 0
    streams: bool = False
    """True if some ledgers are a stream's, whose writer has a lease."""
    mute: bool = False
    """True if clients do not note ledgers that lack copies, as Apache's: known is only which bookies were away."""

    @property
    def tampered(self) -> bool:
        """Return whether bookies deny entries that they had: then messages are not the truth, and are not judged."""
        return "copies gone" in self.cluster.faults

    def location(self, number: int) -> str | None:
        """Return the rack of a bookie; None if the life has no racks."""
        return f"/rack{number % self.cluster.racks}" if self.cluster.racks else None

    @property
    def seed(self) -> int:
        return self.cluster.seed

    def __str__(self) -> str:
        return (
            f"{self.cluster}, {self.auditors} auditors, {self.replicators} replicators, {self.ledgers} ledgers, "
            f"{self.lost} lost, {self.readers}+{self.recoverers}+{self.deleters} readers, recoverers and deleters"
        )


def make_healing_plan(seed: int) -> HealingPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"healing {seed}")
    shape = rng.choice(SHAPES)
    bookies = shape[0] + rng.choice((0, 1, 1, 2, 3))
    configs = Configs(
        net=NetConfig(connect_timeout_s=1.0, request_timeout_s=1.0, sweep_interval_s=0.25),
        client=ClientConfig(idle_lac_ms=10.0, speculative_read_ms=20.0, quarantine_s=0.5),
    )
    faults = rng.sample(FAULTS, rng.choice((0, 1, 2, 3, 4)))
    cluster = Plan(seed, max(3, bookies), shape, rng.choice((DigestType.CRC32C, DigestType.MAC)), configs, faults)
    cluster.entries, cluster.busy_s = rng.choice((1, 5, 12, 30)), rng.choice((2.0, 6.0, 12.0))
    cluster.metadata = rng.choice(("memory", "memory", "zk+longhierarchical"))
    config = HealingConfig(
        lost_bookie_delay_s=rng.choice((1.0, 3.0)),
        bookie_check_interval_s=10.0,
        open_ledger_grace_s=rng.choice((3.0, 8.0)),
        copy_bytes_per_s=rng.choice((0, 20_000)),
        ledgers_at_once=rng.choice((1, 2, 4)),
        retry_s=1.0,
    )
    lost = 2 if "second loss" in faults else 1
    plan = HealingPlan(cluster, config, rng.choice((1, 2, 2)), rng.choice((1, 2, 3)), rng.choice((2, 4, 6)), lost)
    plan.readers, plan.recoverers = rng.choice((0, 1)), rng.choice((0, 0, 1))
    plan.deleters = rng.choice((0, 0, 1))
    _draw_rest(plan)
    return plan


def _draw_rest(plan: HealingPlan) -> None:
    """Draw the rest of the plan from random numbers of its own, so that it changes nothing else of a life."""
    cluster, rng = plan.cluster, random.Random(f"operators {plan.seed}")
    cluster.faults = [*cluster.faults, *(name for name, share in ASKED.items() if rng.random() < share)]
    if rng.random() < 0.3:
        cluster.collecting = True
        cluster.configs.bookie = BookieConfig(collection_interval_s=4.0, collection_age_s=6.0)
    mode = rng.random()
    cluster.explicit, cluster.deferred = mode < 0.06, 0.06 <= mode < 0.12
    plan.streams = rng.random() < 0.2
    hanging = random.Random(f"hangs {plan.seed}")
    if hanging.random() < HANGING:
        cluster.faults = [*cluster.faults, HANGS]
        plan.mute = hanging.random() < MUTE
        if plan.mute:  # without notes it is not known what a bookie refuses while it is registered
            cluster.faults = [HANGS]
    missing = random.Random(f"absences {plan.seed}")
    if missing.random() < MISSING:
        with_absence(plan, missing.choice(ABSENT))
    if rng.random() < 0.2:
        with_racks(plan)
        if rng.random() < 0.5:
            cluster.faults = [*cluster.faults, "lose rack"]
    draw_sites(cluster)


def with_absence(plan: HealingPlan, fault: str) -> None:
    """Have members miss a part of a ledger.

    Ledgers are written for long enough that it can come about, and need fewer answers than they have members. There is
    no spare bookie that could replace a member that one writer does not reach.
    """
    cluster = plan.cluster
    cluster.faults = [*cluster.faults, fault]
    cluster.entries, cluster.busy_s = 30, 12.0 if fault == CUT_MEMBER else 30.0
    if cluster.shape[1] == cluster.shape[2]:
        cluster.shape = (3, 3, 2)
        cluster.bookies = max(cluster.bookies, 3)
    if fault == CUT_MEMBER:
        cluster.shape, cluster.bookies = (3, 3, 2), 3


def with_racks(plan: HealingPlan) -> None:
    """Give the life a rule of racks, and bookies that can keep it."""
    cluster = plan.cluster
    cluster.explicit = cluster.deferred = False
    cluster.sites = 0
    cluster.racks, cluster.bookies = RACKS, max(cluster.bookies, RACKS * BOOKIES_OF_A_RACK)
    cluster.configs.client = replace(cluster.configs.client, placement=f"rack:{SPREAD} enforce")
    plan.config = replace(plan.config, lost_bookie_delay_s=6.0)


def with_shared_hosts(plan: HealingPlan) -> None:
    """Have two bookies on each of three hosts, and no rule but the default."""
    cluster = plan.cluster
    cluster.racks, cluster.sites, cluster.bookies = 0, 3, max(cluster.bookies, 6)
    cluster.configs.client = replace(cluster.configs.client, placement=ClientConfig().placement)


def most_bookies(cluster: Plan) -> int:
    """Return the maximum number of bookies in a life, including those that join."""
    return cluster.bookies + 2
