"""The production Network: TCP through the running event loop. Timeouts and protocols belong to the callers.

Processes of one user on one machine speak through local sockets instead (runtime/net/local_sockets): the same bytes for
less.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from buckram.addresses import join
from buckram.runtime.net import local_sockets
from buckram.runtime.net.listening import listening_sockets
from buckram.seams import ProtocolFactory

BACKLOG = 1024
SCRATCH_BYTES = 64 * 1024
"""Size of the buffer that receives bytes when the receiver offers no place for them."""


class Receiver(Protocol):
    """An asyncio.Protocol that may offer a buffer for its bytes: a large answer is then received without a copy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def eof_received(self) -> bool | None: ...
    def data_received(self, data: bytes) -> None: ...
    def room(self) -> memoryview | None:
        """Where the next bytes belong; None: anywhere, tell data_received."""
        ...

    def filled(self, count: int) -> None:
        """Take note that `count` bytes were written into the buffer that `room` returned last."""
        ...


class _Reception(asyncio.BufferedProtocol):
    """Adapter between a transport and a Receiver. `scratch` is shared by all connections: the loop fills and empties it
    in one step."""

    def __init__(self, receiver: Receiver, scratch: memoryview) -> None:
        self._receiver, self._scratch = receiver, scratch
        self._direct = False
        self.connection_made = receiver.connection_made  # type: ignore[method-assign]  # what is only passed on
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]
        self.eof_received = receiver.eof_received  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._receiver.room()
        self._direct = room is not None
        return self._scratch if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self._direct:
            self._receiver.filled(nbytes)
        else:
            self._receiver.data_received(bytes(self._scratch[:nbytes]))


class TcpListener:
    """seams.Listener on an asyncio server for each address, and the local one beside them."""

    def __init__(
        self,
        servers: Sequence[asyncio.AbstractServer],
        port: int,
        local: asyncio.AbstractServer | None,
        door: socket.socket | None = None,
    ) -> None:
        self._servers, self._local, self._door = servers, local, door
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        # Not wait_closed(): from Python 3.12 on that waits for the open connections, which are to stay.
        for server in self._servers:
            server.close()
        if self._local is not None:
            if self._door is not None:
                local_sockets.forget(self._door)
            self._local.close()
        await asyncio.sleep(0)


class TcpNetwork:
    """seams.Network on sockets; Nagle off, keep-alive on. For one loop. `local` False: TCP only."""

    def __init__(self, *, local: bool = True) -> None:
        self._local = local and local_sockets.wanted()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        loop = asyncio.get_running_loop()
        protocol = factory()
        outer: asyncio.BaseProtocol = protocol
        if hasattr(protocol, "room"):
            outer = _Reception(cast("Receiver", protocol), self._scratch)
        near = local_sockets.connected(host, port) if self._local else None
        if near is not None:
            transport, _ = await loop.create_unix_connection(lambda: outer, sock=near)
            return transport, protocol
        transport, _ = await loop.create_connection(lambda: outer, host, port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # asyncio and uvloop set TCP_NODELAY themselves today; the hot path depends on it, so do not rely on that.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport, protocol

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> TcpListener:
        loop = asyncio.get_running_loop()
        try:
            bound = await listening_sockets(host, port, BACKLOG)
            servers = [await loop.create_server(factory, sock=sock, backlog=BACKLOG) for sock in bound]
        except OSError as error:
            # From Python 3.13 on asyncio says of an address that is not here only that it could not bind.
            code = errno.EADDRNOTAVAIL if error.errno is None else error.errno
            raise OSError(code, _why_not(host, port, error)) from error
        # An accepted socket inherits these from its listener, before the first byte.
        for sock in bound:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        chosen = int(bound[0].getsockname()[1])
        near = local_sockets.listening(host, chosen, BACKLOG) if self._local else None
        beside = await loop.create_unix_server(factory, sock=near, backlog=BACKLOG) if near is not None else None
        return TcpListener(servers, chosen, beside, near)


def _why_not(host: str, port: int, error: OSError) -> str:
    where = f"cannot listen at {join(host, port)}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the address is in use; stop the program that uses it or choose another port, 0 for any"
    if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, None):
        return f"{where}: not an address of this machine; choose one that is, 127.0.0.1 for example"
    if error.errno == errno.EACCES:
        return f"{where}: not allowed; choose a port from 1024 on"
    return f"{where}: {error.strerror or error}; choose another host or port"
