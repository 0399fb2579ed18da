"""A cluster of bookie processes for one case, and the loads run against it as child processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import bookie_place
from buckram.processes import BookieProcess, stop_all

DATA_VARIABLE = "BENCH_DIR"


@dataclass
class Bench:
    """A running cluster; `folder` is on the disk that is measured."""

    folder: Path
    uri: str
    bookies: list[BookieProcess]

    @property
    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self.bookies if bookie.alive]

    def run(self, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A `buckram` command to its end; the JSON of its last line."""
        command = [sys.executable, "-m", "buckram", *map(str, arguments), "--metadata", self.uri, "--json"]
        return last_json(command, environment)

    def write(self, **options: object) -> dict[str, Any]:
        """`buckram bench write` with these options, 1 KB and 3/3/2 where not said."""
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
def cluster(bookies: int = 3, environment: Mapping[str, str] | None = None) -> Iterator[Bench]:
    """Bookie processes with data below BENCH_DIR (default bench-results/data); all of it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    uri = f"sqlite://{folder / 'metadata.db'}"
    children = []
    for n in range(1, bookies + 1):
        place = bookie_place(n)
        name = f"bookie-{n}"
        children.append(
            BookieProcess(
                uri,
                folder / name,
                bookie_id=name,
                host=place.host,
                environment=environment,
                launcher=place.launcher,
            )
        )
    try:
        for child in children:
            child.start()
            child.wait_ready()
        yield Bench(folder, uri, children)
    finally:
        stop_all(children)
        shutil.rmtree(folder, ignore_errors=True)
