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
"""Everything goes through the network of faults."""
REMOTE = {**NO_SHORTCUTS, "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}
"""Between machines nobody reads the files of another, which a shared file system would still offer."""


class Machines(Protocol):
    """How processes are put on machines, and where their servers are."""

    kind: str

    def launcher(self, machine: int) -> list[str]:
        """What stands before a command that is to run there."""

    def environment(self, machine: int) -> Mapping[str, str]:
        """What its processes have in their environment."""

    def listens(self, machine: int) -> str:
        """The address that its servers bind."""

    def reached(self, machine: int, *ports: int) -> str:
        """The address where others reach these ports of it."""

    def set_links(self, links: list[Link]) -> None:
        """Replace what is wrong with the network."""


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
    """Machines, and what is wrong with the links between them at present."""

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
    """This process becomes one of the network's machines, too, so call it first of all, before there are threads.

    `namespaces`: use them where they are allowed. NoRelays where neither is possible."""
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
    """Why there can be no network namespaces; empty where there can. Tried in a child."""
    try:
        with wire.Wire() as between:
            done = subprocess.run(
                [*between.launcher(FIRST_BOOKIE), "true"], capture_output=True, text=True, check=False
            )
            return done.stderr.strip()
    except wire.NoWire as error:
        return str(error)
