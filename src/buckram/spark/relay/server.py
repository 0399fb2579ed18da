"""A relay between Hadoop's client and several gateways, in the driver's own process: no request fails with a gateway.

Hadoop's client goes on with another gateway by itself, but not while it writes a file; and a failure here makes it
leave the relay. So the relay has all of a file before it sends it, sends it again when a gateway dies, and goes on in
the middle of a file that is read. A repeated request is marked as such (`serve/webhdfs/protocol_names.py`), so the work
of its first attempt counts once. It serves this machine only, checks nothing and holds no token: a gateway sees what
the client sent. Not here: the gateways behind it (`failover.py`), the settings of Hadoop's client
(`hadoop_settings.py`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qsl

from buckram.addresses import join
from buckram.config import TlsConfig
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.process.process_setup import generation
from buckram.serve.webhdfs.protocol_names import ILLEGAL, INPUT_OUTPUT, remote_exception
from buckram.spark.relay.failover import Answer, AskerGone, GatewayFailover, NoAnswer, Patience, Request
from buckram.spark.relay.http_messages import (
    CONTINUE,
    HEAD_BYTES,
    PIECE,
    Body,
    BodyMemory,
    Head,
    NotHttp,
    body_pieces,
    read_head,
)
from buckram.spark.relay.trust_store import identity_context, relay_identity
from buckram.sync.thread import LoopThread

_METHODS = ("GET", "PUT", "POST", "DELETE")
_BELOW = "/webhdfs/"
_SIGN_OF_LIFE_S = 15.0
"""Interval of the signs of life to a waiting client, seconds: Java's client gives up after a silence of 60 s."""


class RelayTls(NamedTuple):
    """TLS contexts of a relay: its own identity, and its trust in gateways."""

    own: ssl.SSLContext
    gateways: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, ca: str) -> RelayTls:
        """Return the contexts for gateways with certificates of the authorities in this file.

        The relay has the identity that its user's trust stores contain. Raises ConfigError.
        """
        gateways = TlsFiles(TlsConfig("required", ca), server_side=False).context
        return cls(identity_context(relay_identity()), gateways)


class Relay:
    """Serves the gateways' files at `address` on this machine. `async with`, or start() and close()."""

    def __init__(
        self,
        gateways: Sequence[str],
        patience: Patience | None = None,
        *,
        tls: RelayTls | None = None,
        room: BodyMemory | None = None,
        sign_of_life_s: float = _SIGN_OF_LIFE_S,
    ) -> None:
        """`tls`: for gateways with TLS; the relay then speaks it, too."""
        self._tls = tls
        self._names, self._patience, self._sign_of_life_s = tuple(gateways), patience or Patience(), sign_of_life_s
        self._room = room or BodyMemory()
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def start(self) -> str:
        """Begin to serve, at a free port; returns HOST:PORT."""
        tls, limit = self._tls, max(HEAD_BYTES, PIECE)
        self._gateways = GatewayFailover(self._names, self._patience, self._room, None if tls is None else tls.gateways)
        own = None if tls is None else tls.own
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=limit, ssl=own)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = join(host, port)
        return self.address

    async def close(self) -> None:
        """Stop, and end all connections."""
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        self._gateways.close()

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request by request."""
        self._open.add(writer)
        try:
            while (head := await read_head(reader)) is not None:
                with Body(self._room) as body:
                    if not await self._exchange(head, body, reader, writer):
                        return
        except NotHttp as error:
            writer.write(_problem(ILLEGAL, str(error), 400))
        except (OSError, AskerGone):
            writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _exchange(
        self, head: Head, body: Body, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Serve one request; return whether the next one may follow."""
        method, target, _ = head.words
        if method not in _METHODS or not target.startswith(_BELOW):
            writer.write(_problem(ILLEGAL, f"{method[:60]} {target[:60]}: only files are here", 400))
            return False
        if head.get("expect").lower() == "100-continue":
            writer.write(CONTINUE)
        why = ""
        async for piece in body_pieces(reader, head):
            try:
                body.add(piece)
            except OSError as error:
                why = why or f"a file of {body.size} bytes and more cannot be kept until it is sent: {error}"
        if why:
            writer.write(_problem(INPUT_OUTPUT, why))
            return False
        request = Request(head, body, secrets.token_hex(12), reader.at_eof)
        operation = dict(parse_qsl(target.partition("?")[2].lower())).get("op", "")
        with self._signs_of_life(writer):
            try:
                answer = await self._gateways.ask(request, in_pieces=operation == "open")
            except NoAnswer as error:
                writer.write(_problem(INPUT_OUTPUT, str(error)))
                return False
        with answer.body:
            await self._pass_on(request, answer, writer, last=head.ends_connection)
        return not head.ends_connection

    async def _pass_on(self, request: Request, answer: Answer, writer: asyncio.StreamWriter, *, last: bool) -> None:
        if answer.link is None:
            own = [("Connection", "close")] if last else []
            writer.write(answer.head.written(answer.body.size, *own))
            for piece in answer.body.pieces():
                writer.write(piece)
                await writer.drain()
            return
        writer.write(answer.head.written(int(answer.head.get("content-length") or 0)))
        try:
            async with aclosing(self._gateways.rest(request, answer)) as rest:
                async for piece in rest:
                    writer.write(piece)
                    await writer.drain()
        except NoAnswer:
            raise AskerGone from None  # It was promised more bytes: only the end of the connection can say so now.

    @contextmanager
    def _signs_of_life(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

        def wait() -> None:
            timers[:] = [loop.call_later(self._sign_of_life_s, give)]

        def give() -> None:
            writer.write(CONTINUE)
            wait()

        wait()
        try:
            yield
        finally:
            timers[0].cancel()


def _problem(java_class: str, message: str, status: int = 403) -> bytes:
    """Return an answer of the relay itself, the last one of its connection."""
    content = json.dumps(remote_exception(java_class, message)).encode()
    head = Head(f"HTTP/1.1 {status} Refused", ())
    return head.written(len(content), ("Connection", "close")) + content


_lock = threading.Lock()
_relays: dict[tuple[int, tuple[str, ...], str], str] = {}


def relay_to(gateways: Sequence[str], ca: str = "") -> str:
    """Return HOST:PORT of this process's relay to these gateways. The first call starts it; it ends with the process.

    `ca`: the file of the authorities that signed their certificates; empty: they have no TLS. ConfigError."""
    key = (generation(), tuple(gateways), ca)
    with _lock:
        if key not in _relays:
            relay = Relay(gateways, tls=RelayTls.of(ca) if ca else None)
            _relays[key] = LoopThread().run(relay.start)
        return _relays[key]
