"""A cluster of bookie processes for one case, and the loads run against it as child processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import Watch
from bench.machines import bookie_place, helpers, zookeeper
from buckram import Client, connect
from buckram.launch.processes import BookieProcess, stop_all
from buckram.metadata.uri import open_store
from buckram.runtime.process.process_setup import loop_factory

DATA_VARIABLE = "BENCH_DIR"


@dataclass
class Bench:
    """A running cluster; `folder` is on the disk that is measured."""

    folder: Path
    uri: str
    bookies: list[BookieProcess]
    environment: Mapping[str, str] | None = None
    machines_before: int = 0
    """Number of machines taken by bookies of other clusters that run at the same time, if bookies have machines of
    their own."""

    @property
    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self.bookies if bookie.alive]

    def add(self) -> BookieProcess:
        """Add a bookie, started and registered, and return it."""
        number = len(self.bookies) + 1
        place, name = bookie_place(self.machines_before + number), f"bookie-{number}"
        bookie = BookieProcess(
            self.uri,
            self.folder / name,
            bookie_id=name,
            host=place.host,
            environment=self.environment,
            launcher=place.launcher,
        )
        self.bookies.append(bookie)
        bookie.start()
        bookie.wait_ready()
        return bookie

    def run(self, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run a `buckram` command to its end; return the JSON of its last line."""
        command = [sys.executable, "-m", "buckram", *map(str, arguments), "--metadata", self.uri, "--json"]
        return last_json(command, environment)

    def write(self, **options: object) -> dict[str, Any]:
        """Run `buckram bench write` with these options; the defaults are 1 KB and 3/3/2."""
        given = {"size": 1024, "ensemble": "3/3/2", **options}
        return self.run("bench", "write", *(x for key, value in given.items() for x in (f"--{key}", value)))


def last_json(command: list[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    value = json.loads(done.stdout.decode().strip().splitlines()[-1])
    assert isinstance(value, dict)
    return value


def data_root() -> Path:
    root = Path(os.environ.get(DATA_VARIABLE, "bench-results/data")).absolute()
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextlib.contextmanager
def cluster(
    bookies: int = 3,
    environment: Mapping[str, str] | None = None,
    metadata: str = "sqlite",
    machines_before: int = 0,
) -> Iterator[Bench]:
    """Bookie processes with data below BENCH_DIR (default bench-results/data); all of it is removed at the end.

    `metadata`: "sqlite", or "zookeeper" for a server of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if metadata == "zookeeper":
            uri = f"zk://{stack.enter_context(zookeeper(folder / 'zookeeper'))}/ledgers"
        else:
            uri = f"sqlite://{folder / 'metadata.db'}"
        asyncio.run(initialise(uri))
        bench = Bench(folder, uri, [], environment, machines_before)
        stack.callback(stop_all, bench.bookies)
        for _ in range(bookies):
            bench.add()
        yield bench


def inside(load: Callable[[Bench, Client], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    """Run a load in this process against three bookie processes; `foreign_cpu` is the CPU of other processes
    meanwhile."""

    async def main(bench: Bench) -> dict[str, Any]:
        async with connect(bench.uri) as client:
            return await load(bench, client)

    with cluster() as bench, asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner:
        with Watch(None, [*bench.pids, *helpers()]) as watch:
            figures = runner.run(main(bench))
        return {**figures, "foreign_cpu": watch.foreign_share}


async def initialise(uri: str) -> None:
    """Make a cluster there, unless there is one already."""
    store = await open_store(uri)
    try:
        await store.initialise()
    finally:
        await store.close()
