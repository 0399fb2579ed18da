"""One connection of a relay to a gateway: requests go there, answers come back, and silence ends it.

Not here: which gateway, and what if it fails (`failover.py`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from buckram.addresses import host_port
from buckram.serve.http.limits import KIB
from buckram.serve.webhdfs.protocol_names import ATTEMPT, REPEATED
from buckram.spark.relay.http_messages import (
    HEAD_BYTES,
    PIECE,
    Body,
    Head,
    MessageTruncated,
    NotHttp,
    body_pieces,
    read_head,
)

AT_ONCE = 64 * KIB
"""Maximum size of a body that is written without checking whether an answer comes before its end."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of a relay, in seconds."""

    total: float = 60.0
    """Maximum wait for an answer of any gateway, from a complete request on."""
    connect: float = 5.0
    silence: float = 30.0
    """Time without any byte sent or received after which a gateway is taken for dead."""
    idle: float = 30.0
    """Time that an idle connection is kept for the next request: less than gateways keep theirs."""


@dataclass(slots=True)
class Request:
    """A request with all of its body. `repeated`: it was sent before, with an unknown outcome."""

    head: Head
    body: Body
    attempt: str
    gone: Callable[[], bool]
    repeated: bool = False

    def written(self) -> bytes:
        """Return its head for a gateway."""
        more = [(ATTEMPT, self.attempt)]
        if self.repeated:
            more.append((REPEATED, "true"))
        return self.head.written(self.body.size, *more)


@dataclass(slots=True)
class GatewayConnection:
    """A connection to a gateway. `used`: it had an answer before, so the gateway may have left it since; `spoiled`: it
    was answered before it had all of a request."""

    address: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    silence: float
    used: bool = False
    spoiled: bool = False
    idle_since: float = 0.0

    async def ask(self, request: Request) -> Head:
        """Send a request and return the head of the answer. Raises OSError."""
        head = request.written()
        if request.body.size <= AT_ONCE:
            self.writer.write(b"".join((head, *request.body.pieces())))
            return await self._answer()
        # A gateway may refuse a body before it has all of it, and then takes no more.
        writing = asyncio.ensure_future(self._write(head, request.body))
        reading = asyncio.ensure_future(self._answer(patient=True))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await writing
                async with asyncio.timeout(self.silence):
                    await asyncio.wait((reading,))
            return reading.result()
        finally:
            self.spoiled = not writing.done()
            writing.cancel()
            reading.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _write(self, head: bytes, body: Body) -> None:
        self.writer.write(head)
        for piece in body.pieces():
            self.writer.write(piece)
            async with asyncio.timeout(self.silence):
                await self.writer.drain()

    async def _answer(self, *, patient: bool = False) -> Head:
        while True:
            async with asyncio.timeout(None if patient else self.silence):
                head = await read_head(self.reader)
            if head is None:
                raise MessageTruncated
            if not head.words[1].isdigit():
                raise NotHttp(f"{head.first[:60]!r} begins no answer")
            if head.status >= 200:
                return head

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body of the answer. Raises OSError."""
        pieces = aiter(body_pieces(self.reader, head))
        while True:
            async with asyncio.timeout(self.silence):
                piece = await anext(pieces, b"")
            if not piece:
                return
            yield piece

    def close(self) -> None:
        self.writer.transport.abort()


async def link_to(
    address: str, patience: Patience, tls: Callable[[], ssl.SSLContext] | None = None
) -> GatewayConnection:
    """Connect to a gateway; `tls` returns the context that trusts it, None: it has no TLS. Raises OSError."""
    host, port = host_port(address, "gateway")
    context = None if tls is None else tls()
    async with asyncio.timeout(patience.connect):
        reader, writer = await asyncio.open_connection(host, port, limit=max(HEAD_BYTES, PIECE), ssl=context)
    return GatewayConnection(address, reader, writer, patience.silence)
