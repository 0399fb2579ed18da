"""Shared state of the actors of a life of archives, the rules of what is read, and the actor itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.errors import BuckramError
from buckram.namespace import Namespace
from buckram.streams.shared.metadata import StreamStore
from simulator.archives.model import Model, Stream
from simulator.archives.place import Place
from simulator.archives.plan import ArchivesPlan
from simulator.archives.watching import Watch
from simulator.engine.checkers.judge import describe
from simulator.engine.loop import Crashed, Process
from simulator.engine.plan import Plan
from simulator.engine.world import Died, World

T = TypeVar("T")
NAMESPACE = "default"
WORK_S = 120.0
"""Deadline of one act in which nothing may hang for ever, virtual seconds."""
_SLACK_S = 0.5
"""By how much clocks may differ here."""


def full(stream: str) -> str:
    """Return the name of the stream with its namespace."""
    return f"{NAMESPACE}/{stream}"


@dataclass(slots=True, eq=False)
class Stage:
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    archives: ArchivesPlan
    model: Model = field(default_factory=Model)
    over: bool = False
    began: dict[str, float] = field(default_factory=dict)
    """When each host began its present act."""
    busy: dict[str, Stream] = field(default_factory=dict)
    """The stream that each host is working at: whoever spoils things spoils these first."""
    sent_at: dict[str, float] = field(default_factory=dict)
    """When each record was sent, by its label."""
    place: Place = field(init=False)
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        self.place = Place(world.loop, random.Random(f"place {self.archives.seed}"))
        self.policy = merged(self.archives.policy)
        world.loop.job_late_s = self.place.job_late_s
        layout = world.stores.layout
        watch = Watch(self.model, self.place, world.report, layout, self.policy, self._may_truncate)
        world.metadata.observers.append(watch)

    @property
    def plan(self) -> Plan:
        return self.archives.cluster

    # -- the policy, by rules of its own

    def _may_truncate(self, stream: Stream, who: str, before: int, to: int) -> str:
        """Return why retention does not allow this; "" if it does."""
        policy, now = self.policy, self.world.loop.time()
        # What a cursor says that was made during this pass of the janitor may come too late for it.
        cursors = [at for at, made in stream.cursors.values() if made < self.began.get(who, 0.0)]
        if policy.retention_cursors and cursors and to > min(cursors):
            return f"a cursor stands at {min(cursors)}"
        if policy.retention_cursors and cursors and to == min(cursors):
            self.world.report.situation("retention stopped at a cursor")
        everyone = [at for at, _ in stream.cursors.values()]
        if policy.retention_consumed and everyone and to <= min(everyone):
            return ""
        if policy.retention_s is not None:
            labels = [stream.record(offset) for offset in range(before, to)]
            times = [self.sent_at.get(label, 0.0) for label in labels if label is not None]
            if all(now - time > policy.retention_s - _SLACK_S for time in times):
                return ""
        if policy.retention_bytes is not None:
            kept = [row for row in stream.listed_ever.values() if row.base >= to and row.summary is not None]
            if sum(row.summary.bytes for row in kept if row.summary is not None) >= policy.retention_bytes:
                return ""
        return "no reason in the policy holds"

    # -- what is acknowledged and read

    def send(self, stream: Stream, label: str) -> None:
        """Note that a record is sent to this stream."""
        self.model.sent[label] = stream.uid
        self.sent_at[label] = self.world.loop.time()

    def note(self, stream: Stream, offset: int, label: str, who: str) -> None:
        """Check and keep what somebody was told to be at an offset."""
        report, owner = self.world.report, stream.owner(offset)
        sent_to = self.model.sent.get(label)
        report.check(
            "authentic",
            sent_to == owner.uid,
            "{} finds {!r} at offset {} of {}, which is {}'s; it was sent to {}",
            who,
            label,
            offset,
            stream.name,
            owner.uid,
            sent_to,
        )
        known = owner.known.setdefault(offset, label)
        report.check(
            "stable",
            known == label,
            "{} finds {} at offset {} of {}, where {} is",
            who,
            label,
            offset,
            stream.name,
            known,
        )
        place = owner.offset_of.setdefault(label, offset)
        report.check(
            "once", place == offset, "{} finds {} at {} of {}, and it is at {}", who, label, offset, stream, place
        )

    def acknowledge(self, stream: Stream, offset: int, label: str, sent: float, who: str) -> None:
        """Check and keep an append that succeeded."""
        self.note(stream, offset, label, who)
        self.world.report.check(
            "deleted",
            stream.deleted_at is None or sent <= stream.deleted_at,
            "{} is acknowledged in {}, which was deleted before",
            label,
            stream.name,
        )
        stream.acked[offset] = label
        self.model.acked += 1


class Actor:
    """A client host with its own randomness. Its process may die at any time; `up` brings another one."""

    died_as = ""
    """The situation in which it died in an act."""
    pause_s = 1.2
    first_s = 1.5
    steps = 250
    """About how many steps of its process an act takes, in one of which it may die."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.archives, host
        self.model, self.place, self.report = stage.model, stage.place, stage.world.report
        self.rng = random.Random(f"{stage.archives.seed} archives {host}")
        self.client: Client | None = None
        self.serial = 0

    # -- what a subclass brings

    async def act(self) -> None:
        """Do one thing, as code of the process."""
        raise NotImplementedError

    def died(self) -> None:
        """Handle the death of the process in an act."""

    # -- the rounds

    async def run(self) -> None:
        await self.nap(self.first_s)
        while not self.stage.over and await self.up():
            await self.once()
            await self.nap(self.pause_s)

    async def once(self) -> None:
        """Act once, and maybe die in it."""
        if self.rng.random() < self.plan.crashing and not self.stage.over:
            self.process.crash_after(int(self.rng.random() * self.steps))
            self.world.disturb(self.host, 0)
        self.stage.began[self.host] = self.world.loop.time()
        try:
            async with asyncio.timeout(WORK_S):
                await self.inside(self.act(), "act")
        except Died:
            self.note("died")
            if self.died_as:
                self.report.situation(self.died_as)
            self.died()
        except TimeoutError:
            self.report.check("ends", False, "{} is not done within {} s", self.host, WORK_S)
        except BuckramError as error:
            self.note(f"failed: {describe(error)}: {error}")
        except Exception as error:
            self.report.violate("uncaught", f"in {self.host}: {error!r}")
        self.stage.busy.pop(self.host, None)
        if not self.process.dead:
            self.process.crash_after(1 << 60)

    # -- tools

    @property
    def process(self) -> Process:
        return self.world.processes[self.host]

    @property
    def ns(self) -> Namespace:
        assert self.client is not None
        return self.client.namespace(NAMESPACE)

    @property
    def streams(self) -> StreamStore:
        assert self.client is not None
        return StreamStore(self.client.services.store)

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    async def up(self, tries: int = 8) -> bool:
        """Start a client unless there is one in a living process. Return whether there is one in the end."""
        if self.client is not None and not self.process.dead:
            return True
        self.client = None
        for _ in range(tries):
            try:
                self.client = await self.world.client(self.host)
                return True
            except (BuckramError, Died) as error:
                self.note(f"cannot connect: {describe(error)}")
                await asyncio.sleep(0.3)
        return False

    async def inside(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run the coroutine as code of the process and return its result. Raises Died if the process dies."""
        try:
            return await self.world.join(self.process, work, name)
        except Crashed:  # It died in a call of the place, in this very coroutine.
            raise Died(self.host) from None

    async def nap(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.random() * most_s)

    def choose(self, *, forks: float = 0.5) -> Stream | None:
        """Return a living stream, with this chance a fork if there is any."""
        living = self.model.living()
        made = [stream for stream in living if stream.source is not None]
        if made and self.rng.random() < forks:
            return self.rng.choice(made)
        rest = [stream for stream in living if stream.source is None]
        return self.rng.choice(rest or living) if living else None

    def at_work(self, stream: Stream) -> Stream:
        """Say that this actor works at the stream until its act is over."""
        self.stage.busy[self.host] = stream
        return stream

    def victim(self, hosts: str) -> Stream | None:
        """Return a living stream that one of these hosts, by their first letters, is working at; None if none is."""
        busy = [one for host, one in self.stage.busy.items() if host[0] in hosts and host != self.host and one.usable]
        return self.rng.choice(busy) if busy else None

    def name_of(self, stream: Stream) -> StreamName:
        return StreamName(NAMESPACE, self.short(stream))

    @staticmethod
    def short(stream: Stream) -> str:
        return stream.name.partition("/")[2]

    def label(self, kind: str = "") -> str:
        """Return a label that nobody else has."""
        self.serial += 1
        return f"{kind}{self.host}.{self.serial}"


__all__ = ["NAMESPACE", "Actor", "Stage", "full"]
