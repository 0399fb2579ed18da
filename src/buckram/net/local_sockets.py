"""Sockets for peers on one machine: a TCP address has a second, local door, a Unix socket with its name.

Through it the same bytes cost half of what the network's layers take of them. The name is an abstract one, so it needs
no file and ends with the process; like a TCP port it belongs to one network namespace. Who listens there is believed
only if it is the same user or root. Linux only; without one, or with BUCKRAM_SOCKETS=tcp, TCP does as ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys

VARIABLE = "BUCKRAM_SOCKETS"
BUFFER_BYTES = 1 << 20
"""Requested; the kernel gives what net.core.wmem_max allows."""
_CREDENTIALS = struct.Struct("3i")


def wanted() -> bool:
    """Whether this system has such sockets and nobody has switched them off."""
    return sys.platform == "linux" and os.environ.get(VARIABLE) != "tcp"


def name_of(host: str, port: int) -> str:
    """The name of the local door of an address, as both sides write it."""
    return f"\0buckram {host}:{port}"


def listening(host: str, port: int, backlog: int) -> socket.socket | None:
    """Beside a TCP listener at this very address; None where the name is taken."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        _enlarge(door)
        door.bind(name_of(host, port))
        door.listen(backlog)
    except OSError:
        door.close()
        return None
    return door


def connected(host: str, port: int) -> socket.socket | None:
    """A connection through the local door; None where there is none, it is not ours, or too many wait before it."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    with contextlib.suppress(OSError, ValueError):
        _enlarge(door)
        door.connect(name_of(host, port))
        _, user, _ = _CREDENTIALS.unpack(door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user in (os.getuid(), 0):
            return door
    door.close()
    return None


def _enlarge(door: socket.socket) -> None:
    door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
