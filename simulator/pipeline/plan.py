"""The plan of a life of pipelines, drawn from its seed: cluster (`simulator/engine/plan.py`), inputs, queries, and what
goes wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.engine.plan import Plan, draw_faults, hurry, log_policy, make_plain_cluster, usual_configs

KINDS = ("stream", "stream", "stream", "byStream", "byStream", "pattern", "pattern", "database")
"""Where rows come from and go to: one stream or a few to one stream, to many (`byStream`), by a pattern to one stream,
or to a table of a database."""
ACTS = {
    "copy": 3.0,
    "older copy": 4.0,
    "delete": 3.0,
    "fork": 3.0,
    "move": 2.0,
    "options": 3.0,
    "anew": 3.0,
    "nothing": 2.0,
}
"""What somebody does to a query between two of its runs, by weight (`operating.py`)."""
VANDALISM = {"truncate": 3.0, "make anew": 2.0, "add": 2.0, "hold": 2.0, "trim": 2.0}
"""What somebody does to streams while queries run, by weight (`producing.py`)."""


@dataclass(slots=True)
class PipelinePlan:
    """The plan of one life. `cluster` is the part that the engine's faults and hosts need."""

    cluster: Plan
    policy: dict[str, Any]
    kind: str = "stream"
    inputs: int = 1
    records: int = 40
    """About how many records each input gets."""
    starting: str = "earliest"
    source: dict[str, str] = field(default_factory=dict)
    """Further options of the source, by their names."""
    sink: dict[str, str] = field(default_factory=dict)
    named: bool = False
    """True if the query has a name, txnAppId."""
    local: bool = False
    """True if the checkpoint is in the driver's file system, where the sink can read it."""
    shuffled: bool = False
    runs: int = 6
    """Number of runs of the query before the end, not counting those that only go on."""
    acts: list[str] = field(default_factory=list)
    vandalism: list[str] = field(default_factory=list)
    killing: float = 0.1
    """Chance that the driver dies at each step of a batch."""
    failing: float = 0.1
    """Chance that an executor dies in the middle of an attempt."""
    speculating: float = 0.1

    @property
    def seed(self) -> int:
        return self.cluster.seed

    @property
    def calm(self) -> bool:
        """Return whether nothing happens in the life by which a query might end with an error."""
        spoilt = any(act not in ("move", "options", "nothing") for act in self.acts) or self.vandalism
        return not (self.cluster.faults or self.killing or self.failing or spoilt)

    def __str__(self) -> str:
        cluster = self.cluster
        return (
            f"{cluster.beginning}, {self.kind} of {self.inputs} "
            f"with {self.records} records from {self.starting}, {self.source}, {self.sink}, {self.policy}, "
            f"{'named ' * self.named}{'local ' * self.local}{'shuffled ' * self.shuffled}{self.runs} runs, "
            f"{self.acts}, {self.vandalism}, kills {self.killing}, failures {self.failing}, twice {self.speculating}, "
            f"faults {cluster.faults}"
        )


def make_pipeline_plan(seed: int) -> PipelinePlan:
    """Return the plan of the seed's life."""
    rng = random.Random(f"pipelines {seed}")
    cluster = make_plain_cluster(seed)
    cluster.busy_s = rng.choice((4.0, 8.0))
    hurry(cluster)
    usual_configs(cluster)
    draw_faults(rng, cluster, {"kill": 2.0, "pause client": 1.0}, (0, 0, 1), (0, 0, 1, 2))
    cluster.faults = [fault for fault in cluster.faults if fault not in ("crash client",)]
    plan = PipelinePlan(cluster, log_policy(rng, cluster, (4096, 4096, 65536), (0.5, 2.0, 60.0)))
    plan.kind, plan.records = rng.choice(KINDS), rng.choice((10, 25, 40, 60))
    plan.inputs = rng.choice((1, 1, 2, 3)) if plan.kind != "pattern" else rng.choice((1, 2, 3))
    plan.starting = rng.choice(("earliest", "earliest", "earliest", "latest"))
    plan.source, plan.sink = draw_source(rng), draw_sink(rng)
    plan.named, plan.local = rng.random() < 0.3, rng.random() < 0.3
    plan.shuffled, plan.runs = rng.random() < 0.3, rng.choice((4, 6, 9))
    plan.acts = rng.choices(list(ACTS), list(ACTS.values()), k=rng.choice((1, 2, 3)))
    plan.vandalism = rng.choices(list(VANDALISM), list(VANDALISM.values()), k=rng.choice((0, 1, 1, 2)))
    plan.killing = rng.choice((0.0, 0.08, 0.2))
    plan.failing, plan.speculating = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.2, 0.5))
    return plan


def draw_source(rng: random.Random) -> dict[str, str]:
    """Draw options of a source that may change between runs."""
    found = {"maxPartitionBytes": rng.choice(("100", "1k", "1m")), "failOnDataLoss": "true"}
    if rng.random() < 0.5:
        found["minPartitions"] = rng.choice(("2", "3", "5"))
    elif rng.random() < 0.5:
        found["maxRecordsPerPartition"] = rng.choice(("3", "10"))
    if rng.random() < 0.6:
        found["maxOffsetsPerTrigger"] = rng.choice(("3", "7", "20"))
    elif rng.random() < 0.3:
        found["maxBytesPerTrigger"] = rng.choice(("200", "500"))
    if rng.random() < 0.25:
        found["cursor"] = "reader"
    return found


def draw_sink(rng: random.Random) -> dict[str, str]:
    """Draw options of a sink of streams that may change between runs."""
    return {"smallPartBytes": rng.choice(("1", "100", "256k")), "segmentBytes": rng.choice(("100", "1k", "64m"))}


def suit(plan: PipelinePlan, **life: Any) -> None:
    """Have a life be as these fields say; `lag_s` is how far a server of its metadata store lags,
    seconds, `calm` whether nothing else happens."""
    if lag_s := life.pop("lag_s", 0.0):
        plan.cluster.metadata, plan.cluster.pace = "zk+flat", replace(plan.cluster.pace, lag_s=lag_s)
    if life.pop("calm", False):
        plan.cluster.faults, plan.acts, plan.vandalism = [], [], []
        plan.killing = plan.failing = 0.0
    for name, value in life.items():
        if not hasattr(plan, name):
            raise AttributeError(name)
        setattr(plan, name, {**getattr(plan, name), **value} if isinstance(value, dict) else value)


__all__ = ["PipelinePlan", "draw_sink", "draw_source", "make_pipeline_plan", "suit"]
