"""Sockets for peers on one machine: a TCP address has a second, local door, a Unix socket with its name.

Through it the same bytes cost half of what the network's layers take of them. The socket is a file in a directory that
only its own user may enter, so who comes through it is that user, or root, in the same file system: abstract sockets
would be shared by all containers of a network namespace, whose users have the same numbers. Who listens there is
believed only if it is the same user or root. Linux only; without one, or with BUCKRAM_SOCKETS=tcp, TCP does as ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from urllib.parse import quote

VARIABLE = "BUCKRAM_SOCKETS"
"""`tcp` for none, or the directory for them."""
BUFFER_BYTES = 1 << 20
"""Requested; the kernel gives what net.core.wmem_max allows."""
_CREDENTIALS = struct.Struct("3i")


def wanted() -> bool:
    """Return whether this system has such sockets and BUCKRAM_SOCKETS=tcp does not switch them off."""
    return sys.platform == "linux" and os.environ.get(VARIABLE) != "tcp"


def directory() -> Path:
    """Return the directory of this user's sockets; it is not checked whether it is safe to use."""
    return Path(os.environ.get(VARIABLE) or f"/tmp/buckram-{os.getuid()}")


def name_of(host: str, port: int) -> str:
    """Return the file name of the local socket of an address, the same for both sides. It includes the network
    namespace, to which an address belongs."""
    try:
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        namespace = 0
    return str(directory() / f"{namespace}-{quote(host, safe=':')}:{port}")


def listening(host: str, port: int, backlog: int) -> socket.socket | None:
    """Listen on a local socket beside a TCP listener at this address. Returns None if the name is taken or the
    directory is not ours alone."""
    with contextlib.suppress(OSError):
        directory().mkdir(mode=0o700)
    if not _is_ours():
        return None
    door, name = _new(), name_of(host, port)
    try:
        _enlarge(door)
        if _is_left_behind(name):
            os.unlink(name)
        door.bind(name)
        door.listen(backlog)
    except (OSError, ValueError):
        door.close()
        return None
    return door


def forget(door: socket.socket) -> None:
    """Remove the socket file that `listening` made, so that no further client connects."""
    with contextlib.suppress(OSError):
        os.unlink(door.getsockname())


def connected(host: str, port: int) -> socket.socket | None:
    """Return a connection through the local socket; None if there is none, it is not ours, or its backlog is full."""
    if not _is_ours():
        return None
    door = _new()
    with contextlib.suppress(OSError, ValueError):
        _enlarge(door)
        door.connect(name_of(host, port))
        _, user, _ = _CREDENTIALS.unpack(door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user in (os.getuid(), 0):
            return door
    door.close()
    return None


def _is_ours() -> bool:
    """Return whether the directory is accessible to this user only. A symbolic link is refused, because another user
    may have put it there."""
    try:
        found = os.lstat(directory())
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_left_behind(name: str) -> bool:
    """Return whether the file is left of a killed process: it exists, and no process listens. Only the owner of the TCP
    port may ask."""
    with _new() as probe:
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _new() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _enlarge(door: socket.socket) -> None:
    door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
