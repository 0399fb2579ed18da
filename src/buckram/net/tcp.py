"""The production Network: TCP through the running event loop. Timeouts and protocols belong to the callers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

BACKLOG = 1024


class TcpListener:
    """seams.Listener on an asyncio server."""

    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        # Not wait_closed(): from Python 3.12 on that waits for the open connections, which are to stay.
        self._server.close()
        await asyncio.sleep(0)


class TcpNetwork:
    """seams.Network on sockets; Nagle off, keep-alive on."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(factory, host, port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # asyncio and uvloop set TCP_NODELAY themselves today; the hot path depends on it, so do not rely on that.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport, protocol

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> TcpListener:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(factory, host, port, backlog=BACKLOG, reuse_address=True)
        except OSError as error:
            raise OSError(error.errno, _why_not(host, port, error)) from error
        sockets: Any = server.sockets
        # An accepted socket inherits these from its listener, before the first byte.
        for sock in sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return TcpListener(server, int(sockets[0].getsockname()[1]))


def _why_not(host: str, port: int, error: OSError) -> str:
    where = f"cannot listen at {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the address is in use; stop who has it or choose another port, 0 for any"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: not an address of this machine; choose one that is, 127.0.0.1 for example"
    if error.errno == errno.EACCES:
        return f"{where}: not allowed; choose a port from 1024 on"
    return f"{where}: {error.strerror or error}; choose another host or port"
