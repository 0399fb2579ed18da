"""What commands that are killed find around them: a metadata store of one kind, clusters that live, names.

Cases share a cluster that lives and take a namespace, or a bookie, of their own each. States without one are made once,
and copied for each case to where they were made, because some of them have their own path.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tests.kills.harness import Case
from tests.support.polling import wait_until

from buckram import sync
from buckram.cli.app import run as in_process
from buckram.cluster import Client, connect
from buckram.config import HealingConfig
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair.replicator import Replicator
from buckram.launch.etcd_server import start_etcd
from buckram.launch.zookeeper_server import start_zookeeper
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import ThreadedCluster

STORES = ("sqlite", "zookeeper", "etcd")
BOOKIES = 4
HEALING = HealingConfig(lost_bookie_delay_s=3600.0, open_ledger_grace_s=0.5, retry_s=0.2, copy_bytes_per_s=0)
"""Nothing is copied because a bookie is away, only because somebody asks for it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """A metadata store that cases share. `scheme` and `address`: of its URIs; empty for files of SQLite."""

    kind: str
    scheme: str = ""
    address: str = ""


@contextlib.contextmanager
def server(kind: str, folder: Path) -> Iterator[Server]:
    """Start a server of this kind, if it is one that has servers. Raises ConfigError if it is not installed."""
    if kind == "zookeeper":
        with start_zookeeper(folder / "server", sync=False) as zookeeper:
            yield Server(kind, "zk", zookeeper.address)
    elif kind == "etcd":
        with start_etcd(folder / "server", sync=False) as etcd:
            yield Server(kind, "etcd", etcd.address)
    else:
        yield Server(kind)


class World:
    """Made once for many cases; `close` ends what it started."""

    def __init__(self, folder: Path, store: Server) -> None:
        self.folder, self.store = folder, store
        self.kept: dict[str, Any] = {}
        """What a command makes once."""
        self._numbers = itertools.count()
        self._ends = contextlib.ExitStack()

    def close(self) -> None:
        self._ends.close()

    def name(self, kind: str) -> str:
        """Return a name that nothing has yet."""
        return f"{kind}-{next(self._numbers)}"

    def new_folder(self) -> Path:
        made = self.folder / self.name("case")
        made.mkdir()
        return made

    def new_uri(self, folder: Path) -> str:
        """Return the URI of a place where no cluster is; one of files is below the folder."""
        if self.store.scheme:
            return f"{self.store.scheme}://{self.store.address}/{self.name('root')}"
        return f"sqlite://{folder}/{self.name('metadata')}.db"

    # -- clusters that live

    @cached_property
    def cluster(self) -> ThreadedCluster:
        """Four bookies that heal when somebody asks."""
        made = self._cluster(BOOKIES)
        self._ends.enter_context(healing(made.uri))
        return made

    @cached_property
    def other(self) -> ThreadedCluster:
        """Another cluster, of one bookie."""
        return self._cluster(1)

    @cached_property
    def turned_back(self) -> ThreadedCluster:
        """A cluster whose metadata go back again and again; its clients live for one case."""
        return self._cluster(3)

    def _cluster(self, bookies: int) -> ThreadedCluster:
        metadata = self.new_uri(self.folder) if self.store.scheme else "sqlite"
        return self._ends.enter_context(ThreadedCluster(bookies=bookies, metadata=metadata))

    @property
    def uri(self) -> str:
        return self.cluster.uri

    @cached_property
    def client(self) -> sync.Client:
        return self._ends.enter_context(sync.connect(self.uri))

    @cached_property
    def other_client(self) -> sync.Client:
        return self._ends.enter_context(sync.connect(self.other.uri))

    # -- states that are copied

    def copied(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder as `make` leaves it, which is called once."""
        folder, template = self.folder / name, self.folder / f"{name}.made"
        shutil.rmtree(folder, ignore_errors=True)
        if not template.exists():
            folder.mkdir()
            make(folder)
            shutil.copytree(folder, template, symlinks=True)
        else:
            shutil.copytree(template, folder, symlinks=True)
        return folder


Command = Callable[[World], Case]


def buckram(*words: object) -> str:
    """Run a command in this process, which must succeed; returns what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = in_process([str(word) for word in words])
    assert code == 0, err.getvalue()
    return out.getvalue()


def with_store(uri: str, use: Callable[[TreeStore], Coroutine[Any, Any, T]]) -> T:
    """Use a store in a loop of its own."""

    async def main() -> T:
        store = await open_store(uri)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(main())


@contextlib.contextmanager
def healing(uri: str) -> Iterator[None]:
    """Run an auditor and a replicator in a thread."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def main() -> None:
        async with await connect(uri) as client, TaskScope("healing") as scope:
            scope.spawn(Auditor(client, "a", HEALING).run(), "auditor")
            scope.spawn(Replicator(client, "r", HEALING).run(), "replicator")
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), name="healing", daemon=True)
    thread.start()
    try:
        wait_until(lambda: with_store(uri, _audited), "no auditor")
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _audited(store: TreeStore) -> bool:
    return bool(await Election(store.keys, store.root, "").votes())


def use(uri: str, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Use a client in a loop of its own."""

    async def main() -> T:
        async with await connect(uri) as client:
            return await work(client)

    return asyncio.run(main())
