"""The two clusters, three bookies each on one ZooKeeper server and one disk: Apache's and ours.

Between two measurements `tidy` brings a cluster back to where the next shall not pay for the one before: what waits in
memory is written, deleted ledgers give their space back, caches of the device are empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from javakit import programs

from bench.java.loads import JVM, classes
from bench.machines import LOOPBACK, Place, apart, bookie_place
from buckram.launch.child_process import free_port
from buckram.launch.processes import BookieProcess, stop_all

START_DEADLINE_S = 60.0
OURS = 10
"""First machine of our bookies; Apache's begin at 0."""
# The best settings that we found (docs/reference/performance.md): adds on the I/O threads, a journal that waits 1 ms
# for company, pre-written journal files, an entry log written past the page cache, pools for two cores. Syncs as by
# default.
APACHE: Mapping[str, object] = {
    "allowLoopback": "true",
    "httpServerEnabled": "false", "diskUsageThreshold": "0.99", "diskUsageWarnThreshold": "0.985",
    "journalSyncData": "true", "journalWriteData": "true",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_directIOEntryLogger": "true", "journalReuseFiles": "true", "journalMaxGroupWaitMSec": 1,
    "journalAdaptiveGroupWrites": "true", "journalMaxSizeMB": 2048, "journalMaxBackups": 1,
    "numAddWorkerThreads": 0, "numReadWorkerThreads": 2, "numHighPriorityWorkerThreads": 1, "serverNumIOThreads": 2,
    "numJournalCallbackThreads": 2, "gcWaitTime": 900_000,
    # Nothing is compacted while we measure: by default that takes 17 minutes for a file of a million entries.
    "minorCompactionThreshold": 0, "majorCompactionThreshold": 0,
}  # fmt: skip


def initialise(uri: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "buckram", "cluster", "init", "--metadata", uri], check=True, stdout=subprocess.DEVNULL
    )


def answers(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a bookie answers a v2 read of a ledger that does not exist."""
    body = struct.pack(">I20sqq", (2 << 24) | (2 << 16), b"", 1 << 40, 0)
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(struct.pack(">I", len(body)) + body)
        return len(connection.recv(64)) >= 12
    return False


@dataclass
class ApacheBookie:
    """One of Apache's bookies as a process (src/bench/Bookie.java)."""

    uri: str
    directory: Path
    port: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    place: Place = field(default_factory=Place)
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(LOOPBACK)
        settings = {
            **APACHE, "advertisedAddress": self.place.host,
            # It asks for the name of an interface's address, and those of the wire have none.
            **({} if apart() else {"listeningInterface": "lo"}),
            "bookiePort": self.port, "metadataServiceUri": self.uri,
            "journalDirectories": self.directory / "journal", "ledgerDirectories": self.directory / "ledgers",
            **self.settings,
        }  # fmt: skip
        conf = self.directory / "bookie.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log = self.directory.with_suffix(".log")
        program = ["bench.Bookie", str(conf)]
        self.process = programs.spawn(classes(), JVM, program, log, talks=True, launcher=self.place.launcher)

    def wait_ready(self) -> None:
        """Until it is started, which includes being registered, and answers."""
        self._answer("ready")
        limit = time.monotonic() + START_DEADLINE_S
        while not answers(self.port, self.place.host):
            if time.monotonic() > limit:
                raise RuntimeError(f"the bookie in {self.directory} does not answer")
            time.sleep(0.005)

    def tell(self, what: str) -> None:
        """ "tidy" or "stop"; `done` waits for it."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what}).encode() + b"\n")
        self.process.stdin.flush()

    def _answer(self, key: str) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line or key not in json.loads(line):
            raise RuntimeError(f"Apache's bookie in {self.directory} ended; see {self.directory.with_suffix('.log')}")

    def done(self) -> None:
        self._answer("done")

    def stop(self) -> None:
        """Stop it in order, so that it deregisters."""
        self.tell("stop")
        self.done()
        self.kill()

    def kill(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


class ApacheSide:
    """Apache's three bookies; they stay up, so that their code stays compiled."""

    name = "apache"

    def __init__(self, zookeeper: str, folder: Path, bookies: int = 3) -> None:
        self.uri = f"zk+hierarchical://{zookeeper}/{folder.name}"
        self.bookies = [ApacheBookie(self.uri, folder / f"bookie-{n}", place=bookie_place(n)) for n in range(bookies)]
        self._folder = folder

    def start(self) -> None:
        initialise(self.uri)
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_ready()

    @property
    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self.bookies if bookie.pid]

    @property
    def ports(self) -> list[int]:
        return [bookie.port for bookie in self.bookies]

    @property
    def hosts(self) -> list[str]:
        return [bookie.place.host for bookie in self.bookies]

    def restart(self, settings: Mapping[str, object]) -> None:
        """Stop in order and start again with these settings besides the usual ones."""
        for bookie in self.bookies:
            bookie.stop()
            bookie.settings = settings
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_ready()

    def tidy(self) -> None:
        for bookie in self.bookies:
            bookie.tell("tidy")
        for bookie in self.bookies:
            bookie.done()
        settle(self._folder)

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.kill()
            shutil.rmtree(bookie.directory, ignore_errors=True)


class OurSide:
    """Our three bookies. They start in less than a second, so they are tidied by new ones with empty directories."""

    name = "ours"

    def __init__(
        self, zookeeper: str, folder: Path, bookies: int = 3, environment: Mapping[str, str] | None = None
    ) -> None:
        self._zookeeper, self._folder, self._count, self._made = zookeeper, folder, bookies, 0
        self._environment = environment
        self.uri = ""
        self.bookies: list[BookieProcess] = []

    def start(self) -> None:
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir(parents=True)
        self.uri = f"zk+hierarchical://{self._zookeeper}/{self._folder.name}-{self._made}"
        initialise(self.uri)
        places = [bookie_place(OURS + n) for n in range(self._count)]
        self.bookies = [
            BookieProcess(
                self.uri,
                folder / f"bookie-{n}",
                host=place.host,
                environment=self._environment,
                launcher=place.launcher,
            )
            for n, place in enumerate(places)
        ]
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_ready()

    @property
    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self.bookies if bookie.alive]

    @property
    def ports(self) -> list[int]:
        return [bookie.ready.port for bookie in self.bookies if bookie.ready is not None]

    @property
    def hosts(self) -> list[str]:
        return [bookie.ready.host for bookie in self.bookies if bookie.ready is not None]

    def tidy(self) -> None:
        self.close()
        self.start()
        settle(self._folder)

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.kill()
        stop_all(self.bookies)
        for bookie in self.bookies:
            shutil.rmtree(bookie.directory, ignore_errors=True)


Side = ApacheSide | OurSide


def settle(folder: Path, deadline_s: float = 15.0) -> None:
    """Wait until the device writes almost nothing any more, up to the deadline."""
    from bench.machine import disk_written

    os.sync()
    limit = time.monotonic() + deadline_s
    before = disk_written(folder if folder.exists() else folder.parent)
    while time.monotonic() < limit:
        time.sleep(0.5)
        now = disk_written(folder if folder.exists() else folder.parent)
        if now - before < 1_000_000:
            return
        before = now
