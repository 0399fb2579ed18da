"""The plan of a life of archives, drawn from its seed: cluster, policy, place, who acts, faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.archives.faults import OWN_FAULTS
from simulator.archives.place import BUCKET, ROOT
from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs

LIFE_S = 7.0
"""Time during which actors are busy, virtual seconds (approximately)."""
ACTORS = ("offloader", "exporter", "importer", "forker", "truncator", "compactor", "deleter", "janitor", "publisher")
"""The actors that a life may have besides writers and readers, one host each."""
_SHARES = {"forker": 0.65, "offloader": 0.6, "janitor": 0.6, "exporter": 0.35, "deleter": 0.35}


@dataclass(slots=True)
class ArchivesPlan:
    """The plan of one life of archives. `cluster` is the part that the engine's faults and hosts need."""

    cluster: Plan
    policy: dict[str, Any]
    place: str
    """Where history and exports are: a directory that is synced, or a store of objects."""
    streams: list[str]
    actors: list[str]
    readers: int = 2
    crashing: float = 0.0
    """Chance that the process of an actor dies somewhere in an act."""
    part_entries: int = 65_536
    """Number of entries in one part."""
    small_pages: bool = False
    two_exporters: bool = False
    listed_places: bool = False
    """True if the janitor is told at which places history may be."""
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def faults(self) -> list[str]:
        return self.cluster.faults

    def __str__(self) -> str:
        cluster = self.cluster
        return (
            f"{cluster.beginning}, streams {self.streams}, "
            f"{self.policy}, {self.place}, {' '.join(self.actors)}{' twice' if self.two_exporters else ''}, "
            f"{self.readers} readers, parts of {self.part_entries}{', small pages' if self.small_pages else ''}"
            f"{', listed places' if self.listed_places else ''}, crashes {self.crashing:.2f}, faults {cluster.faults}"
        )


def make_archives_plan(seed: int) -> ArchivesPlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"archives {seed}")
    cluster = make_plain_cluster(seed)
    cluster.busy_s = rng.choice((2.0, 4.0, 6.0))
    cluster.pace = replace(cluster.pace, clocks_us=50_000, jumps=False)
    hurry(cluster)
    usual_configs(cluster, join_segments=rng.choice((0, 0, 3)))
    draw_faults(rng, cluster, OWN_FAULTS, (0, 0, 1, 1), (0, 1, 2, 3))
    place = rng.choice((ROOT, ROOT, BUCKET))
    actors = [name for name in ACTORS if rng.random() < _SHARES.get(name, 0.3)]
    plan = ArchivesPlan(cluster, _policy(rng, cluster, place), place, ["one", "two"][: rng.choice((1, 1, 2))], actors)
    plan.readers = rng.choice((1, 2))
    plan.crashing = rng.choice((0.0, 0.1, 0.3))
    plan.part_entries = rng.choice((2, 5, 65_536))
    plan.small_pages = rng.random() < 0.5
    plan.two_exporters = rng.random() < 0.4
    plan.listed_places = rng.random() < 0.5
    return plan


def _policy(rng: random.Random, cluster: Plan, place: str) -> dict[str, Any]:
    policy = log_policy(rng, cluster, (4096, 4096, 16_384), (0.3, 1.0, 60.0))
    policy["compression"] = rng.choice(("none", "none", "zstd"))
    kind = rng.random()
    if kind < 0.15:
        policy["retention_s"] = rng.choice((1.0, 3.0))
    elif kind < 0.4:
        policy["retention_bytes"] = rng.choice((2000, 8000))
    elif kind < 0.5:
        policy["retention_consumed"] = True
    if kind < 0.4 and rng.random() < 0.7:
        policy["retention_cursors"] = True
    if rng.random() < 0.5:
        policy["offload_to"] = place
        if rng.random() < 0.5:
            policy["offload_bytes"] = rng.choice((0, 3000))
        else:
            policy["offload_after_s"] = rng.choice((0.2, 1.5))
    return policy


__all__ = ["ACTORS", "LIFE_S", "ArchivesPlan", "make_archives_plan"]
