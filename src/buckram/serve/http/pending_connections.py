"""Connections that have not sent a complete request head yet, those in a TLS handshake included.

Their senders are unknown, so all of them together are bounded in number and in bytes; beyond a limit the oldest is cut
off. asyncio's own server counts nothing before a TLS handshake has ended, and gives it a minute, so `TlsAcceptor`
accepts such connections instead. Not here: the size of one head, and its time (`serve/http/connection.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from buckram.runtime.process.tasks import TaskScope
from buckram.serve.http.limits import HttpLimits

# -- heads that are owed ----------------------------------------------------------------------------------


class Droppable(Protocol):
    """A connection that can be ended at once."""

    def cut_off(self) -> None:
        """Abort the connection, and drop what it has sent."""
        ...


class Heads:
    """All such connections of one server."""

    def __init__(self, limits: HttpLimits) -> None:
        self._most = limits.half_heads
        # Whatever a single head may have, some fit.
        self._most_bytes = max(limits.half_head_bytes, 4 * limits.head_bytes)
        self._sizes: dict[Droppable, int] = {}
        """By connection, the oldest first: the bytes of its head that are there."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def held_bytes(self) -> int:
        """Bytes that these connections have sent in total."""
        return self._bytes

    def hold(self, connection: Droppable, size: int) -> None:
        """Record the bytes of its head that a connection has sent so far; cut off the oldest beyond the limits."""
        self._bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while len(self._sizes) > self._most or self._bytes > self._most_bytes:
            self.make_room()

    def make_room(self) -> bool:
        """Cut off the oldest; return whether there was one."""
        oldest = next(iter(self._sizes), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.cut_off()
        return True

    def leave(self, connection: Droppable) -> None:
        """Stop counting a connection: its head is complete, or it closed. Idempotent."""
        self._bytes -= self._sizes.pop(connection, 0)


# -- TLS handshakes ---------------------------------------------------------------------------------------

PAUSE_S = 1.0
"""Pause of accepting after an error that concerns all connections, such as too many open files, seconds."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger("buckram.http")


class TlsAcceptor:
    """Accepts on listening sockets until it is closed, with the interface that uvicorn needs of a server.

    The sockets stay open: they belong to the caller.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        heads: Heads,
        within_s: float,
        scope: TaskScope,
    ) -> None:
        """Accept with these limits. `make`: makes the protocol of a connection. `within_s`: time limit of a TLS
        handshake, seconds. `scope`: runs the tasks.
        """
        self.sockets = tuple(sockets)
        self._context, self._make, self._heads, self._within_s = context, make, heads, within_s
        self._scope = scope
        self._accepting = [scope.spawn(self._accept(one), "accept") for one in sockets]
        self._handshakes: dict[_Handshake, None] = {}

    def close(self) -> None:
        """Stop accepting, and end the connections whose handshakes have not ended."""
        for task in self._accepting:
            task.cancel()
        for one in self.sockets:
            if one.fileno() >= 0:  # whoever closes them next may have their numbers given to others
                asyncio.get_running_loop().remove_reader(one.fileno())
        for handshake in list(self._handshakes):
            handshake.cut_off()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more."""
        if self._accepting:
            await asyncio.wait(self._accepting)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                if listening.fileno() < 0:
                    return
                if error.errno in _FULL:
                    _log.error("no connection is accepted for %g s: %s", PAUSE_S, error)
                    await asyncio.sleep(PAUSE_S)
                continue
            handshake = _Handshake(sock)
            self._handshakes[handshake] = None
            handshake.task = self._scope.spawn(self._shake(handshake), "handshake")
            handshake.task.add_done_callback(partial(self._ended, handshake))
            self._heads.hold(handshake, 0)

    async def _shake(self, handshake: _Handshake) -> None:
        handshake.begun, loop = True, asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make, handshake.sock, ssl=self._context, ssl_handshake_timeout=self._within_s
            )
        except OSError as error:  # of TLS and of time, too
            _log.debug("a handshake failed: %s", error)

    def _ended(self, handshake: _Handshake, task: asyncio.Task[None]) -> None:
        self._heads.leave(handshake)
        self._handshakes.pop(handshake, None)
        if not handshake.begun:
            handshake.sock.close()


class _Handshake:
    """One connection until its handshake has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.begun = False
        """True once a transport owns the socket, and will close it."""
        self.task: asyncio.Task[None] | None = None

    def cut_off(self) -> None:
        """Abort the handshake (Droppable)."""
        if self.task is not None:
            self.task.cancel()
