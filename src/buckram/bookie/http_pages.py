"""The HTTP endpoint for metrics, health, readiness and version; supports only what scrapers need of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias, cast

from buckram.config import host_port
from buckram.seams import Listener, Network
from buckram.types import BookieAddress

LONGEST_REQUEST, WITHIN_S = 8192, 10.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def parse_address(text: str, what: str) -> BookieAddress:
    """Return the address HOST:PORT. Raises ConfigError, which names the option `what`."""
    return BookieAddress(*host_port(text, f"{what} = {text!r}"))


class Answer(NamedTuple):
    """The answer to a request for a page. If `good` is false its status is 503, for probes of health and readiness."""

    content: bytes
    good: bool = True
    content_type: str = _CONTENT_TYPE


class Page(Protocol):
    """Makes the content of one page at the time of the request."""

    def __call__(self) -> Answer: ...


Pages: TypeAlias = Mapping[bytes, Page]
"""The pages by path, for example b"/metrics"."""


async def serve_pages(network: Network, address: BookieAddress, pages: Pages) -> Listener:
    """Serve `pages` at `address` until the listener is closed. Raises OSError if the port is in use."""
    return await network.listen(address.host, address.port, lambda: _Exchange(pages))


class _Exchange(asyncio.Protocol):
    """One connection: a request, an answer, the end."""

    def __init__(self, pages: Pages) -> None:
        self._pages, self._request = pages, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._deadline = asyncio.get_running_loop().call_later(WITHIN_S, transport.close)
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it

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
            self._answer("405 Method Not Allowed", Answer(b"only GET is served\n"), body=True)
        elif path not in self._pages:
            known = b", ".join(name for name in self._pages if name != b"/")
            self._answer("404 Not Found", Answer(b"only these are served: " + known + b"\n"), body=True)
        else:
            answer = self._pages[path]()
            self._answer("200 OK" if answer.good else "503 Service Unavailable", answer, body=method == b"GET")

    def _answer(self, status: str, answer: Answer, *, body: bool) -> None:
        content = answer.content
        head = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(content)}",
            "Connection: close",
            "",
            "",
        )
        self._transport.write("\r\n".join(head).encode() + (content if body else b""))
        self._transport.close()
