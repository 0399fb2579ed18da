"""The simulated machines of one life: hosts with processes, devices, network, metadata store, and the judge.

Hosts b1, b2, ... are bookies, w1, r1, c1, ... are clients, `meta` is the metadata store.

Older states come back in two ways. `machine.device.restore(image)` restores a directory from `device.snapshot()` while
no process of the machine runs; `restore_metadata(image)` restores the metadata store from `metadata.snapshot()`.
`machine.away = True` keeps the supervisor from starting the bookie. `add_machine(name, rack, host)` and `boot` start a
bookie with a new id at the address of another one. The judge identifies a bookie by its process, not by its address:
what another process acknowledged there does not count.

Not here: what a life does with the machines (`sim/ledgers/life.py`, `sim/streams/life.py`), bookies of another cluster
(`sim/engine/foreign.py`).
"""

from __future__ import annotations

import asyncio
import random
import traceback
from asyncio import events
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from buckram.bookie.process import Bookie
from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.fetching import Outcome
from buckram.bookie.storage.store import Store
from buckram.bookie.storage.superblock import NAME as SUPERBLOCK
from buckram.client.client import Client, connect
from buckram.config import BookieConfig, ClientConfig, NetConfig, StoreConfig
from buckram.disk.memory import MemoryDisk
from buckram.errors import BuckramError
from buckram.metadata.store import TreeStore
from buckram.net.stats import NullStats
from buckram.seams import Runtime
from buckram.sim.engine.checkers.introductions import Introductions
from buckram.sim.engine.checkers.judge import Judge, Senses
from buckram.sim.engine.checkers.report import Report, Violation
from buckram.sim.engine.disk import Device, SimDisk
from buckram.sim.engine.loop import PROCESS, Process, make_loop
from buckram.sim.engine.metadata import Snapshot
from buckram.sim.engine.neighbours import SimNeighbours
from buckram.sim.engine.network import Fabric
from buckram.sim.engine.pace import FAST, Pace, SimClock
from buckram.sim.engine.stores import Session, stores_of
from buckram.sim.engine.trace import Trace
from buckram.sim.engine.zookeeper import SimZooKeeper
from buckram.types import BookieId, EntryId, LedgerId

T = TypeVar("T")
KIB = 1024


class Died(Exception):
    """The process that was to give the result is dead."""


@dataclass(slots=True)
class Configs:
    """What every process of a life is configured with."""

    net: NetConfig = field(
        default_factory=lambda: NetConfig(connect_timeout_s=1.0, request_timeout_s=1.0, sweep_interval_s=0.25)
    )
    store: StoreConfig = field(
        default_factory=lambda: StoreConfig(
            segment_bytes=128 * KIB,
            commit_max_bytes=32 * KIB,
            tail_cache_bytes=64 * KIB,
            ledger_cache_entries=64,
            reserved_bytes=0,
            writable_again_bytes=0,
        )
    )
    bookie: BookieConfig = field(default_factory=BookieConfig)
    client: ClientConfig = field(default_factory=ClientConfig)


@dataclass(slots=True)
class Machine:
    """A bookie's host: its device stays, its processes come and go."""

    name: BookieId
    device: Device
    rack: str | None = None
    host: str = ""
    """Its address; that of another machine whose place it takes."""
    away: bool = False
    """Its supervisor leaves it alone: somebody else has its address, or it stays off."""
    process: Process | None = None
    bookie: Bookie | None = None
    ready: bool = False
    refused: str = ""
    boots: int = 0

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.dead


class World:
    """`seed` decides everything. Close it when the life is over."""

    def __init__(
        self,
        seed: int | str,
        *,
        echo: Callable[[str], None] | None = None,
        configs: Configs | None = None,
        metadata: str = "memory",
        pace: Pace | None = None,
    ) -> None:
        self.seed, self.pace = seed, pace or Pace()
        self.rng = random.Random(f"world {seed}")
        self.trace = Trace(echo)
        self.configs = configs or Configs()
        self.loop = make_loop(random.Random(f"schedule {seed}"), self.trace, self._uncaught)
        self.fabric = Fabric(self.loop, random.Random(f"network {seed}"))
        self.stores = stores_of(metadata, self.fabric, random.Random(f"metadata {seed}"), self.pace.lag_s)
        self.metadata = self.stores.server
        self.metadata.late_chance, self.metadata.late_s = self.pace.late_chance, self.pace.late_s
        self.metadata.timeout_s += 2 * self.pace.late_s
        self._clocks: dict[str, SimClock] = {}
        self.report = Report(self.loop.time, self._violated)
        if isinstance(self.metadata, SimZooKeeper):
            self.metadata.stale_read = lambda: self.report.situation("metadata read that lags behind")
        self.judge = Judge(
            self.report,
            Senses(
                self.loop.time,
                self._fenced_on_disk,
                self._entries_on_disk,
                self._copies_on_disk,
                self.resumed_at,
                self.steady,
                self.pace,
                self._disk_state,
                self._unproven_key,
            ),
            self.stores.layout,
        )
        self.fabric.observers.append(self.judge.wire)
        self.fabric.observers.append(Introductions(self.report))
        self.metadata.observers.append(self.judge)
        self.judge.facts.given_up = lambda: self.metadata.given_up
        self.machines: dict[BookieId, Machine] = {}
        self.processes: dict[str, Process] = {}
        self.sessions: dict[str, Session] = {}
        files = random.Random(f"files {seed}")
        self._files = SimNeighbours(files, self._devices, self._read_from_files) if files.random() < 0.7 else None
        self.crashes = self.faults = 0
        self.broken: asyncio.Event | None = None
        self._disturbed_now: dict[str, int] = {}
        self._disturbed_at: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}
        self._opened: dict[str, tuple[int, tuple[int, int]]] = {}
        self._incarnation_of_id: dict[BookieId, str] = {}
        self.cookie_deleted: dict[BookieId, bool] = {}

    # errors

    def _violated(self, violation: Violation) -> None:
        self.trace.note("judge", f"VIOLATION {violation}")
        if self.broken is not None:
            self.broken.set()

    def _uncaught(self, process: Process, message: str, error: BaseException | None) -> None:
        if process is self.loop.world and error is not None:
            raise error
        where = traceback.extract_tb(error.__traceback__)[-6:] if error is not None else []
        for frame in where:
            self.trace.note(process.name, f"  at {frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}")
        self.report.violate("uncaught", f"in {process.name}: {message}: {error!r}")

    def _devices(self) -> dict[str, Device]:
        return {machine.device.name: machine.device for machine in self.machines.values()}

    def _read_from_files(self) -> None:
        self.report.situation("entries read from the files of a bookie")

    # time and disturbance

    def disturb(self, host: str, change: int) -> None:
        """+1 when something begins to go wrong with a host, -1 when it ends; 0 for an instant."""
        self._disturbed_now[host] = self._disturbed_now.get(host, 0) + change
        self._disturbed_at[host] = self.loop.time()

    def steady(self, host: str, since: float) -> bool:
        return self._disturbed_now.get(host, 0) == 0 and self._disturbed_at.get(host, -1.0) < since

    def resumed_at(self, host: str) -> float:
        return self._resumed_at.get(host, -1.0)

    def pause(self, host: str) -> None:
        process = self.processes.get(host)
        if process is not None and not process.dead and not process.paused:
            self.disturb(host, 1)
            process.pause()

    def resume(self, host: str) -> None:
        process = self.processes.get(host)
        if process is not None and process.paused:
            process.resume()
            self.disturb(host, -1)
            self._resumed_at[host] = self.loop.time()

    # processes

    def runtime(self, process: Process, host: str | None = None) -> Runtime:
        rng = random.Random(f"{self.seed} {process.name} {process.index}")
        return Runtime(self.fabric.face(process, host), self.clock(host or process.name), rng, NullStats(), self._files)

    def clock(self, host: str) -> SimClock:
        clock = self._clocks.get(host)
        if clock is None:
            clock = self._clocks[host] = SimClock(self.loop, host, self.seed, self.pace)
        return clock

    def process(self, host: str) -> Process:
        process = self.loop.process(host)
        self.processes[host] = process
        return process

    def store(self, process: Process, rng: random.Random) -> TreeStore:
        """A session of that process with the life's metadata store."""
        store, self.sessions[process.name] = self.stores.open(process, rng)
        self.judge.watch_writes(store, process.name)
        return store

    async def join(self, process: Process, coro: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Run code in the process and wait for its result; Died if the process dies first."""
        if process.dead:
            coro.close()
            raise Died(process.name)
        task = process.spawn(coro, name)
        over = asyncio.Event()
        task.add_done_callback(lambda _: over.set(), context=self.loop.world.context)
        process.on_death(over.set)
        await over.wait()
        if not task.done():
            raise Died(process.name)
        return task.result()

    async def client(self, host: str, config: ClientConfig | None = None) -> Client:
        """A client in a new process of that host; Died or MetadataUnavailable if it does not come up."""
        process = self.process(host)
        runtime = self.runtime(process)

        async def start() -> Client:
            store = self.store(process, runtime.rng)
            return await connect(store, config=config or self.configs.client, net=self.configs.net, runtime=runtime)

        return await self.join(process, start(), "connect")

    # bookies

    def add_machine(self, name: BookieId, rack: str | None = None, host: str = "") -> Machine:
        """A bookie's machine; with `host` a new bookie, under a new id, at the address of one that is gone."""
        device = Device(self.loop, random.Random(f"disk {self.seed} {name}"), name)
        device.sync_s = self.pace.of_disk(len(self.machines))
        if device.sync_s != FAST:
            device.read_s = device.sync_s
        machine = self.machines[name] = Machine(name, device, rack, host or name)
        self.judge.facts.bookie(name).rack = rack
        return machine

    async def boot(self, machine: Machine) -> bool:
        """Start the bookie's process; False if it refused, died or could not register."""
        process = machine.process = self.process(machine.name)
        self.fabric.set_dark(machine.host, False)
        machine.ready, machine.refused = False, ""
        machine.boots += 1
        runtime = self.runtime(process, machine.host)
        config = replace(self.configs.bookie, host=machine.host, port=3181, bookie_id=machine.name)
        facts = self.judge.facts.bookie(machine.name)

        async def run() -> None:
            store = self.store(process, runtime.rng)
            bookie = machine.bookie = Bookie(
                runtime,
                SimDisk(machine.device, process),
                store,
                config,
                self.configs.store,
                self.configs.net,
                properties={"buckram.rack": machine.rack} if machine.rack else None,
            )
            try:
                info = await bookie.start()
            except (BuckramError, OSError) as error:
                machine.refused = f"{type(error).__name__}: {error}"
                self.trace.note(machine.name, f"does not start: {machine.refused}")
                await store.close()
                self.loop.world.context.run(self.loop.call_soon, process.crash)
                return
            self._registered(machine, info.incarnation or "")
            self.disturb(machine.name, 0)  # until now it was not there
            machine.ready = facts.running = True
            self.trace.note(machine.name, f"serves, incarnation {info.incarnation}")
            up.set()
            failure = await bookie.failed
            self.disturb(machine.name, 0)  # from now on it answers nobody
            self.trace.note(machine.name, f"stops itself: {failure}")
            await bookie.stop()
            await store.close()
            self.loop.world.context.run(self.loop.call_soon, self.crash, machine, False)

        up = asyncio.Event()
        process.on_death(up.set)
        process.spawn(run(), "bookie")
        await up.wait()
        return machine.ready and not process.dead

    def _registered(self, machine: Machine, incarnation: str) -> None:
        facts, store = self.judge.facts.bookie(machine.name), machine.bookie.store if machine.bookie else None
        known = self._incarnation_of_id.get(machine.name)
        if known is not None and (known != incarnation or facts.wiped):
            allowed = self.cookie_deleted.pop(machine.name, False)
            self.report.check(
                "M8", allowed, "{} came back as incarnation {}, it was {}", machine.name, incarnation, known
            )
            facts.reborn_at = self.loop.time()
        self._incarnation_of_id[machine.name] = incarnation
        facts.incarnations.append(incarnation)
        if store is not None:
            held: dict[LedgerId, list[tuple[EntryId, int]]] = {}

            def holds(ledger_id: LedgerId, entry: EntryId) -> bool:
                runs = held.setdefault(ledger_id, store.entries(ledger_id))
                return any(first <= entry < first + count for first, count in runs)

            self.judge.bookie_returned(machine.name, holds)
            self._judge_directory(machine, store)
        if store is not None and store.limbo:
            facts.limbo = True
            self.report.situation("bookie came back in limbo")

    def _judge_directory(self, machine: Machine, store: Store) -> None:
        """I16, I18: what only crashed doubts nothing, and knows that it was started once more."""
        facts = self.judge.facts.bookie(machine.name)
        if not (facts.damaged or facts.wiped or machine.device.went_back):
            self.report.check("I16", not store.limbo, "{} is in limbo although nothing damaged its files", machine.name)
            last = self._opened.get(store.incarnation, (0, (0, 0)))
            self.report.check(
                "I18",
                store.starts > last[0] and store.position >= last[1],
                "{} was started {} times and its log ended at {}, now it says {} and {}",
                machine.name,
                last[0],
                last[1],
                store.starts,
                store.position,
            )
        self._opened[store.incarnation] = store.starts, store.position

    def crash(self, machine: Machine, power: bool) -> None:
        """Kill the process; with `power` the machine goes dark and its disk loses what was not synced."""
        process = machine.process
        if process is None or process.dead:
            if power:
                machine.device.power_loss()
            return
        if machine.device.syncing:
            self.report.situation("crash during a sync")
        facts = self.judge.facts.bookie(machine.name)
        if facts.fence_negatives:
            self.report.situation("fence answered negatively, then the bookie crashed")
            facts.fence_negatives = 0
        self.crashes += 1
        self.resume(machine.name)
        self.fabric.set_dark(machine.host, power)
        process.crash()
        if power:
            machine.device.power_loss()
        self.record_death(machine)

    def record_death(self, machine: Machine) -> None:
        machine.ready = False
        facts = self.judge.facts.bookie(machine.name)
        if facts.running:
            facts.running = False
            self.disturb(machine.name, 0)

    # states that come back

    def restore_metadata(self, snapshot: Snapshot, *, for_now: bool = False) -> None:
        """The metadata store is the one of which `metadata.snapshot()` was made; nobody is told. `for_now`: the newest
        will be back, so what is acknowledged meanwhile is judged by that one."""
        self.metadata.restore(snapshot)
        self.judge.metadata_restored({} if for_now else snapshot.keys, for_now=for_now)

    # what the judge may ask

    def _after_power_loss(self, bookie: BookieId) -> Store | None:
        machine = self.machines.get(bookie)
        if machine is None:
            return None
        model = machine.device.model.worst_case()
        model.total_bytes = 1 << 40  # to look is possible on a full disk, too
        disk = MemoryDisk(model)
        loop = events._get_running_loop()
        events._set_running_loop(None)  # a store that is only looked at must start no background work in this life
        try:
            return Store.open(disk, self.configs.store, NullStats(), random.Random(0))
        finally:
            events._set_running_loop(loop)

    def _fenced_on_disk(self, bookie: BookieId, ledger_id: LedgerId) -> bool | None:
        store = self._after_power_loss(bookie)
        if store is None:
            return None
        record = store.ledger(ledger_id)
        return record is not None and (record.fenced or record.tombstone)

    def _unproven_key(self, bookie: BookieId, ledger_id: LedgerId) -> bytes | None:
        machine = self.machines.get(bookie)
        if machine is None or machine.bookie is None or machine.bookie.store is None:
            return None
        record = machine.bookie.store.ledger(ledger_id)
        return None if record is None or record.proven else record.master_key

    def _disk_state(self, bookie: BookieId) -> bytes:
        """Changes with each superblock: with the files that what is durable stands in."""
        machine = self.machines.get(bookie)
        names = machine.device.model.names() if machine is not None else []
        return bytes(machine.device.model.inode(SUPERBLOCK).content) if machine and SUPERBLOCK in names else b""

    def _entries_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bool] | None:
        store = self._after_power_loss(bookie)
        if store is None:
            return None
        runs = store.entries(ledger_id)
        return {e: any(first <= e < first + count for first, count in runs) for e in entries}

    def _copies_on_disk(
        self, bookie: BookieId, ledger_id: LedgerId, entries: list[EntryId]
    ) -> dict[EntryId, bytes | None] | None:
        store = self._after_power_loss(bookie)
        if store is None:
            return None
        copies: dict[EntryId, bytes | None] = {}

        def found(outcomes: list[Outcome]) -> None:
            copies.update(zip(entries, [b"" if isinstance(one, StoreError) else one for one in outcomes], strict=True))

        store.read([(ledger_id, entry) for entry in entries], found)
        return copies

    def watched_bookie(self, store: Store) -> BookieId | None:
        """The bookie whose process runs now and whose store this is."""
        process = PROCESS.get(self.loop.world)
        machine = self.machines.get(process.name)
        if machine is None or machine.bookie is None or machine.bookie.store is not store:
            return None
        return machine.name

    def close(self) -> None:
        self.loop.close()
