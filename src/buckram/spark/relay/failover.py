"""The gateways behind a relay, and its connections to them: a request is sent to one after the other until one of them
has answered it.

The gateway that answered last is asked first, because gateways that write to one namespace at once take turns. On a
connection requests go there, answers come back, and silence ends it. Not here: the reply to the client (`server.py`).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from buckram.addresses import host_port
from buckram.core.backoff import RELAY, Delays
from buckram.serve.http.limits import KIB
from buckram.serve.webhdfs.protocol_names import ATTEMPT, REPEATED, RETRY, STANDBY
from buckram.spark.relay.http_messages import (
    HEAD_BYTES,
    PIECE,
    Body,
    BodyMemory,
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


_MOST_IDLE = 16
_AGAIN = (STANDBY, RETRY)


class NoAnswer(Exception):
    """No gateway answered in time; the text has the reason."""


class AskerGone(Exception):
    """The client is gone and waits for no answer any more."""


@dataclass(slots=True)
class Answer:
    """The head of an answer, and its body: all of it, or still to come from `link`."""

    head: Head
    body: Body
    link: GatewayConnection | None = None


class GatewayFailover:
    """Gateways of one cluster, HOST:PORT each. `close()` ends what is connected."""

    def __init__(
        self,
        addresses: Sequence[str],
        patience: Patience,
        room: BodyMemory,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` returns the context that trusts the gateways; None: they have no TLS."""
        self._addresses, self._patience, self._room = list(addresses), patience, room
        self._idle: dict[str, list[GatewayConnection]] = {address: [] for address in addresses}
        self._tls = tls
        self._loop = asyncio.get_running_loop()

    async def ask(self, request: Request, *, in_pieces: bool = False) -> Answer:
        """Return the answer of a gateway. `in_pieces`: the body of a good one is not awaited. NoAnswer, AskerGone.

        A refusal for now, or a referral to another gateway, does not count as an answer.
        """
        end, delays = self._loop.time() + self._patience.total, Delays(RELAY)
        went_wrong: dict[str, str] = {}
        while True:
            for address in tuple(self._addresses):
                try:
                    answer = await self._ask_one(address, request, in_pieces)
                except OSError as error:
                    went_wrong[address] = str(error) or f"silent for {self._patience.silence:g} s"
                else:
                    if (why := _refusal(answer)) is None:
                        self._prefer(address)
                        return answer
                    answer.body.close()
                    request.repeated, went_wrong[address] = True, why
            if request.gone():
                raise AskerGone
            if self._loop.time() + delays.next_s > end:
                told = "; ".join(f"{address}: {why}" for address, why in went_wrong.items())
                raise NoAnswer(f"no gateway could do it within {self._patience.total:g} s: {told}")
            await asyncio.sleep(delays.take())

    async def rest(self, request: Request, answer: Answer) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file. If a gateway dies, another one reads all of it; bytes already sent are skipped.

        So the last gateway compares the whole file with its digest, as the first one would have done. Raises NoAnswer,
        AskerGone, and Cut for a file that is another one now, or that no gateway returns to its end.
        """
        link, done, size, tag = answer.link, 0, answer.head.get("content-length"), answer.head.get("etag")
        head, tries = answer.head, len(self._addresses)
        while True:
            assert link is not None
            at = 0
            try:
                async for piece in link.pieces(head):
                    at += len(piece)
                    if at > done:
                        fresh = piece[len(piece) - (at - done) :] if at - done < len(piece) else piece
                        done, tries = at, len(self._addresses)
                        yield fresh
            except OSError:
                link.close()
            except BaseException:
                link.close()
                raise
            else:
                self.keep(link, head)
                return
            tries -= 1
            again = await self.ask(request, in_pieces=True)
            again.body.close()
            head, link = again.head, again.link
            if link is None:
                raise MessageTruncated
            if tries < 0 or (head.get("content-length"), head.get("etag")) != (size, tag):
                link.close()
                raise MessageTruncated

    async def _ask_one(self, address: str, request: Request, in_pieces: bool) -> Answer:
        while True:
            link = await self._link(address)
            body = Body(self._room)
            try:
                head = await link.ask(request)
                if in_pieces and head.status == 200:
                    return Answer(head, body, link)
                async for piece in link.pieces(head):
                    body.add(piece)
                self.keep(link, head)
                return Answer(head, body)
            except BaseException as error:
                link.close()
                body.close()
                if not isinstance(error, OSError):
                    raise
                request.repeated = True
                if request.gone():
                    raise AskerGone from None
                if not link.used:
                    raise
                # The gateway may have left this connection alone: its others are no better then.
                self._drop(address)

    async def _link(self, address: str) -> GatewayConnection:
        idle, oldest = self._idle[address], self._loop.time() - self._patience.idle
        while idle:
            link = idle.pop()
            if link.idle_since > oldest and not link.reader.at_eof() and not link.writer.is_closing():
                return link
            link.close()
        return await link_to(address, self._patience, self._tls)

    def keep(self, link: GatewayConnection, head: Head) -> None:
        """Keep a connection whose answer was read for the next request, unless it ends."""
        if link.spoiled or head.ends_connection or len(self._idle[link.address]) >= _MOST_IDLE:
            link.close()
            return
        link.used, link.idle_since = True, self._loop.time()
        self._idle[link.address].append(link)

    def _prefer(self, address: str) -> None:
        if self._addresses[0] != address:
            at = self._addresses.index(address)
            self._addresses = self._addresses[at:] + self._addresses[:at]

    def _drop(self, address: str) -> None:
        while self._idle[address]:
            self._idle[address].pop().close()

    def close(self) -> None:
        """End connections that wait for a request."""
        for address in self._idle:
            self._drop(address)


def _refusal(answer: Answer) -> str | None:
    """Return why the request must be sent again, to this or another gateway; None if this is the final answer."""
    if answer.head.status == 503:
        return answer.head.first
    if answer.head.status != 403 or answer.body.size > AT_ONCE:
        return None
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(b"".join(answer.body.pieces()))["RemoteException"]
        if told["javaClassName"] in _AGAIN:
            return f"{told['exception']}: {told['message']}"
    return None
