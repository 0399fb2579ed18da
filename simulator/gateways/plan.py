"""The plan of a life of gateways, drawn from its seed: cluster (`simulator/engine/plan.py`), gateways, clients, limits,
faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs
from simulator.gateways.faults import OWN_FAULTS

LIFE_S = 10.0
"""Time during which clients are busy, virtual seconds (approximately)."""
KINDS = ("sequences", "keys", "plain", "conditions")
"""The ways in which clients append."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of the gateways, so small that few requests and seconds reach them."""

    append_wait_s: float
    writer_idle_s: float
    tails: int
    ring_bytes: int
    gather_s: float
    page_bytes: int
    behind_bytes: int
    """Bytes of a page of a tail that is behind."""
    listed: int
    """Entries of a directory in one page of a listing."""
    uploads: int
    """Uploads of the namespace that may be open."""


@dataclass(slots=True)
class GatewaysPlan:
    """The plan of one life of gateways. `cluster` is the part that the engine's faults and hosts need."""

    cluster: Plan
    policy: dict[str, Any]
    sizes: Sizes
    gateways: int = 2
    streams: int = 1
    writers: int = 2
    appends: int = 10
    """Number of appends of each writer."""
    kinds: tuple[str, ...] = KINDS
    tails: int = 1
    pagers: int = 1
    filers: int = 0
    putters: int = 0
    calls: int = 8
    """Number of calls of each client of files and objects."""
    impatience: float = 0.0
    """Chance that a client leaves before its answer, or cuts its body."""

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def gateway_hosts(self) -> list[str]:
        return [f"g{number + 1}" for number in range(self.gateways)]

    @property
    def stream_names(self) -> list[str]:
        return [f"s{number + 1}" for number in range(self.streams)]

    def only(self, busy: str) -> None:
        """Have clients do this most: one of KINDS, or tails, pages, files, objects."""
        self.filers = self.putters = 0
        self.gateways = max(self.gateways, 2)
        self.impatience = max(self.impatience, 0.2)
        if busy in KINDS:
            self.kinds, self.writers, self.appends = (busy,), 2, 16
        elif busy == "tails":
            self.tails, self.writers, self.appends = 3, 2, 16
            self.sizes = replace(self.sizes, ring_bytes=300, behind_bytes=200)
        elif busy == "pages":
            self.pagers, self.writers, self.appends = 2, 2, 16
        else:
            self.writers = self.tails = self.pagers = 0
            if busy == "files":
                self.filers, self.calls = 3, 30
                self.sizes = replace(self.sizes, listed=2)
            else:
                self.putters, self.calls = 3, 20

    def __str__(self) -> str:
        cluster = self.cluster
        return (
            f"{cluster.beginning}, {self.gateways} gateways, "
            f"{self.streams} streams, {self.writers} writers with {self.appends} appends {self.kinds}, "
            f"{self.tails} tails, {self.pagers} pagers, {self.filers} filers and {self.putters} putters with "
            f"{self.calls} calls, {self.sizes}, {self.policy}, impatience {self.impatience:.2f}, "
            f"faults {cluster.faults}"
        )


def make_gateways_plan(seed: int) -> GatewaysPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"gateways {seed}")
    cluster = make_plain_cluster(seed)
    cluster.busy_s = rng.choice((2.0, 4.0, 6.0))
    hurry(cluster)
    usual_configs(cluster)
    draw_faults(rng, cluster, OWN_FAULTS, (0, 0, 1, 2), (1, 2, 3))
    policy = log_policy(rng, cluster, (4096, 4096, 65536), (0.5, 2.0, 60.0))
    plan = GatewaysPlan(cluster, policy, _sizes(rng))
    plan.gateways, plan.streams = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    plan.writers, plan.appends = rng.choice((1, 2, 2)), rng.choice((4, 8, 14))
    plan.kinds = rng.choice((KINDS, KINDS, ("sequences",), ("keys",), ("sequences", "plain")))
    plan.tails, plan.pagers = rng.choice((0, 1, 1, 2)), rng.choice((0, 1))
    if rng.random() < 0.6:
        plan.filers, plan.calls = rng.choice((1, 2, 3)), rng.choice((10, 20))
    if rng.random() < 0.5:
        plan.putters, plan.calls = rng.choice((1, 2, 3)), rng.choice((8, 16))
    plan.impatience = 0.0 if not cluster.faults else rng.choice((0.0, 0.1, 0.3))
    return plan


def _sizes(rng: random.Random) -> Sizes:
    return Sizes(
        append_wait_s=rng.choice((1.0, 3.0, 30.0)),
        writer_idle_s=rng.choice((0.5, 2.0, 60.0)),
        tails=rng.choice((1, 2, 100)),
        ring_bytes=rng.choice((300, 1000, 100_000)),
        gather_s=rng.choice((0.0, 0.1, 0.5)),
        page_bytes=rng.choice((50, 400, 100_000)),
        behind_bytes=rng.choice((200, 100_000)),
        listed=rng.choice((1, 2, 1000)),
        uploads=rng.choice((1, 2, 4)),
    )


__all__ = ["KINDS", "LIFE_S", "GatewaysPlan", "Sizes", "make_gateways_plan"]
