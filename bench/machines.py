"""Placement of the processes of a benchmark: all on this machine, or, with NET=1, each bookie on one of its own
(wire.py).

Between machines there is only TCP, half a millisecond each way, and no process reads another machine's files. The loads
and this process are together on one more machine, ZooKeeper is on another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos import wire

VARIABLE, DELAY_VARIABLE = "NET", "NET_DELAY_US"
CLIENT, ZOOKEEPER, FIRST_BOOKIE = 1, 9, 10
REMOTE = {"BUCKRAM_SOCKETS": "tcp", "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}
"""No Unix sockets and no files of neighbours, which a shared file system would still offer."""
LOOPBACK = "127.0.0.1"
_current: wire.Wire | None = None


@dataclass(frozen=True)
class Place:
    """A machine: its address, and what stands before a command that runs there."""

    host: str = LOOPBACK
    launcher: tuple[str, ...] = ()


def wanted(environment: Mapping[str, str]) -> bool:
    return environment.get(VARIABLE, "") not in ("", "0")


@contextlib.contextmanager
def network(apart: bool) -> Iterator[None]:
    """Run the block between machines if `apart`. This process stays on the client's machine afterwards, so call it
    once, first of all, before there are threads."""
    global _current
    if not apart:
        yield
        return
    with wire.Wire(int(os.environ.get(DELAY_VARIABLE, wire.DELAY_US))) as made:
        wire.join(str(made.control), CLIENT)
        os.environ.update(REMOTE)
        _current = made
        try:
            yield
        finally:
            _current = None


def apart() -> bool:
    return _current is not None


def bookie_place(number: int) -> Place:
    """Return the place of a bookie; `number` counts from 0 among all that run at one time."""
    return _place(FIRST_BOOKIE + number)


def here() -> str:
    """Return the address under which other machines reach this process."""
    return LOOPBACK if _current is None else wire.address(CLIENT)


def helpers() -> list[int]:
    """Processes that carry packets: they belong to no side of a measurement, and are no strangers."""
    return [] if _current is None else [_current.pid]


def _place(machine: int) -> Place:
    return Place() if _current is None else Place(wire.address(machine), tuple(_current.launcher(machine)))


@contextlib.contextmanager
def zookeeper(folder: Path) -> Iterator[str]:
    """Yield a ZooKeeper server on its machine; its address."""
    place = _place(ZOOKEEPER)
    command = [*place.launcher, sys.executable, "-m", "buckram", "zookeeper", "run", "--data", str(folder)]
    command += ["--host", place.host, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"ZooKeeper ended with {process.wait()}")
        told = json.loads(line)
        yield f"{told['host']}:{told['port']}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()
