"""The plan of a life of administration, drawn from its seed: the cluster, the commands and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from buckram.config import BookieConfig, ClientConfig, HealingConfig, NetConfig
from buckram.types import DigestType
from simulator.administration.names import COMMANDS
from simulator.engine.pace import Pace, draw_pace
from simulator.engine.plan import Plan, draw_sites, set_pace
from simulator.engine.world import Configs

SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2))
FAULTS = (
    "kill",
    "power",
    "power all",
    "crash at op",
    "crash at await",
    "pause bookie",
    "metadata loss",
    "metadata down",
    "expire",
    "hang bookie",
    "hang healer",
    "views",
    "full",
    "swap",
    "copy",
    "twin",
    "roll back",
)
ROLLED_BACK = "roll back"
"""The fault that loses acknowledged copies of one bookie."""
HISTORIES = ("restore", "move-metadata")
"""Commands after which the past of the metadata is another one."""


@dataclass(slots=True)
class AdminPlan:
    """The plan of a life of administration. `cluster` is the part that the engine's faults use."""

    cluster: Plan
    config: HealingConfig
    commands: list[str]
    administrators: int = 1
    auditors: int = 2
    replicators: int = 2
    writers: int = 2
    ledgers: int = 3
    """Number of ledgers that each writer writes, one after the other."""
    readers: int = 1
    deleters: int = 0
    killing: float = 0.4
    """Chance that an attempt at a command is killed at some step."""
    hanging: float = 0.1
    """Chance that an attempt at a command hangs for minutes, while the next one goes on."""
    watching: bool = True
    """True if status is watched by one process that looks again and again; False: each look is another process's."""
    addressed: bool = True
    """True if the ids of bookies are their addresses, as by default: then one without a registration can be asked."""

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def historic(self) -> bool:
        """Return whether the metadata become others in this life."""
        return any(name in HISTORIES for name in self.commands)

    def __str__(self) -> str:
        return (
            f"{self.cluster}, commands {self.commands} of {self.administrators}, {self.auditors} auditors, "
            f"{self.replicators} replicators, {self.writers} writers, {self.readers}+{self.deleters} others, "
            f"killing {self.killing}, hanging {self.hanging}"
        )


def make_admin_plan(seed: int) -> AdminPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"administration {seed}")
    shape = rng.choice(SHAPES)
    configs = Configs(
        net=NetConfig(connect_timeout_s=1.0, request_timeout_s=1.0, sweep_interval_s=0.25),
        client=ClientConfig(idle_lac_ms=10.0, speculative_read_ms=20.0, quarantine_s=0.5),
        bookie=BookieConfig(collection_interval_s=4.0, collection_age_s=6.0),
    )
    digest = rng.choice((DigestType.CRC32C, DigestType.MAC))
    bookies = shape[0] + rng.choice((1, 1, 2, 3))
    cluster = Plan(seed, bookies, shape, digest, configs, rng.sample(FAULTS, rng.choice((0, 1, 2, 3))))
    cluster.entries, cluster.busy_s, cluster.collecting = rng.choice((2, 6, 12)), rng.choice((4.0, 10.0)), True
    cluster.metadata = rng.choice(("memory", "memory", "memory", "zk+longhierarchical"))
    config = HealingConfig(
        lost_bookie_delay_s=rng.choice((1.0, 3.0)),
        bookie_check_interval_s=10.0,
        copies_check_interval_s=rng.choice((20.0, 40.0)),
        open_ledger_grace_s=rng.choice((3.0, 8.0)),
        copy_bytes_per_s=rng.choice((0, 20_000, 4_000)),
        ledgers_at_once=rng.choice((1, 2, 4)),
        retry_s=1.0,
    )
    plan = AdminPlan(cluster, config, rng.sample(COMMANDS, rng.choice((1, 2, 3, 4))))
    plan.administrators = rng.choice((1, 1, 2))
    plan.auditors, plan.replicators = rng.choice((1, 2, 2)), rng.choice((1, 2))
    plan.writers, plan.ledgers = rng.choice((1, 2, 3)), rng.choice((1, 2, 4))
    plan.readers, plan.deleters = rng.choice((0, 1)), rng.choice((0, 1))
    plan.killing, plan.hanging = rng.choice((0.0, 0.4, 0.7)), rng.choice((0.0, 0.1, 0.3))
    plan.watching, plan.addressed = rng.random() < 0.6, rng.random() < 0.6
    cluster.pace = Pace(disks=draw_pace(seed, most_bookies(plan)).disks)
    set_pace(cluster)
    suit(plan)
    draw_sites(cluster)
    return plan


def place(plan: AdminPlan, number: int) -> tuple[str, str]:
    """Return the id and the host of a bookie."""
    return (f"b{number}:3181" if plan.addressed else f"b{number}"), f"b{number}"


def suit(plan: AdminPlan) -> None:
    """Make a plan whose commands and faults go together."""
    cluster = plan.cluster
    if "restore" in plan.commands:
        plan.commands = ["backup", *[name for name in plan.commands if name != "backup"]]
        plan.deleters = max(plan.deleters, 1)
    if "move-metadata" in plan.commands:
        cluster.metadata = "memory"
    if plan.historic:
        plan.administrators = 1
    if ROLLED_BACK in cluster.faults and cluster.shape[2] < 2:
        cluster.faults.remove(ROLLED_BACK)


def most_bookies(plan: AdminPlan) -> int:
    """Return the maximum number of bookies in a life, including those that join."""
    return plan.cluster.bookies + 3
