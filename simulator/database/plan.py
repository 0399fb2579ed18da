"""The plan of a life of databases: that of a life of machines with its seed, and SQL settings."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.engine.plan import Plan
from simulator.machine.plan import MachinePlan, make_machine_plan

EXTRAS = ("looks", "bank", "schema", "newcomer", "deleter", "sleeper", "copies", "janitor", "network", "days")
"""Actors beside clients, replicas and forks, each in a third of the lives. New ones come last: they are drawn in order.

* looks: reads of all consistencies, and slow statements beside them
* bank: transfers between accounts, with foreign keys that are off at times
* schema: columns and indexes that come and go
* newcomer: a replica that begins empty and serves at once
* deleter: somebody empties the folder of the replicas' files
* sleeper: a leader sleeps for longer than its session lives, and wakes while another one leads
* copies: backups, restores and forks under load, which are used afterwards
* janitor: backups by a policy, by two processes
* network: clients of servers, over a network that loses answers
* days: days pass for all clocks at once
"""


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
    extras: tuple[str, ...] = ()
    """The wider actors of the life, of `EXTRAS`."""

    @property
    def seed(self) -> int:
        return self.machines.seed

    @property
    def cluster(self) -> Plan:
        return self.machines.cluster

    def __str__(self) -> str:
        return (
            f"{self.machines}, parts of {self.part_bytes}, cache {self.cache_kib} KiB, checkpoints after "
            f"{self.checkpoint_frames} frames, {self.forks} forks, beside {' '.join(self.extras) or 'nothing'}"
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
        extras=_extras(seed),
    )


def _extras(seed: int) -> tuple[str, ...]:
    """Draw the wider actors from random numbers of their own, so that they change nothing else of a life."""
    rng = random.Random(f"wider databases {seed}")
    return tuple(name for name in EXTRAS if rng.random() < 0.35)


__all__ = ["EXTRAS", "DatabasePlan", "make_database_plan"]
