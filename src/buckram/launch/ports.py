"""TCP ports for servers that are started on this machine: whether one is free, and which one is."""

from __future__ import annotations

import contextlib
import errno
import random
import socket

from buckram.addresses import join
from buckram.errors import ConfigError, PortInUse

PORTS = range(16_000, 32_000)
"""Where free ports are taken from: below the range that the kernel gives to outgoing connections, because a client that
retries a dead server's port in that range can end up connected to itself, and then holds the port."""


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if another program listens there, ConfigError if the host is not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(host, port) from None
        raise ConfigError(
            f"cannot listen on {join(host, port)}: {error.strerror}; --host needs an address of this machine, --port "
            "one that you may use"
        ) from None


def port_in_use(host: str, port: int) -> PortInUse:
    return PortInUse(f"port {port} of {host} is in use by another program; stop that one or choose another --port")


def free_port(host: str, taken: frozenset[int] = frozenset()) -> int:
    """Return a port that is not in use, outside the range of outgoing connections. Raises PortInUse if none is
    found."""
    rng = random.SystemRandom()
    for _ in range(1000):
        port = rng.choice(PORTS)
        if port not in taken:
            with contextlib.suppress(PortInUse):
                check_port(host, port)
                return port
    raise PortInUse(f"no free port of {host} in {PORTS.start}..{PORTS.stop - 1}; name one with --port")
