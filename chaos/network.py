"""The network between the processes: namespaces joined by a wire where they are allowed, otherwise relays on loopback.

Every process is on a machine of its own. Links are cut, lossy or slow, each in one direction, in both kinds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Protocol

from chaos import wire
from chaos.relay import Relays
from chaos.wire import Link

CONTROL, FIRST_SERVER, FIRST_BOOKIE, FIRST_ACTOR, FIRST_HEALER = 1, 4, 10, 200, 230
"""Numbers of machines: this program's, and the first of each kind."""
NO_SHORTCUTS = {"BUCKRAM_SOCKETS": "tcp"}
"""Environment that makes all traffic go through the network of faults."""
REMOTE = {**NO_SHORTCUTS, "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}
"""Environment of processes on different machines: none reads another machine's files, although they share a file system
here."""


class Machines(Protocol):
    """Placement of processes on machines, and the addresses of their servers."""

    kind: str

    def launcher(self, machine: int) -> list[str]:
        """Return the words to put before a command that is to run there."""

    def environment(self, machine: int) -> Mapping[str, str]:
        """Return the environment variables of the machine's processes."""

    def listens(self, machine: int) -> str:
        """Return the address that its servers bind."""

    def reached(self, machine: int, *ports: int) -> str:
        """Return the address where others reach these ports of it."""

    def set_links(self, links: list[Link]) -> None:
        """Replace all faults of the network by these."""


class Namespaces:
    """Each machine has a network namespace, and the wire carries packets between them."""

    kind = "namespaces"

    def __init__(self, between: wire.Wire) -> None:
        self._wire = between
        self.launcher = between.launcher
        self.set_links = between.set_links

    def environment(self, machine: int) -> Mapping[str, str]:
        return REMOTE

    def listens(self, machine: int) -> str:
        return wire.address(machine)

    def reached(self, machine: int, *ports: int) -> str:
        return wire.address(machine)


class Loopback:
    """All processes share this machine's loopback, and relays stand before their servers."""

    def __init__(self, relays: Relays, why_not: str) -> None:
        self._relays = relays
        self.kind = f"relays ({why_not})"
        self.set_links = relays.set_links

    def launcher(self, machine: int) -> list[str]:
        return []

    def environment(self, machine: int) -> Mapping[str, str]:
        return {**NO_SHORTCUTS, **self._relays.environment(machine)}

    def listens(self, machine: int) -> str:
        return self._relays.behind(machine)

    def reached(self, machine: int, *ports: int) -> str:
        self._relays.serve(machine, *ports)
        return self._relays.reached(machine)


class Network:
    """Machines, and the current faults of the links between them."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._links: dict[tuple[int, int], Link] = {}

    def add(self, *links: Link) -> None:
        """Spoil these links, from now on."""
        self._links.update({(link.source, link.target): link for link in links})
        self.machines.set_links(list(self._links.values()))

    def mend(self, *links: Link) -> None:
        for link in links:
            self._links.pop((link.source, link.target), None)
        self.machines.set_links(list(self._links.values()))

    def mend_all(self) -> None:
        self._links.clear()
        self.machines.set_links([])


@contextlib.contextmanager
def network(namespaces: bool) -> Iterator[Network]:
    """Make the network between the machines. This process becomes one of them, too, so call it first of all, before
    there are threads.

    `namespaces`: use network namespaces where they are allowed. Raises NoRelays if relays are impossible, too."""
    why_not = _why_not() if namespaces else "namespaces were not asked for"
    if why_not:
        os.environ.update(NO_SHORTCUTS)
        with Relays() as relays:
            yield Network(Loopback(relays, why_not))
        return
    with wire.Wire() as between:
        wire.join(str(between.control), CONTROL)
        os.environ.update(REMOTE)
        yield Network(Namespaces(between))


def _why_not() -> str:
    """Return why there can be no network namespaces; empty if there can. It is tried in a child process."""
    try:
        with wire.Wire() as between:
            done = subprocess.run(
                [*between.launcher(FIRST_BOOKIE), "true"], capture_output=True, text=True, check=False
            )
            return done.stderr.strip()
    except wire.NoWire as error:
        return str(error)
