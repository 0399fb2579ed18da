"""The simulated machines of one life: hosts with processes, devices, network, metadata store, and the judge.

Hosts b1, b2, ... are bookies, w1, r1, c1, ... are clients, `meta` is the metadata store.

Older states come back in two ways. `machine.device.restore(image)` restores a directory from `device.snapshot()` while
no process of the machine runs; `restore_metadata(image)` restores the metadata store from `metadata.snapshot()`.
`machine.away = True` keeps the supervisor from starting the bookie. `add_machine(name, host=HOST)` and `boot` start a
bookie with a new id at the address of another one. The judge identifies a bookie by its process, not by its address:
what another process acknowledged there does not count.

A life may have several clusters: `World(..., beside=FIRST)` is another one in the same time, network and trace.

Not here: what a life does with the machines (`simulator/ledgers/life.py`, `simulator/streams/life.py`), bookies of
another cluster (`simulator/engine/foreign.py`).
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from buckram.bookie.process import Bookie
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.bookie.storage.store import Store
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, ClientConfig, NetConfig, StoreConfig
from buckram.core.placement.topology import HOST_PROPERTY, LOCATION_PROPERTY
from buckram.errors import BuckramError
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.process.stats import NullStats
from buckram.seams import Network, Runtime
from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.checkers.introductions import Introductions
from simulator.engine.checkers.judge import Judge
from simulator.engine.checkers.report import Report, Violation
from simulator.engine.disk import Device, SimDisk
from simulator.engine.inspection import WorldInspector
from simulator.engine.local_files import SimLocalFiles
from simulator.engine.loop import Process, make_loop
from simulator.engine.metadata import Snapshot
from simulator.engine.network import Fabric
from simulator.engine.pace import FAST, Pace, Passed, SimClock
from simulator.engine.stores import Session, stores_of
from simulator.engine.threads import SimThreads
from simulator.engine.trace import Echo, Trace
from simulator.engine.zookeeper import SimZooKeeper

T = TypeVar("T")
KIB = 1024


class Died(Exception):
    """The process died before it returned a result."""


@dataclass(slots=True)
class Configs:
    """The configuration of every process of a life."""

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
    """A bookie's host: it keeps its device, while one process follows another."""

    name: BookieId
    device: Device
    rack: str | None = None
    host: str = ""
    """Address of the machine, which may be that of another machine that it replaces."""
    site: str = ""
    """Host that it shares with other bookies, as it registers; empty: its own."""
    away: bool = False
    """Set while the supervisor must not start it: another bookie has its address, or it stays off."""
    process: Process | None = None
    bookie: Bookie | None = None
    ready: bool = False
    refused: str = ""
    boots: int = 0

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.dead


class World:
    """One simulated cluster, in which the seed decides everything. Close it when the life is over."""

    def __init__(
        self,
        seed: int | str,
        *,
        echo: Echo | None = None,
        configs: Configs | None = None,
        metadata: str = "memory",
        pace: Pace | None = None,
        beside: World | None = None,
    ) -> None:
        """`beside`: the world of another cluster of the same life, made before, which this one shares all with but
        its bookies, its metadata store and their judge. That one is closed, and closes this one. Names of hosts are
        common to both.
        """
        self.seed, self.pace = seed, pace or Pace()
        self.rng = random.Random(f"world {seed}")
        self.configs = configs or Configs()
        if beside is None:
            self.trace = Trace(echo)
            self.loop = make_loop(random.Random(f"schedule {seed}"), self.trace, self._uncaught)
            self.fabric = Fabric(self.loop, random.Random(f"network {seed}"))
        else:
            self.trace, self.loop, self.fabric = beside.trace, beside.loop, beside.fabric
        self.stores = stores_of(metadata, self.fabric, random.Random(f"metadata {seed}"), self.pace.lag_s)
        self.metadata = self.stores.server
        self.metadata.late_chance, self.metadata.late_s = self.pace.late_chance, self.pace.late_s
        self.metadata.timeout_s += 2 * self.pace.late_s
        self._clocks: dict[str, SimClock] = {} if beside is None else beside._clocks
        self.passed: Passed = Passed() if beside is None else beside.passed
        self.report: Report = Report(self.loop.time, self._violated) if beside is None else beside.report
        if isinstance(self.metadata, SimZooKeeper):
            self.metadata.stale_read = lambda: self.report.situation("metadata read that lags behind")
        self._disturbed_now: dict[str, int] = {}
        self._disturbed_at: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}
        self.judge = Judge(self.report, WorldInspector(self), self.stores.layout)
        self.fabric.observers.append(self.judge.wire)
        self._beside: list[World] = []
        if beside is None:
            self.fabric.observers.append(Introductions(self.report))
        else:
            beside._beside.append(self)
            self.metadata.host = f"{beside.metadata.host}{len(beside._beside) + 1}"
        self.metadata.observers.append(self.judge)
        self.machines: dict[BookieId, Machine] = {}
        self.processes: dict[str, Process] = {}
        self.sessions: dict[str, Session] = {}
        files = random.Random(f"files {seed}")
        self._files = SimLocalFiles(files, self._devices, self._read_from_files) if files.random() < 0.7 else None
        self._threads: list[SimThreads] = []
        self.door: Callable[[], ConnectionGate] | None = None
        """Creates the door that connections to a bookie must pass first (login); None: there is none."""
        self.way_in: Callable[[str, Network], Network] | None = None
        """Creates the network of a host's clients if bookies demand logins; None: the plain network."""
        self.crashes = self.faults = 0
        self.broken: asyncio.Event | None = None
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
        """Record a disturbance of a host: +1 when one begins, -1 when it ends, 0 for one of no duration."""
        self._disturbed_now[host] = self._disturbed_now.get(host, 0) + change
        self._disturbed_at[host] = self.loop.time()

    def steady(self, host: str, since: float) -> bool:
        """Return whether the host has had no disturbance since then."""
        return self._disturbed_now.get(host, 0) == 0 and self._disturbed_at.get(host, -1.0) < since

    def resumed_at(self, host: str) -> float:
        """Return when the host's process went on after its last pause, or -1.0."""
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
        threads = SimThreads(self.loop, process, random.Random(f"threads {self.seed} {process.name} {process.index}"))
        self._threads.append(threads)
        face, clock = self.fabric.face(process, host), self.clock(host or process.name)
        return Runtime(face, clock, rng, NullStats(), self._files, threads)

    def clock(self, host: str) -> SimClock:
        clock = self._clocks.get(host)
        if clock is None:
            clock = self._clocks[host] = SimClock(self.loop, host, self.seed, self.pace, self.passed)
        return clock

    def process(self, host: str) -> Process:
        process = self.loop.process(host)
        self.processes[host] = process
        return process

    def store(self, process: Process, rng: random.Random) -> TreeStore:
        """Open a session of the process with the metadata store."""
        store, self.sessions[process.name] = self.stores.open(process, rng)
        self.judge.watch_writes(store, process.name)
        return store

    async def join(self, process: Process, coro: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Run code in the process and return its result. Raises Died if the process dies first."""
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
        """Start a client in a new process of the host. Raises Died or MetadataUnavailable."""
        return await self.client_in(self.process(host), config)

    async def client_in(self, process: Process, config: ClientConfig | None = None) -> Client:
        """Start a client in a process, which may have clients of other clusters. Raises as `client` does."""
        self.processes[process.name] = process
        runtime = self.runtime(process)
        if self.way_in is not None:
            runtime = replace(runtime, network=self.way_in(process.name, runtime.network))

        async def start() -> Client:
            store = self.store(process, runtime.rng)
            return await connect(store, config=config or self.configs.client, net=self.configs.net, runtime=runtime)

        return await self.join(process, start(), "connect")

    # bookies

    def add_machine(self, name: BookieId, rack: str | None = None, host: str = "", site: str = "") -> Machine:
        """Add a bookie's machine. `host` is the address of a bookie that it replaces, `site` the host that it shares
        with others; by default it has its own."""
        device = Device(self.loop, random.Random(f"disk {self.seed} {name}"), name)
        device.sync_s = self.pace.of_disk(len(self.machines))
        if device.sync_s != FAST:
            device.read_s = device.sync_s
        machine = self.machines[name] = Machine(name, device, rack, host or name, site or host or name)
        # The first part of the path is compared: the region under a rule of regions, else the rack.
        self.judge.facts.bookie(name).rack = rack.split("/")[1] if rack else None
        return machine

    async def boot(self, machine: Machine) -> bool:
        """Start the bookie's process. Return False if it refused to start, died or could not register."""
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
                properties={HOST_PROPERTY: machine.site} | ({LOCATION_PROPERTY: machine.rack} if machine.rack else {}),
                door=self.door() if self.door is not None else None,
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
            self.disturb(machine.name, 0)  # the time before, when it did not serve, counts as disturbed
            machine.ready = facts.running = True
            self.trace.note(machine.name, f"serves, incarnation {info.incarnation}")
            up.set()
            failure = await bookie.failed
            self.disturb(machine.name, 0)  # it does not serve any more
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
        if known is not None and (known != incarnation or (facts.wiped and not facts.reborn)):
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

            self.judge.bookie_started(machine.name, holds)
            self._check_directory(machine, store)
        if store is not None and store.limbo:
            facts.limbo = True
            self.report.situation("bookie came back in limbo")

    def _check_directory(self, machine: Machine, store: Store) -> None:
        """Check I16 and I18: a bookie that only crashed is not in limbo, and has counted this start."""
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
        """Kill the bookie's process. With `power` the machine loses power, and its disk what was not synced."""
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
        """Record that a bookie's process is dead, whatever killed it."""
        machine.ready = False
        facts = self.judge.facts.bookie(machine.name)
        if facts.running:
            facts.running = False
            self.disturb(machine.name, 0)

    # older states

    def restore_metadata(self, snapshot: Snapshot, *, for_now: bool = False) -> None:
        """Restore the metadata store to an older state, made by `metadata.snapshot()`.

        `for_now`: the newest state will be restored later, so the judge goes on to use that one.
        """
        self.metadata.restore(snapshot)
        self.judge.metadata_restored({} if for_now else snapshot.keys, for_now=for_now)

    def close(self) -> None:
        self.loop.close()
        for world in (self, *self._beside):
            for threads in world._threads:
                threads.close()
