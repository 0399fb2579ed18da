"""The metrics endpoint: one page of Prometheus text over the least HTTP that scrapers need. Nothing else is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from buckram.config import host_port
from buckram.seams import Listener, Network
from buckram.types import BookieAddress

LONGEST_REQUEST, PATIENCE_S = 8192, 10.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def parse_address(text: str, what: str) -> BookieAddress:
    """HOST:PORT, or ConfigError naming `what`."""
    return BookieAddress(*host_port(text, f"{what} = {text!r}"))


async def serve_metrics(network: Network, address: BookieAddress, render: Callable[[], bytes]) -> Listener:
    """Listen; OSError when the port is in use."""
    return await network.listen(address.host, address.port, lambda: _Page(render))


class _Page(asyncio.Protocol):
    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render, self._request = render, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._deadline = asyncio.get_running_loop().call_later(PATIENCE_S, transport.close)
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if b"\r\n\r\n" not in self._request and b"\n\n" not in self._request:
            if len(self._request) > LONGEST_REQUEST:
                self._transport.abort()
            return
        method, _, rest = self._request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            self._answer("405 Method Not Allowed", b"only GET is served\n", body=True)
        elif path not in (b"/", b"/metrics"):
            self._answer("404 Not Found", b"only /metrics is served\n", body=True)
        else:
            self._answer("200 OK", self._render(), body=method == b"GET")

    def _answer(self, status: str, content: bytes, *, body: bool) -> None:
        head = (
            f"HTTP/1.1 {status}", f"Content-Type: {_CONTENT_TYPE}", f"Content-Length: {len(content)}",
            "Connection: close", "", "",
        )
        self._transport.write("\r\n".join(head).encode() + (content if body else b""))
        self._transport.close()
