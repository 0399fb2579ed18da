"""One life of databases: bookies, replicas, clients, forks and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from buckram.cluster import Client
from buckram.state.db.commits.database_log import PROPERTIES
from simulator.database.banking import Banker
from simulator.database.changing import SchemaChanger
from simulator.database.clients import ClientActor
from simulator.database.copying import CopyActor
from simulator.database.deleting import Deleter
from simulator.database.ending import Ending
from simulator.database.forking import ForkActor
from simulator.database.janitors import PLACE, POLICY, BackupWatch, JanitorActor
from simulator.database.looking import LookActor
from simulator.database.names import INVARIANTS, SITUATIONS
from simulator.database.net_clients import NetClient
from simulator.database.newcomers import NewcomerActor
from simulator.database.plan import DatabasePlan
from simulator.database.replicas import ReplicaActor
from simulator.database.rules import Rules
from simulator.database.serving import Servers
from simulator.database.sleeping import Days, Sleeper
from simulator.database.stage import Stage
from simulator.database.trouble import Troubled
from simulator.database.watching import small_limits, watch_databases
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.trace import Echo
from simulator.machine.faults import MACHINE, NAMESPACE
from simulator.machine.heads import HeadWatch
from simulator.machine.plan import LIFE_S

_MEMORY = Path("/dev/shm")


class Life(PlannedLife[DatabasePlan]):
    """One life of databases."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: DatabasePlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"database {plan.seed}", echo)
        world = self.world
        self._directory = tempfile.TemporaryDirectory(
            prefix="buckram-sim-", dir=_MEMORY if _MEMORY.is_dir() else None, ignore_cleanup_errors=True
        )
        self.rules = Rules(world)
        keep = plan.machines.settings.keep_snapshots
        world.metadata.observers.append(HeadWatch(world.judge.facts, world.report, world.stores.layout, keep))
        self.stage = Stage(world, plan.machines, self.rules, Path(self._directory.name))
        if "network" in plan.extras:
            self.stage.servers = Servers(world, plan.machines.settings, self.stage.directory)
        self._place = self.stage.directory / PLACE
        self._backups = BackupWatch(self.rules, self._place)
        if "janitor" in plan.extras:
            world.metadata.observers.append(self._backups)
        self.faults = FaultRunner(self.stage)
        self._wider: list[asyncio.Task[None]] = []
        """The wider actors, which go on until the life is over."""
        self._bankers: list[Banker] = []

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        watching = watch_databases(self.world, self.rules)
        served = nullcontext() if self.stage.servers is None else self.stage.servers.watched()
        return self._directory, small_limits(self.plan), watching, served, watch_tasks(self.world)

    async def begin(self) -> None:
        plan, stage, world = self.plan.machines, self.stage, self.world
        client = await world.client("s1")
        await world.join(world.processes["s1"], self._create(client), "create")
        self._replicas = [
            self.start(ReplicaActor(stage, f"m{n + 1}").run(), f"m{n + 1}") for n in range(len(plan.replicas))
        ]
        await ClientActor(stage, "first").prepare()
        self.awaited = [self.start(ClientActor(stage, f"c{n + 1}").run(), f"c{n + 1}") for n in range(plan.clients)]
        self.awaited += [self.start(ForkActor(stage, n).run(), f"fork {n}") for n in range(self.plan.forks)]
        await self._begin_wider()
        self._between = self.start(Troubled(stage).run(), "leaders in trouble")

    async def _begin_wider(self) -> None:
        """Start the wider actors of the plan; those that need tables make them first."""
        stage, extras = self.stage, self.plan.extras
        if "looks" in extras:
            self._wider += [self.start(LookActor(stage, f"looks {n}").run(), f"looks {n}") for n in range(2)]
        if "bank" in extras:
            self._bankers = [Banker(stage, f"banker {n}") for n in range(2)]
            await self._bankers[0].prepare()
            self._wider += [self.start(banker.run(), banker.name) for banker in self._bankers]
        if "schema" in extras:
            changer = SchemaChanger(stage)
            await changer.prepare()
            self._wider.append(self.start(changer.run(), "schema"))
        if "newcomer" in extras:
            self._replicas.append(self.start(NewcomerActor(stage).run(), "newcomer"))
        if "deleter" in extras:
            self._wider.append(self.start(Deleter(stage).run(), "deleter"))
        if "sleeper" in extras:
            self._wider.append(self.start(Sleeper(stage).run(), "sleeper"))
        if stage.servers is not None:
            for client in (NetClient(stage, stage.servers, f"n{n + 1}") for n in range(2)):
                self._wider.append(self.start(client.run(), client.name))
        if "days" in extras:
            self._wider.append(self.start(Days(stage).run(), "days"))
        if "janitor" in extras:
            self._place.mkdir()
            for host in ("j1", "j2"):
                janitor = JanitorActor(stage, self._backups, self._place, host)
                self._wider.append(self.start(janitor.run(), host))
        if "copies" in extras:
            self._wider.append(self.start(CopyActor(stage).run(), "copies"))

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        actors = [*self.awaited, self._between, *self._wider]
        await Ending(self.stage, self.faults, self._bankers).run(actors, self._replicas)

    async def _create(self, client: Client) -> None:
        policy = self.plan.machines.policy | (POLICY if "janitor" in self.plan.extras else {})
        await client.namespace(NAMESPACE).create_machine_log(MACHINE, PROPERTIES, **policy)
        await client.close()

    @property
    def acked(self) -> int:
        return self.rules.acked


__all__ = ["Life"]
