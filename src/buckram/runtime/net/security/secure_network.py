"""A Network whose connections are secured before anybody uses them: START_TLS or TLS from the first byte, then a login.

It stands before any other Network, so what uses connections knows nothing of it. The bookie's side is
bookie/service/security/connection_gate and core/wire/server_protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol, cast

from buckram.config import TlsConfig, load
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge
from buckram.core.wire.messages import OP_AUTH, OP_START_TLS, Auth, AuthReply, BadPacket, Reply, StartTls, StartTlsReply
from buckram.core.wire.server_protocol import AUTH_DISABLED
from buckram.errors import Code
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.tls import Inner, TlsLink
from buckram.seams import Listener, Network, ProtocolFactory

WITHIN_S = 10.0
CA_VARIABLE = "BUCKRAM_CA"
"""A PEM file: who is trusted, as `buckram up --secure` prints it."""
_MAX_FRAME = 64 * 1024


class LoginRefused(ConnectionError):
    """The bookie does not take the credentials, or none."""


class Login(Protocol):
    """One login handshake: `first` is the first message, `answer` replies to the bookie's messages; None: no reply."""

    plugin: str

    def first(self) -> bytes: ...
    def answer(self, payload: bytes) -> bytes | None: ...
    def refused(self) -> str:
        """Return the likely reason of a refusal, for the user who gave the credentials."""
        ...


class _Preface(asyncio.Protocol):
    """Holds a connection's place until it is secured: packets one by one, then everything goes to the protocol."""

    def __init__(self) -> None:
        self.link = TlsLink(self, on_secured=self._on_secured)
        self.secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner: Inner | None = None
        self._chunks = ChunkBuffer(_MAX_FRAME)
        self._packets: list[bytes] = []
        self._txn = 0
        self._more = asyncio.Event()
        self._ended: Exception | None = None

    def _on_secured(self, tls: ssl.SSLObject) -> None:
        if not self.secured.done():
            self.secured.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Do nothing: the link is known already."""

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
            return
        try:
            buffer, offset = self._chunks.push(data), 0
            while end := self._chunks.next_frame(buffer, offset):
                self._packets.append(buffer[offset + PREFIX_BYTES : end])
                offset = end
            self._chunks.keep(buffer, offset)
        except FrameTooLarge as error:
            self._ended = ConnectionError(f"the bookie's first answer: {error}")
            self.link.abort()
        self._more.set()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)
            return
        self._ended = self._ended or exc or ConnectionError("the bookie closed the connection before it was secured")
        self._more.set()
        if not self.secured.done():
            self.secured.set_exception(self._ended)
            self.secured.exception()  # seen, also where nobody waits

    async def exchange(self, request: Auth | StartTls) -> Reply:
        """Send a v3 request and return its reply. Raises ConnectionError."""
        self._txn += 1
        self.link.write(wire_v3.encode_request(request, self._txn))
        wanted = (OP_AUTH if isinstance(request, Auth) else OP_START_TLS, self._txn)
        while True:
            reply, *of = await self._reply()
            if tuple(of) == wanted:
                return reply
            # Apache's bookies answer START_TLS again, with an error, where a login is still to come.
            if self.link.secured and of[0] == OP_START_TLS:
                continue
            raise ConnectionError("the bookie answered a request that was not made")

    async def _reply(self) -> tuple[Reply, int, int]:
        while not self._packets:
            if self._ended is not None:
                raise self._ended
            self._more.clear()
            await self._more.wait()
        try:
            return wire_v3.decode_reply(self._packets.pop(0))
        except BadPacket as error:
            raise ConnectionError(f"the bookie's first answer: {error}") from None

    async def begin_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS: every later byte is encrypted. Raises ConnectionError."""
        if self._packets or self._chunks.pending_bytes:
            # Somebody on the way could have said it, to be taken for what the bookie says through TLS.
            raise ConnectionError("bytes in clear behind the bookie's answer to START_TLS")
        self.link.start_tls(context, server_side=False, host=host)
        await self.secured

    def hand_over(self, inner: Inner) -> None:
        """Hand the connection over to the inner protocol. Raises the error that ended it, or ConnectionError for
        surplus data."""
        if self._ended is not None:
            raise self._ended
        if self._packets:
            raise ConnectionError("the bookie sent more than was asked for")
        self._inner = inner
        inner.connection_made(self.link)


class SecureNetwork:
    """`tls` None: no TLS. `start_tls`: begin as Apache's clients do; else with the first byte. `login` makes the
    handshake of one connection; None: no login."""

    def __init__(
        self,
        network: Network,
        tls: TlsFiles | None,
        *,
        start_tls: bool = True,
        login: Callable[[], Login] | None = None,
    ) -> None:
        self._network, self.tls, self._start_tls, self._login = network, tls, start_tls, login

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect, secure and log in. OSError, with the reason, where any of that fails."""
        preface = _Preface()
        await self._network.connect(host, port, lambda: preface.link)
        try:
            async with asyncio.timeout(WITHIN_S):
                if self.tls is not None:
                    await self._begin_tls(preface, self.tls.context(), host)
                if self._login is not None:
                    await log_in(preface.exchange, self._login(), secured=self.tls is not None)
            protocol = factory()
            preface.hand_over(cast("Inner", protocol))
        except BaseException as error:
            preface.link.abort()
            if isinstance(error, TimeoutError):
                raise ConnectionError(f"not secured within {WITHIN_S:g} s") from None
            raise
        return preface.link, protocol

    async def _begin_tls(self, preface: _Preface, context: ssl.SSLContext, host: str) -> None:
        if self._start_tls:
            reply = await preface.exchange(StartTls())
            if reply.code is not Code.OK or not isinstance(reply, StartTlsReply):
                raise LoginRefused("the bookie does not offer TLS; set its [tls] mode, or leave TLS out here")
        await preface.begin_tls(context, host)

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        return await self._network.listen(host, port, factory)


async def log_in(exchange: Callable[[Auth], Awaitable[Reply]], login: Login, *, secured: bool = True) -> None:
    """Go through a login, through TLS if it is `secured`. LoginRefused."""
    payload: bytes | None = login.first()
    while payload is not None:
        reply = await exchange(Auth(login.plugin, payload))
        if reply.code is not Code.OK or not isinstance(reply, AuthReply):
            clear = "" if secured else "; or it speaks TLS only: then use a buckram+tls:// URI, and BUCKRAM_CA"
            raise LoginRefused(f"the bookie refused the login ({login.plugin}): {login.refused()}{clear}")
        if reply.plugin == AUTH_DISABLED:
            return
        payload = login.answer(reply.payload)


def secured(network: Network, tls: TlsConfig, login: Callable[[], Login] | None = None) -> Network:
    """Return the network with the TLS and login of the settings; the same one if they have none. Raises ConfigError."""
    if tls.mode == "off" and login is None:
        return network
    files = None if tls.mode == "off" else TlsFiles(tls, server_side=False)
    return SecureNetwork(network, files, start_tls=tls.start == "starttls", login=login)


def tls_of_environment(environment: Mapping[str, str]) -> TlsConfig:
    """Return the TLS settings from BUCKRAM_TLS_*; BUCKRAM_CA alone turns TLS on, with that file as authority. Raises
    ConfigError."""
    found: TlsConfig = load("tls", environment=environment)[0]
    ca = environment.get(CA_VARIABLE, "")
    if not ca or found.ca:
        return found
    return replace(found, ca=ca, mode="required" if "BUCKRAM_TLS_MODE" not in environment else found.mode)
