"""The network between the processes: namespaces joined by a wire where they are allowed, otherwise relays on loopback.

Every process is on a machine of its own. Links are cut, lossy or slow, each in one direction, in both kinds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from chaos import wire
from chaos.machines import NO_SHORTCUTS, Link, Links, Machines, NoNetwork
from chaos.relay import Relays

CONTROL, FIRST_SERVER, FIRST_BOOKIE, FIRST_ACTOR, FIRST_HEALER = 1, 4, 10, 200, 230
"""Numbers of machines: this program's, and the first of each kind."""


class Network:
    """Machines, and the current faults of the links between them."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._links: Links = {}

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

    `namespaces`: use network namespaces where they are allowed. Raises NoNetwork if relays are impossible, too."""
    why_not = _why_not() if namespaces else "namespaces were not asked for"
    if why_not:
        os.environ.update(NO_SHORTCUTS)
        with Relays() as relays:
            relays.kind = f"relays ({why_not})"
            yield Network(relays)
        return
    with wire.Wire() as between:
        wire.join(str(between.control), CONTROL)
        os.environ.update(wire.REMOTE)
        yield Network(between)


def _why_not() -> str:
    """Return why there can be no network namespaces; empty if there can. It is tried in a child process."""
    try:
        with wire.Wire() as between:
            done = subprocess.run(
                [*between.launcher(FIRST_BOOKIE), "true"], capture_output=True, text=True, check=False
            )
            return done.stderr.strip()
    except NoNetwork as error:
        return str(error)
