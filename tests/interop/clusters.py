"""Clusters on one ZooKeeper: bookies of ours and of Apache's below one ledgers root."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from javakit.programs import NEWEST
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from tests.chaos.processes import environment, last_json, run
from tests.interop.apache import ApacheBookie, Java
from tests.support.polling import wait_until

from buckram.launch.processes import BookieProcess

PASSWORD = b"secret"
HOUR = {"BUCKRAM_HEALING_LOST_BOOKIE_DELAY_S": "3600", "BUCKRAM_HEALING_RETRY_S": "0.5"}
"""Settings of our autorecovery: only the shell makes it begin earlier."""


def payload(number: int) -> bytes:
    """Entry `number`, the same that Setting.payload makes in Java."""
    return (b"entry %d " % number).ljust(24 + number * 37 % 200, b"%c" % (ord("a") + number % 26))


class OurBookie:
    """A bookie of ours as a process; `killed` until it is started again."""

    def __init__(self, uri: str, directory: Path, settings: Mapping[str, str], host: str) -> None:
        environment = {"BUCKRAM_STORE_SEGMENT_BYTES": str(32 << 20), **settings}
        self._child = BookieProcess(uri, directory, host=host, environment=environment)
        self.bookie_id, self.http, self.running = "", "", False

    def start(self) -> None:
        self._child.start()
        ready = self._child.wait_ready()
        self.bookie_id, self.http, self.running = ready.bookie_id, ready.http or "", True

    def kill(self) -> None:
        self._child.kill()
        self.running = False

    def stop(self) -> None:
        assert self._child.stop() == 0
        self.running = False


@dataclass
class Cluster:
    """A ledgers root and its bookies. `uri` works for both kinds of client; the settings are those of the bookies,
    ours as environment variables."""

    uri: str
    root: Path
    ours: list[OurBookie] = field(default_factory=list)
    theirs: list[ApacheBookie] = field(default_factory=list)
    our_settings: Mapping[str, str] = field(default_factory=dict)
    their_settings: Mapping[str, object] = field(default_factory=dict)
    their_options: Sequence[str] = ()
    own_hosts: bool = False
    """Each bookie has an address of its own, 127.0.0.N."""
    _made: int = 0

    @property
    def bookies(self) -> list[str]:
        return sorted(bookie.bookie_id for bookie in self.all)

    def is_ours(self, bookie_id: str) -> bool:
        return any(bookie.bookie_id == bookie_id for bookie in self.ours)

    @property
    def all(self) -> list[OurBookie | ApacheBookie]:
        return [*self.ours, *self.theirs]

    def find(self, bookie_id: str) -> OurBookie | ApacheBookie:
        return next(bookie for bookie in self.all if bookie.bookie_id == bookie_id)

    def add(self, ours: int = 0, theirs: int = 0, line: str = NEWEST) -> None:
        """Start more bookies, all at once."""
        self.root.mkdir(parents=True, exist_ok=True)
        new = [self._spawn_theirs(line) for _ in range(theirs)]
        for _ in range(ours):
            self._made += 1
            bookie = OurBookie(self.uri, self.root / f"buckram{self._made}", self.our_settings, self._host())
            self.ours.append(bookie)
            bookie.start()
        self._wait_ready(new)

    def _spawn_theirs(self, line: str) -> ApacheBookie:
        self._made += 1
        place = self.root / f"apache{self._made}"
        apache = ApacheBookie(
            self.uri, place, line, settings=self.their_settings, options=self.their_options, host=self._host()
        )
        self.theirs.append(apache)
        apache.spawn()
        return apache

    def _host(self) -> str:
        return f"127.0.0.{self._made}" if self.own_hosts else "127.0.0.1"

    def kill(self, bookie_id: str) -> None:
        """kill -9 without a restart. A replacement of a bookie of Apache's starts at once: a JVM is slow to start."""
        bookie = self.find(bookie_id)
        bookie.kill()
        if isinstance(bookie, ApacheBookie):
            self._spawn_theirs(bookie.line)

    def replace_killed(self) -> None:
        """Start new bookies for the killed ones: the same ones could register only once their sessions ended."""
        lost = [bookie for bookie in self.all if not bookie.running]
        self.ours = [bookie for bookie in self.ours if bookie.running]
        self.theirs = [apache for apache in self.theirs if apache.running]
        with self._zookeeper() as (zookeeper, available):
            for bookie in lost:
                # Their sessions last for seconds more; nobody shall choose them meanwhile.
                with contextlib.suppress(NoNodeError):
                    zookeeper.delete(f"{available}/{bookie.bookie_id}")
        self.add(ours=sum(isinstance(bookie, OurBookie) for bookie in lost))
        self._wait_ready(self.theirs)

    def _wait_ready(self, started: Sequence[ApacheBookie]) -> None:
        """Apache's bookies listen before they are registered, and register again only once an old session has ended."""
        with self._zookeeper() as (zookeeper, available):

            def registered_ms(bookie_id: str) -> int:
                found = zookeeper.exists(f"{available}/{bookie_id}")
                return found.ctime if found is not None else 0

            for apache in started:
                apache.wait_ready(registered_ms)

    @contextlib.contextmanager
    def _zookeeper(self) -> Iterator[tuple[KazooClient, str]]:
        """A client, and the node below which bookies register."""
        with self.nodes() as (zookeeper, root):
            yield zookeeper, f"{root}/available"

    @contextlib.contextmanager
    def nodes(self) -> Iterator[tuple[KazooClient, str]]:
        """A client of the cluster's ZooKeeper, and the ledgers root."""
        hosts, _, root = self.uri.partition("://")[2].replace(";", ",").partition("/")
        zookeeper = KazooClient(hosts)
        zookeeper.start()
        try:
            yield zookeeper, f"/{root}"
        finally:
            zookeeper.stop()
            zookeeper.close()

    def init_with_ours(self) -> None:
        run(["cluster", "init"], self.uri)

    def init_with_apache(self, java: Java) -> None:
        self.shell(java, "initnewcluster")

    def conf(self, **more: object) -> dict[str, object]:
        """Settings of Apache's tools for this cluster."""
        scratch = self.root / "tools"
        return {
            "metadataServiceUri": self.uri, "allowLoopback": "true", "listeningInterface": "lo",
            "advertisedAddress": "127.0.0.1", "journalDirectories": str(scratch / "journal"),
            "ledgerDirectories": str(scratch / "ledgers"), **more,
        }  # fmt: skip

    def shell(self, java: Java, *arguments: str, ok: bool = True, **conf: object) -> str:
        """Run a command of Apache's shell; its output."""
        done: dict[str, Any] = java.call("Shell.run", arguments=arguments, conf=self.conf(**conf))
        output = str(done["output"])
        assert (done["code"] == 0) is ok, f"{' '.join(arguments)} ended with {done['code']}: {output[-3000:]}"
        return output

    def revive(self) -> None:
        """Restart the killed bookies on their directories and ports."""
        dead = [apache for apache in self.theirs if not apache.running]
        for apache in dead:
            apache.spawn()
        for bookie in self.ours:
            if not bookie.running:
                bookie.start()
        if dead:
            self._wait_ready(dead)

    def close(self) -> None:
        """Kill all bookies; nothing of them is needed afterwards."""
        for bookie in self.all:
            bookie.kill()


def both_kinds(cluster: Cluster, members: Sequence[str]) -> bool:
    """Whether the ensemble has as many bookies of ours as of Apache's, all of them alive."""
    known = all(member in cluster.bookies for member in members)
    return known and sum(cluster.is_ours(member) for member in members) * 2 == len(members)


@contextlib.contextmanager
def auto_recovery(java: Java, cluster: Cluster, part: str = "", **conf: object) -> Iterator[None]:
    """Apache's auditor and replication worker for this cluster, with short intervals; `part`: "Auditor" or "Worker"."""
    settings = {
        "auditorPeriodicBookieCheckInterval": 1, "lostBookieRecoveryDelay": 0, "rwRereplicateBackoffMs": 200,
        "zkTimeout": 3000, **conf,
    }  # fmt: skip
    number = java.call(f"AutoRecovery.start{part}", conf=cluster.conf(**settings))
    try:
        yield
    finally:
        java.call("AutoRecovery.stop", number=number)


@contextlib.contextmanager
def our_autorecovery(cluster: Cluster, **settings: str) -> Iterator[str]:
    """Our auditor and replicator in a process; its name. `settings`: environment variables beside HOUR."""
    log = cluster.root / "autorecovery.log"
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "buckram", "autorecovery", "run", "--json"],
            env=environment(BUCKRAM_METADATA=cluster.uri, **HOUR, **settings), stdout=subprocess.PIPE, stderr=out,
        )  # fmt: skip
        assert child.stdout is not None
        try:
            name = last_json(child.stdout.readline().decode())["name"]
            wait_until(lambda: overview(cluster)["auditor"] == name, f"not elected, see {log}")
            yield name
        finally:
            child.terminate()
            child.wait(30)
            child.stdout.close()


def overview(cluster: Cluster) -> dict[str, Any]:
    shown = subprocess.run(
        [sys.executable, "-m", "buckram", "autorecovery", "status", "--json"],
        env=environment(BUCKRAM_METADATA=cluster.uri), stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    return last_json(shown.stdout.decode())


@dataclass
class Decommissioning:
    """A run of `decommissionbookie` in the background: ledgers that were on a bookie that is gone."""

    cluster: Cluster
    bookie: str
    ledgers: list[int]
    code: Future[int]

    @classmethod
    def start(cls, java: Java, cluster: Cluster) -> Decommissioning:
        ledgers = []
        for _ in range(2):
            made = java.call("Handles.create", uri=cluster.uri)
            java.call("Handles.add", uri=cluster.uri, writer=made["writer"], count=10)
            java.call("Handles.closeWriter", uri=cluster.uri, writer=made["writer"])
            ledgers.append(int(made["ledger"]))
        cluster.add(ours=1)
        gone = cluster.ours[0]
        gone.stop()
        command = ["decommissionbookie", "-bookieid", gone.bookie_id]
        return cls(cluster, gone.bookie_id, ledgers, java.start("Shell.aside", arguments=command, conf=cluster.conf()))

    def result(self) -> int:
        return self.code.result(120)
