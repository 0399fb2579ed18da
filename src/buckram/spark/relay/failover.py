"""The gateways behind a relay: a request is sent to one after the other until one of them has answered it.

The gateway that answered last is asked first, because gateways that write to one namespace at once take turns. Not
here: the reply to the client (`server.py`).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from buckram.core.backoff import RELAY, Delays
from buckram.serve.webhdfs.protocol_names import RETRY, STANDBY
from buckram.spark.relay.gateway_connection import AT_ONCE, GatewayConnection, Patience, Request, link_to
from buckram.spark.relay.http_messages import Body, BodyMemory, Head, MessageTruncated

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
