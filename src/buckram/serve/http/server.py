"""Serves an application on sockets until it is closed gracefully: requests in progress get their answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from buckram.addresses import join
from buckram.errors import ConfigError
from buckram.runtime.net.listening import listening_now
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.process.tasks import TaskScope
from buckram.serve.http.connection import Socket, limited
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.pending_connections import Heads, TlsAcceptor

_BACKLOG = 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class Listening:
    """The listening sockets of a host, one for each of its addresses, all at one port. `with` or close()."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = tuple(sockets)

    @property
    def address(self) -> tuple[str, int]:
        """The first address, and the port."""
        host, port = self.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def dup(self) -> Listening:
        return Listening([one.dup() for one in self.sockets])

    def close(self) -> None:
        for one in self.sockets:
            one.close()

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def bind(host: str, port: int, what: str = "the address") -> Listening:
    """Listen at every address of a host; port 0 takes a free one. `what` names the option in errors. Raises
    ConfigError."""
    try:
        listening = Listening(listening_now(host, port, _BACKLOG))
    except OSError as error:
        where = f"{what} {join(host, port)}"
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{where}: the port is in use; choose another one, or 0 for any") from None
        raise ConfigError(f"{where}: {error.strerror or error}; choose an address of this host") from None
    # Accepted sockets inherit these: a client whose machine vanished is found out, also in the middle of an upload.
    for one in listening.sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                one.setsockopt(socket.IPPROTO_TCP, option, value)
    return listening


def url_of(listening: Listening, scheme: str = "http") -> str:
    """The first address that is listened at as a URL without a slash at its end."""
    return f"{scheme}://{join(*listening.address)}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the program. With TLS connections are accepted here."""

    def __init__(self, config: uvicorn.Config, heads: Heads, handshake_s: float, scope: TaskScope) -> None:
        """`heads`: those of the server. `handshake_s`: what a handshake may take. `scope`: for tasks."""
        super().__init__(config)
        self._heads, self._handshake_s, self._scope = heads, handshake_s, scope

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, for sockets that listen already."""
        if self.config.ssl is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        kind = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        loop, state = asyncio.get_running_loop(), self.lifespan.state
        make = partial(kind, config=self.config, server_state=self.server_state, app_state=state, _loop=loop)
        acceptor = TlsAcceptor(sockets or (), self.config.ssl, make, self._heads, self._handshake_s, self._scope)
        self.servers = cast("list[asyncio.Server]", [acceptor])
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An application on listening sockets, which it takes over. `async with` or start() and close().

    `tls`: the certificate that it shows, which is read again when its files change; None: no TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        listening: Listening,
        limits: HttpLimits | None = None,
        tls: TlsFiles | None = None,
        *,
        message_bytes: int = 0,
    ) -> None:
        """`message_bytes`: of one message on a WebSocket; 0: there are none."""
        self.url = url_of(listening, "http" if tls is None else "https")
        self._listening, limits = listening, limits or HttpLimits()
        connection = limited(limits)
        config = uvicorn.Config(
            app,
            http=connection,
            ws=Socket if message_bytes else "none",
            ws_max_size=message_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(limits.idle_s)),
            timeout_graceful_shutdown=limits.drain_s,
        )
        if tls is not None:
            config.load()
            config.ssl = tls.lasting_context()
        self._scope = TaskScope(f"http server at {self.url}")
        self._server = _Server(config, connection.heads, limits.patience_s, self._scope)
        self._serving: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Begin to serve; the sockets accept connections already."""
        self._serving = self._scope.spawn(self._server.serve(list(self._listening.sockets)), "serve")

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    async def close(self) -> None:
        """Accept nothing more, let requests that are being served end (`drain_s`), then cut the rest. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._server.should_exit = True
        try:
            if self._serving is not None:
                await self._serving
        finally:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await self._scope.close()
            self._listening.close()

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
