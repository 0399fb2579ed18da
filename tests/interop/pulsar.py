"""A broker of Pulsar and a client of it, as processes: java/src/pulsar. The jars are fetched when first asked for.

Not here: bookies (clusters.py), what is checked (test_pulsar.py, test_pulsar_replace.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from javakit import programs
from javakit.programs import PULSAR, NoJava, end
from tests.interop.apache import BUILD, JVM, SOURCES
from tests.interop.clusters import Cluster
from tests.support.polling import wait_until

from buckram.launch.child_process import free_port

HOST = "127.0.0.1"
NAME = "machines"
TOPIC = "persistent://public/default/numbers"
START_S = 90.0
# Few threads, no cache of entries, and a new ledger every few seconds. All else is as Pulsar has it: two copies, v2.
SETTINGS: Mapping[str, object] = {
    "clusterName": NAME, "bindAddress": HOST, "advertisedAddress": HOST, "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1, "managedLedgerCacheSizeMB": 0,
    "managedLedgerMaxEntriesPerLedger": 200, "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "loadBalancerEnabled": "false", "functionsWorkerEnabled": "false", "numIOThreads": 2, "numHttpServerThreads": 8,
    "numExecutorThreadPoolSize": 2, "numOrderedExecutorThreads": 2, "bookkeeperClientNumWorkerThreads": 2,
    "bookkeeperClientNumIoThreads": 2,
    "metadataStoreSessionTimeoutMillis": 4000,
}  # fmt: skip


def pulsar_classes() -> str:
    """Jars and compiled programs. Without them the test is skipped, except in CI."""
    sources = [SOURCES / "Guarded.java", *sorted((SOURCES.parent / "pulsar").glob("*.java"))]
    try:
        return programs.class_path(sources, BUILD, PULSAR)
    except NoJava as reason:
        if os.environ.get("CI"):
            pytest.fail(f"Pulsar's broker is not tested: {reason}")
        pytest.skip(f"Pulsar's broker is not tested: {reason}")


class Broker:
    """A broker that keeps its metadata beside the ledgers root, which is named ledgers. `with Broker(...)`."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, object]) -> None:
        self._cluster, self._classes = cluster, pulsar_classes()
        port = free_port(HOST)
        web = free_port(HOST, frozenset({port}))
        self.url, self.web = f"pulsar://{HOST}:{port}", f"http://{HOST}:{web}"
        self.log = cluster.root / "broker.log"
        hosts, _, root = cluster.uri.partition("://")[2].partition("/")
        chroot, _, last = root.rpartition("/")
        assert last == "ledgers", f"{cluster.uri}: Pulsar expects the ledgers of its cluster below ledgers"
        self._metadata = f"zk:{hosts}/{chroot}"
        self.bookkeeper = f"metadata-store:{self._metadata}"
        """BookKeeper's metadata as Pulsar writes it: what its broker takes where nothing else is set."""
        self._settings = {
            **SETTINGS, "brokerServicePort": port, "webServicePort": web, "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata, **settings,
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Broker:
        self._cluster.root.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin, and wait until it serves; after `kill` under the same address."""
        conf = self._cluster.root / "broker.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        names = [str(conf), NAME, self._metadata, self._cluster.uri, self.web, self.url]
        self._process = _spawn(self._classes, ["interop.Guarded", "pulsar.Broker", *names], self.log, talks=False)
        try:
            wait_until(self._ready, f"the broker does not serve, see {self.log}", START_S)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """kill -9: nothing is closed in order."""
        if self._process is not None:
            self._process.kill()
            end(self._process)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def admin(self, path: str, method: str = "GET", body: object = None) -> Any:
        """A request of the admin API; the JSON of the answer. HTTPError for one that is refused."""
        request = urllib.request.Request(f"{self.web}/admin/v2/{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def admin_tool(self, *arguments: str) -> None:
        """Pulsar's own admin client, around which `pulsar-admin` is a shell; it succeeds."""
        log = self._cluster.root / "admin.log"
        process = _spawn(self._classes, ["pulsar.Admin", self.web, *arguments], log, talks=False)
        try:
            assert process.wait(60) == 0, log.read_text()[-3000:]
        finally:
            end(process)

    def ledgers(self) -> dict[int, int]:
        """The ledgers of the topic with their numbers of entries, oldest first; the last one is being written: 0."""
        shown = self.admin(f"{TOPIC.replace('://', '/')}/internalStats")
        return {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in shown["ledgers"]}

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.web}/admin/v2/brokers/ready", timeout=5) as ok,
        ):
            return bool(ok.read() == b"ok")
        return False


class Talk:
    """A client of the topic: pulsar.Talk, which says there what the commands do. `with Talk(broker) as talk`."""

    def __init__(self, broker: Broker, log: Path) -> None:
        self.acknowledged: list[int] = []
        self.followed: list[int] = []
        self.longest_pause_s = 0.0
        """The longest time in which nothing was acknowledged, after the first."""
        self._read: list[int] = []
        self._counts: dict[str, int] = {}
        self._failed = ""
        self._log = log
        self._process = _spawn(pulsar_classes(), ["pulsar.Talk", broker.url, TOPIC], log, talks=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        end(self._process)
        self._listener.join(10)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self, what: list[int], count: int, seconds: float = 60.0) -> None:
        """Until a list (`acknowledged`, `followed`) has so many."""
        wait_until(lambda: len(what) >= count or self._fails(), f"{len(what)} of {count}, see {self._log}", seconds)

    def wait_more(self, count: int) -> None:
        """Until so many messages more are acknowledged: producing goes on."""
        self.wait(self.acknowledged, len(self.acknowledged) + count)

    def finish(self) -> int:
        """End the producer; how many messages it sent. All are acknowledged then."""
        self.tell("finish")
        return self._count("finished")

    def read(self) -> list[int]:
        """All messages of the topic from the earliest on, by number; their bytes were checked."""
        self._read.clear()
        self.tell("read")
        assert self._count("end") == len(self._read)
        return list(self._read)

    def _count(self, word: str) -> int:
        wait_until(lambda: word in self._counts or self._fails(), f"not {word}, see {self._log}", 120)
        return self._counts.pop(word)

    def _fails(self) -> bool:
        assert not self._failed, f"{self._failed}, see {self._log}"
        return False

    def _listen(self) -> None:
        lists = {"acknowledged": self.acknowledged, "followed": self.followed, "read": self._read}
        acknowledged_at = math.inf
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for raw in pipe:
                word, _, rest = raw.decode().rstrip("\n").partition(" ")
                if word in lists:
                    lists[word].append(int(rest))
                    if word == "acknowledged":
                        now = time.monotonic()
                        self.longest_pause_s = max(self.longest_pause_s, now - acknowledged_at)
                        acknowledged_at = now
                elif word == "failed":
                    self._failed = rest
                else:
                    self._counts[word] = int(rest)
        self._failed = self._failed or "the client ended"


def _spawn(classes: str, arguments: list[str], log: Path, *, talks: bool) -> subprocess.Popen[bytes]:
    limits = ["-Xmx512m", "-XX:MaxDirectMemorySize=512m"]
    return programs.spawn(classes, [*limits, *JVM], arguments, log, talks=talks)
