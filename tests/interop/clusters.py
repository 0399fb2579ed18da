"""Clusters on one ZooKeeper: bookies of ours and of Apache's below one ledgers root."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from tests.chaos.processes import BookieProcess, run
from tests.interop.apache import NEWEST, ApacheBookie, Java

PASSWORD = b"secret"


def payload(number: int) -> bytes:
    """Entry `number`, the same that Setting.payload makes in Java."""
    return (b"entry %d " % number).ljust(24 + number * 37 % 200, b"%c" % (ord("a") + number % 26))


@dataclass
class Cluster:
    """A ledgers root and its bookies. `uri` works for both kinds of client."""

    uri: str
    root: Path
    ours: list[BookieProcess] = field(default_factory=list)
    theirs: list[ApacheBookie] = field(default_factory=list)

    @property
    def bookies(self) -> list[str]:
        return sorted(bookie.bookie_id for bookie in self.all)

    def is_ours(self, bookie_id: str) -> bool:
        return any(bookie.bookie_id == bookie_id for bookie in self.ours)

    @property
    def all(self) -> list[BookieProcess | ApacheBookie]:
        return [*self.ours, *self.theirs]

    def find(self, bookie_id: str) -> BookieProcess | ApacheBookie:
        return next(bookie for bookie in self.all if bookie.bookie_id == bookie_id)

    def add(self, ours: int = 0, theirs: int = 0, line: str = NEWEST) -> None:
        """Start more bookies, side by side."""
        self.root.mkdir(parents=True, exist_ok=True)
        new = [ApacheBookie(self.uri, self.root / f"apache{len(self.theirs) + n}", line) for n in range(theirs)]
        self.theirs += new
        for apache in new:
            apache.spawn()
        for _ in range(ours):
            bookie = BookieProcess(self.uri, self.root / f"buckram{len(self.ours)}")
            self.ours.append(bookie)
            bookie.start()
        self._wait_ready(new)

    def _wait_ready(self, started: Sequence[ApacheBookie]) -> None:
        """Apache's bookies listen before they are registered, and register again only once an old session has ended."""
        hosts, _, root = self.uri.partition("://")[2].replace(";", ",").partition("/")
        zookeeper = KazooClient(hosts)
        zookeeper.start()
        try:
            for apache in started:
                apache.wait_ready(lambda node: zookeeper.exists(f"/{root}/available/{node}") is not None)
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
        """Start whoever was killed, where it was."""
        dead = [apache for apache in self.theirs if apache.process is None]
        for apache in dead:
            apache.spawn()
        for bookie in self.ours:
            if bookie.process is None:
                bookie.start()
        if dead:
            self._wait_ready(dead)

    def close(self) -> None:
        """Nothing is kept: killed, not stopped."""
        for bookie in self.all:
            bookie.kill()


def eventually(holds: Any, otherwise: str, deadline_s: float = 30.0) -> None:
    """Ask again until it holds."""
    limit = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < limit, otherwise
        time.sleep(0.02)


def both_kinds(cluster: Cluster, members: Sequence[str]) -> bool:
    """As many of ours as of theirs."""
    return sum(cluster.is_ours(member) for member in members) * 2 == len(members)


@contextlib.contextmanager
def auto_recovery(java: Java, cluster: Cluster, **conf: object) -> Iterator[None]:
    """Apache's auditor and replication worker for this cluster, with short intervals."""
    settings = {
        "auditorPeriodicBookieCheckInterval": 1, "lostBookieRecoveryDelay": 0, "rwRereplicateBackoffMs": 200,
        "zkTimeout": 3000, **conf,
    }  # fmt: skip
    number = java.call("AutoRecovery.start", conf=cluster.conf(**settings))
    try:
        yield
    finally:
        java.call("AutoRecovery.stop", number=number)


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
