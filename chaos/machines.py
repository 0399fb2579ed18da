"""What both networks of faults have in common: the program between the machines, and the faults of the links.

A program is a child of this one, lives until its standard input ends, and obeys lines of JSON; it answers each by a
line. Not here: the two networks (`wire.py`, `relay.py`), and the choice between them (`network.py`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

NO_SHORTCUTS = {"BUCKRAM_SOCKETS": "tcp"}
"""Environment that makes all traffic go through the network of faults."""
READY, DONE = "ready\n", "ok\n"


class NoNetwork(RuntimeError):
    """This kind of network cannot be had here, or has ended; the message says why."""


class Link(NamedTuple):
    """Faults of what goes from one machine to another: the share that is lost (1.0: a partition), and an added
    delay."""

    source: int
    target: int
    loss: float = 0.0
    delay_us: int = 0


Links = dict[tuple[int, int], Link]
"""Faults by the numbers of source and target."""


def links_in(told: Mapping[str, list[list[float]]]) -> Links:
    """Return the faults that a line of JSON tells, which replace all others."""
    links = [Link(int(source), int(target), loss, int(delay)) for source, target, loss, delay in told["links"]]
    return {(link.source, link.target): link for link in links}


def answer(line: str) -> None:
    """Say to the parent that the program runs (READY), or that it did what it was told (DONE)."""
    sys.stdout.write(line)
    sys.stdout.flush()


class Machines(ABC):
    """Machines with numbers, on which processes are placed, and the program between them. Close it."""

    kind: str
    """Which network this is, for reports."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    # -- what the networks bring ----------------------------------------------------------------------------

    def launcher(self, machine: int) -> list[str]:
        """Return the words to put before a command that is to run on this machine."""
        return []

    @abstractmethod
    def environment(self, machine: int) -> Mapping[str, str]:
        """Return the environment variables of the machine's processes."""

    @abstractmethod
    def listens(self, machine: int) -> str:
        """Return the address that its servers bind."""

    @abstractmethod
    def reached(self, machine: int, *ports: int) -> str:
        """Return the address at which others reach these ports of it."""

    # -- the program ----------------------------------------------------------------------------------------

    def start(self, module: str, *words: str) -> bool:
        """Start the program. Return False, with nothing left of it, if it did not begin."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        begun = self._answer() == READY
        if not begun:
            self.close()
        return begun

    def set_links(self, links: Iterable[Link]) -> None:
        """Replace all faults of the network by these links, each in one direction."""
        self.tell({"links": list(links)})

    def tell(self, what: object) -> None:
        """Tell the program what to do, and wait until it is done. Raises NoNetwork if it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise NoNetwork("the program between the machines has ended; what it said is above") from error
        if (said := self._answer()) != DONE:
            raise NoNetwork(f"the program between the machines did not do {what}: {said!r}")

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()  # its end is that program's end
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
