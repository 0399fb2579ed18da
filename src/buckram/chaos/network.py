"""The network between the processes: namespaces joined by a wire where they are allowed, otherwise this machine's own.

In namespaces every process is a machine; links are cut, lossy or slow, each in one direction. Without them there are no
faults of the network, which the verdict says.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from buckram.chaos import wire
from buckram.chaos.wire import Link

CONTROL, FIRST_SERVER, FIRST_BOOKIE, FIRST_ACTOR, FIRST_HEALER = 1, 4, 10, 200, 230
"""Numbers of machines: this program's, and the first of each kind."""
REMOTE = {"BUCKRAM_SOCKETS": "tcp", "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}


class Network:
    """`wire` None: all processes share this machine's loopback."""

    def __init__(self, between: wire.Wire | None, why_not: str = "") -> None:
        self.wire, self.why_not = between, why_not
        self._links: dict[tuple[int, int], Link] = {}

    @property
    def kind(self) -> str:
        """What a verdict calls it."""
        return "namespaces" if self.wire is not None else f"one machine ({self.why_not})"

    def host(self, machine: int) -> str:
        return "127.0.0.1" if self.wire is None else wire.address(machine)

    def launcher(self, machine: int) -> list[str]:
        return [] if self.wire is None else self.wire.launcher(machine)

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.wire is None else REMOTE

    def add(self, *links: Link) -> None:
        """Spoil these links, from now on."""
        self._links.update({(link.source, link.target): link for link in links})
        self._apply()

    def mend(self, *links: Link) -> None:
        for link in links:
            self._links.pop((link.source, link.target), None)
        self._apply()

    def mend_all(self) -> None:
        self._links.clear()
        self._apply()

    def _apply(self) -> None:
        if self.wire is not None:
            self.wire.set_links(self._links.values())


@contextlib.contextmanager
def network(allowed: bool) -> Iterator[Network]:
    """This process becomes one of the network's machines, too, so call it first of all, before there are threads."""
    why_not = _why_not() if allowed else "it was not asked for"
    if why_not:
        yield Network(None, why_not)
        return
    with wire.Wire() as between:
        wire.join(str(between.control), CONTROL)
        os.environ.update(REMOTE)
        yield Network(between)


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
