"""Serving an application on a socket until it is closed, gracefully: requests that are served get their answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from buckram.errors import ConfigError
from buckram.http.connection import limited
from buckram.http.limits import HttpLimits
from buckram.net.tasks import TaskScope
from buckram.net.tls_files import TlsFiles

_BACKLOG = 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


def bind(host: str, port: int, what: str = "the address") -> socket.socket:
    """A listening socket; port 0 takes a free one. `what` names the option in errors. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{what} {host}:{port}: the port is in use; choose another one, or 0 for any") from None
        raise ConfigError(f"{what} {host}:{port}: {error.strerror or error}; choose an address of this host") from None
    # Accepted sockets inherit these: a client whose machine vanished is found out, also in the middle of an upload.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            listening.setsockopt(socket.IPPROTO_TCP, option, value)
    return listening


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """The address of a listening socket as a URL without a slash at its end."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An application on a listening socket, which it takes over. `async with` or start() and close().

    `tls`: the certificate that it shows, which is read again when its files change; None: no TLS.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, limits: HttpLimits | None = None, tls: TlsFiles | None = None
    ) -> None:
        self.url = url_of(listening, "http" if tls is None else "https")
        self._listening, limits = listening, limits or HttpLimits()
        config = uvicorn.Config(
            app,
            http=limited(limits),
            ws="none",
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
        self._server = _Server(config)
        self._scope = TaskScope(f"http server at {self.url}")
        self._serving: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Begin to serve; the socket accepts connections already."""
        self._serving = self._scope.spawn(self._server.serve([self._listening]), "serve")

    @property
    def connections(self) -> int:
        """How many are open."""
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


__all__ = ["HttpServer", "bind", "url_of"]
