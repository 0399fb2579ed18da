"""The cluster under test: metadata servers, bookies, healers and actors, all real processes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from buckram.addresses import join
from buckram.metadata.default import VARIABLE as METADATA
from buckram.runtime.disk.faulty import DiskFaults
from buckram.runtime.process.clock import OFFSET_VARIABLE
from chaos.actors.bank import REPLICA_PORT
from chaos.history import read_own
from chaos.network import CONTROL, FIRST_ACTOR, FIRST_BOOKIE, FIRST_HEALER, FIRST_SERVER, Network
from chaos.plan import Plan
from chaos.processes import PYTHON, Child, ProcessFailed, clean_environment
from chaos.servers import PORT, PORTS

REPLICA = "replica"
ACTORS = (
    ("w1", "ledger-writer"),
    ("w2", "ledger-writer"),
    ("r1", "ledger-reader"),
    ("c1", "recoverer"),
    ("s1", "stream-writer"),
    ("s2", "stream-writer"),
    ("t1", "stream-reader"),
    ("u1", "customer"),
    ("u2", "customer"),
    ("d1", REPLICA),
    ("d2", REPLICA),
    ("d3", REPLICA),
)
"""Actors with their roles. They are stopped in this order, so replicas have everything that customers did."""
DELAY_S = 3
"""Seconds after which an absent bookie counts as lost."""
RACKS = 2
"""Few, so that most ensembles have two members in one of them."""
SERVERS = 3
"""Number of ZooKeeper or etcd processes that hold the metadata."""
_PORT = 3181
_INIT_S = 300.0
_SETTINGS = {
    "BUCKRAM_HEALING_OPEN_LEDGER_GRACE_S": "5",
    "BUCKRAM_HEALING_RETRY_S": "5",
    "BUCKRAM_HEALING_COPIES_CHECK_INTERVAL_S": "5",
    "BUCKRAM_HEALING_BOOKIE_CHECK_INTERVAL_S": "60",
}
"""Settings with which healing acts in seconds, instead of minutes or days."""


class Cluster:
    """`folder` gets the data, logs and histories of all processes. Use `running`."""

    def __init__(self, plan: Plan, net: Network, folder: Path) -> None:
        self.plan, self.net, self.folder = plan, net, folder
        for part in ("logs", "history", "data", "faults"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.uri = ""
        self.servers: list[Child] = []
        """Metadata servers; empty if the metadata are in a file."""
        self.bookies: list[Child] = []
        self.actors: list[Child] = []
        self.healers: list[Child] = []
        self.lost: list[str] = []
        """Bookies that are gone for good."""
        self.racks: dict[str, str] = {}
        self._made = 0
        self._fault_number = 0

    # -- beginning and end

    def start(self) -> None:
        self._start_metadata()
        for _ in range(self.plan.bookies):
            self.add_bookie(wait=False)
        for bookie in self.bookies:
            bookie.wait_ready()
        self.command("autorecovery", "delay", f"{DELAY_S}s")
        for number in range(2):
            self.healers.append(self._buckram(f"h{number + 1}", FIRST_HEALER + number, "autorecovery", "run"))
        for number, (name, role) in enumerate(ACTORS):
            self.actors.append(self._actor(name, role, FIRST_ACTOR + number))
        for child in (*self.healers, *self.actors):
            child.start()

    def replicas(self) -> list[Child]:
        """Return the actors that hold the database."""
        names = {name for name, role in ACTORS if role == REPLICA}
        return [child for child in self.actors if child.name in names]

    def leader(self) -> Child:
        """Return the replica that led last by the histories; the first one if none did."""
        led = {child.name: 0.0 for child in self.replicas()}
        for name in led:
            for event in read_own(self._history(name)):
                if event["event"] == "leads":
                    led[name] = event["at"]
        return max(self.replicas(), key=lambda child: led[child.name])

    def everybody(self) -> list[Child]:
        return [*self.actors, *self.healers, *self.bookies, *self.servers]

    def kill_all(self) -> None:
        for child in self.everybody():
            child.kill()

    def add_bookie(self, rack: str = "", *, wait: bool = True) -> Child:
        """Add an empty bookie under a new id, in the given rack or in the next one by turns; return it."""
        self._made += 1
        name = f"b{self._made}"
        machine = FIRST_BOOKIE + self._made
        machines = self.net.machines
        host, reached = machines.listens(machine), f"{machines.reached(machine, _PORT)}:{_PORT}"
        data, control = self.folder / "data" / name, self.folder / "faults" / f"{name}.json"
        # Every second one loses what it did not sync when it is killed; the others have a disk that fails on demand.
        layer = f"withhold:{self.plan.seed * 100 + self._made}" if self._made % 2 else f"faults:{control}"
        self.racks[name] = rack or f"/rack-{self._made % RACKS + 1}"
        words = ["--data", str(data), "--host", host, "--port", str(_PORT), "--advertise", reached]
        words += ["--id", name, "--location", self.racks[name]]
        child = self._buckram(name, machine, "bookie", "run", *words)
        child.ready, child.environment = True, {**child.environment, "BUCKRAM_DISK": layer}
        child.spawn()
        self.bookies.append(child)
        if wait:
            child.wait_ready()
        return child

    def lose_bookie(self, child: Child) -> None:
        """Lose a bookie for good, with its data."""
        child.kill()
        self.bookies.remove(child)
        self.lost.append(child.name)
        shutil.rmtree(self.folder / "data" / child.name)

    def why_not_let_in(self, lost: Child) -> str:
        """Start a bookie that lost its data with an empty directory; return its last output when it ended, "" if it
        serves."""
        log = self.folder / "logs" / f"{lost.name}-empty.log"
        empty = replace(lost, log=log, environment={**lost.environment, "BUCKRAM_DISK": ""}, said={})
        try:
            empty.start()
        except ProcessFailed as error:
            said = log.read_text(errors="replace").strip()
            return (said or str(error))[-300:]
        finally:
            empty.kill()
            shutil.rmtree(self.folder / "data" / lost.name, ignore_errors=True)
        return ""

    # -- for faults

    def fails_on_demand(self) -> list[Child]:
        """Bookies whose disks take orders."""
        return [child for child in self.bookies if "faults:" in child.environment["BUCKRAM_DISK"]]

    def set_disk(self, child: Child, *, full: bool = False, writes: int = 0, syncs: int = 0, reads: int = 0) -> None:
        self._fault_number += 1
        faults = DiskFaults(self._fault_number, full, writes, syncs, reads)
        faults.save(self.folder / "faults" / f"{child.name}.json")

    def set_clock(self, child: Child, offset_s: float) -> None:
        Path(child.environment[OFFSET_VARIABLE]).write_text(str(offset_s))

    # -- inside

    def command(self, *words: str, within_s: float = 60.0) -> str:
        """Run `buckram WORDS` here and return what it prints. Raises ProcessFailed when it fails, or takes longer."""
        try:
            done = subprocess.run(
                [PYTHON, "-m", "buckram", *words],
                env={**clean_environment(), **self.net.machines.environment(CONTROL), METADATA: self.uri},
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"buckram {' '.join(words)} took more than {within_s:g} s") from error
        if done.returncode != 0:
            raise ProcessFailed(f"buckram {' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def _start_metadata(self) -> None:
        if self.plan.metadata == "sqlite":
            self.uri = f"sqlite://{(self.folder / 'data' / 'metadata.db').absolute()}"
            self._initialise()
            return
        machines = self.net.machines
        hosts = [machines.reached(FIRST_SERVER + number, *PORTS) for number in range(SERVERS)]
        for number in range(SERVERS):
            name = f"{self.plan.metadata}-{number + 1}"
            server = self._child(name, FIRST_SERVER + number)
            server.command = [
                *(PYTHON, "-m", "buckram.chaos.servers", self.plan.metadata, "--number", str(number + 1)),
                *("--data", str(self.folder / "data" / name), "--hosts", ",".join(hosts)),
                *("--listen", machines.listens(FIRST_SERVER + number)),
            ]
            server.spawn()
            self.servers.append(server)
        addresses = ",".join(join(host, PORT) for host in hosts)
        self.uri = {"zookeeper": f"zk://{addresses}/ledgers", "etcd": f"etcd://{addresses}/buckram"}[self.plan.metadata]
        self._initialise()

    def _initialise(self) -> None:
        """Tried again until the servers have found each other."""
        limit = time.monotonic() + _INIT_S
        while True:
            try:
                self.command("cluster", "init")
                return
            except ProcessFailed:
                if time.monotonic() > limit:
                    raise

    def _buckram(self, name: str, machine: int, *words: str) -> Child:
        child = self._child(name, machine, *words, "--metadata", self.uri, "--json")
        child.environment = {**child.environment, **_SETTINGS}
        return child

    def _child(self, name: str, machine: int, *words: str) -> Child:
        clock, machines = str(self.folder / "faults" / f"{name}.clock"), self.net.machines
        environment = {**machines.environment(machine), OFFSET_VARIABLE: clock}
        log, launcher = self.folder / "logs" / f"{name}.log", machines.launcher(machine)
        return Child(name, machine, [PYTHON, "-m", "buckram", *words], log, launcher, environment)

    def _actor(self, name: str, role: str, machine: int) -> Child:
        child = self._child(name, machine)
        machines = self.net.machines
        replicas = [FIRST_ACTOR + number for number, (_, other) in enumerate(ACTORS) if other == REPLICA]
        reached = ",".join(f"{machines.reached(other, REPLICA_PORT)}:{REPLICA_PORT}" for other in replicas)
        child.command = [
            *(PYTHON, "-m", "buckram.chaos.actors", role, "--metadata", self.uri),
            *("--history", str(self._history(name)), "--name", name, "--seed", str(self.plan.seed)),
            *("--listen", f"{machines.listens(machine)}:{REPLICA_PORT}", "--replicas", reached),
        ]
        return child

    def _history(self, name: str) -> Path:
        return self.folder / "history" / f"{name}.jsonl"


@contextlib.contextmanager
def running(plan: Plan, net: Network, folder: Path) -> Iterator[Cluster]:
    """Yield a cluster with its actors at work; everything is killed at the end."""
    cluster = Cluster(plan, net, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()
