"""Shared state of the actors of a life of streams, and the actor itself: a client host that restarts after it died."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from buckram.cluster import Client
from buckram.core.streams.policy import Policy, merged
from buckram.errors import BuckramError
from buckram.namespace import Namespace
from simulator.engine.checkers.judge import describe
from simulator.engine.loop import Process
from simulator.engine.metadata import HOST
from simulator.engine.plan import Plan
from simulator.engine.world import Died, World
from simulator.streams.facts import Content, Facts, ReaderSession, StreamHistory
from simulator.streams.heads import HeadWatch
from simulator.streams.plan import StreamPlan
from simulator.streams.rules import Rules

T = TypeVar("T")
NAMESPACE = "default"


def full(stream: str) -> str:
    """Return the name of the stream with its namespace."""
    return f"{NAMESPACE}/{stream}"


@dataclass(slots=True)
class Producer:
    """An application with an id that survives its process: it repeats records that were not acknowledged.

    `acked` is the highest sequence that was acknowledged with all before it, `sent` the highest that was sent.
    """

    name: str
    stream: str
    acked: int = -1
    sent: int = -1

    def content(self, sequence: int) -> tuple[str, Content]:
        """Return identity and content of the record with this sequence."""
        ident = f"{self.name}#{sequence}"
        return ident, Content(f"{ident}|".encode() + bytes(sequence * 37 % 200), producer=self.name, sequence=sequence)


@dataclass(slots=True, eq=False)
class Stage:
    """Shared state of the actors of one life. `plan` is the plan of its cluster, which faults use."""

    world: World
    streams: StreamPlan
    facts: Facts = field(default_factory=Facts)
    over: bool = False
    txids: dict[str, int] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    producers: list[Producer] = field(default_factory=list)
    tails: list[tuple[Process, ReaderSession]] = field(default_factory=list)
    rules: Rules = field(init=False)
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        self.rules = Rules(self.facts, world.report, world.loop.time)
        self.policy = merged(self.streams.policy)
        world.metadata.observers.append(
            HeadWatch(
                self.facts, world.judge.facts, world.report, world.stores.layout, self.policy, self._allowed_by_policy
            )
        )

    @property
    def plan(self) -> Plan:
        return self.streams.cluster

    def _allowed_by_policy(self, history: StreamHistory, who: str, before: int, to: int) -> bool:
        """Return whether retention allows a truncation to the offset `to`, by one of the reasons in the policy."""
        policy, client, head = self.policy, self.clients.get(who), history.head
        if client is None or head is None:
            return False
        offsets = [offset for (uid, _), offset in self.facts.cursors.items() if uid == history.uid]
        if policy.retention_cursors and offsets and to > min(offsets):
            return False
        if policy.retention_consumed and offsets and to <= min(offsets):
            return True
        if policy.retention_s is not None:
            cutoff = client.services.runtime.clock.wall_us() - int(policy.retention_s * 1e6)
            times = [
                history.known_records[offset].time for offset in range(before, to) if offset in history.known_records
            ]
            if all(time is None or time < cutoff for time in times):
                return True
        if policy.retention_bytes is not None:
            # The size may be from before or after a compaction, whose copies are a little smaller.
            now = [row for row in history.listed.values() if row.base >= to]
            ever = [*now, *(row for row in history.retired.values() if row.base >= to)]
            return any(
                sum(row.summary.bytes for row in rows if row.summary is not None) >= policy.retention_bytes
                for rows in (now, ever)
            )
        return False


class Actor:
    """A client host with its own randomness. Its process may die at any time; `up` brings another one."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.streams, host
        self.facts, self.rules, self.report = stage.facts, stage.rules, stage.world.report
        self.rng = random.Random(f"{stage.streams.seed} streams {host}")
        self.client: Client | None = None
        self.doing = ""
        """The operation that a crash now would interrupt."""

    async def run(self) -> None:
        """Act until the life is over."""

    @property
    def process(self) -> Process:
        return self.world.processes[self.host]

    @property
    def alive(self) -> bool:
        return self.client is not None and not self.process.dead

    @property
    def ns(self) -> Namespace:
        assert self.client is not None
        return self.client.namespace(NAMESPACE)

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    def undisturbed(self, for_s: float = 10.0) -> bool:
        """Return whether the host and the metadata store had no fault in the last `for_s` seconds."""
        since = self.world.loop.time() - for_s
        return self.world.steady(self.host, since) and self.world.steady(HOST, since)

    async def up(self, tries: int = 5) -> bool:
        """Start a client unless there is one in a living process. Return whether there is one in the end."""
        if self.alive:
            return True
        self.client = None
        self.stage.clients.pop(self.host, None)  # it died with its process
        for _ in range(tries):
            try:
                self.client = self.stage.clients[self.host] = await self.world.client(self.host)
                return True
            except (BuckramError, Died) as error:
                self.note(f"cannot connect: {describe(error)}")
                await asyncio.sleep(0.3)
        return False

    async def inside(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run the coroutine as code of the process and return its result. Raises Died if the process dies."""
        return await self.world.join(self.process, work, name)

    def maybe_crash(self, within: int) -> bool:
        """Plan a crash in the next `within` steps of the process, by the plan's chance. Return whether it did."""
        if self.stage.over or self.rng.random() >= self.plan.crashing:
            return False
        self.process.crash_after(int(self.rng.random() * within))
        self.world.disturb(self.host, 1)
        return True

    def no_crash(self) -> None:
        """Cancel a planned crash."""
        self.process.crash_after(1 << 60)

    async def nap(self, most_s: float) -> None:
        """Sleep for a random time of at most `most_s` seconds."""
        await asyncio.sleep(self.rng.random() * most_s)


__all__ = ["NAMESPACE", "Actor", "Producer", "Stage", "full"]
