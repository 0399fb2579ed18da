"""Listening sockets of a host that may have several addresses: each address once, all at the same port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from typing import Any

_TRIES = 20
"""Attempts to find a port that is free at all addresses of a host."""
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Bind and listen. An address that the name has twice is bound once, and a family that this machine lacks is left
    out if another one serves. Port 0: a free one, the same at each address. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return _at_all(found, port, backlog)


def listening_now(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Bind and listen like `listening_sockets`, without a loop; blocks, because looking up a name may take a while."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return _at_all(found, port, backlog)


def _at_all(found: Sequence[Any], port: int, backlog: int) -> list[socket.socket]:
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for last in range(_TRIES):
        try:
            return _bound(places, backlog)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or last == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _bound(places: Sequence[tuple[int, tuple[str | int, ...]]], backlog: int) -> list[socket.socket]:
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        for family, address in places:
            port = sockets[0].getsockname()[1] if sockets else address[1]
            try:
                sock = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], port, *address[2:]))
                sock.listen(backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            sockets.append(sock)
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "the name has no address")
        opened.pop_all()
        return sockets
