"""TLS on any transport: `TlsLink` stands between a transport and a protocol, and encrypts from some moment on.

It is the transport's protocol and the protocol's transport. Until `start_tls` bytes pass as they are; the server's end
begins by itself when the first byte is that of a TLS record. Nothing is done per entry: what arrives together is
decrypted and handed on together.

Not here: which certificates (`runtime/net/security/certificate_files.py`), what clients say first
(`runtime/net/security/secure_network.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from buckram.core.wire.start_tls import HANDSHAKE_BYTE
from buckram.types import Buffer

_RECORD = 64 * 1024


class Inner(Protocol):
    """The protocol behind the link."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def eof_received(self) -> bool | None: ...
    def data_received(self, data: bytes) -> None: ...


class TlsLink(asyncio.Transport, asyncio.Protocol):
    """`context` gives the SSL context of a server's end that may begin TLS; None: only `start_tls` does.

    `on_secured` is called once, when the handshake has ended well; a failed one ends the connection, and
    `connection_lost` of the protocol gets the error.
    """

    def __init__(
        self,
        inner: Inner,
        *,
        context: Callable[[], ssl.SSLContext] | None = None,
        on_secured: Callable[[ssl.SSLObject], None] = lambda tls: None,
    ) -> None:
        super().__init__()
        self._inner, self._context, self._on_secured = inner, context, on_secured
        self._raw: asyncio.Transport
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._handshaking = False
        self._early: list[bytes] = []
        self._first = context is not None
        self._error: Exception | None = None

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._inner.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            if data[0] == HANDSHAKE_BYTE and self._context is not None and self._tls is None:
                self.start_tls(self._context(), server_side=True)
        if self._tls is None:
            self._inner.data_received(data)
            return
        self._in.write(data)
        try:
            if self._handshaking:
                self._shake()
            if not self._handshaking:
                self._read(self._tls)
        except ssl.SSLError as error:
            self._fail(error)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(self._error or exc)

    # TLS

    @property
    def heard(self) -> bool:
        """Return whether the peer has sent anything; for the server's end."""
        return not self._first

    @property
    def begun(self) -> bool:
        """Return whether the handshake has begun."""
        return self._tls is not None

    @property
    def secured(self) -> bool:
        return self._tls is not None and not self._handshaking

    def start_tls(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        """Start TLS in both directions for every later byte. `host`: the name that the peer's certificate must have."""
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=host)
        self._handshaking = True
        if not server_side:
            try:
                self._shake()
            except ssl.SSLError as error:
                self._fail(error)

    def _shake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        self._handshaking = False
        self._flush()
        self._on_secured(self._tls)
        early, self._early = self._early, []
        for data in early:
            self.write(data)

    def _read(self, tls: ssl.SSLObject) -> None:
        parts: list[bytes] = []
        ended = False
        try:
            while True:
                part = tls.read(_RECORD)
                if not part:
                    ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        if self._out.pending:
            self._flush()  # an answer of TLS itself, to a change of keys
        if parts:
            self._inner.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if ended:
            self.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """Tell the peer why, which TLS has written already, and end."""
        if self._error is None:
            self._error = _refusal(error)
            self._flush()
            self._raw.close()

    def _flush(self) -> None:
        if self._out.pending and not self._raw.is_closing():
            self._raw.write(self._out.read())

    # The protocol's transport

    def write(self, data: Buffer) -> None:
        tls = self._tls
        if tls is None:
            self._raw.write(data)
        elif self._handshaking:
            self._early.append(bytes(data))
        elif data:
            try:
                sent = tls.write(data)
                if sent < len(data):
                    rest = memoryview(data)
                    while sent < len(rest):
                        sent += tls.write(rest[sent:])
                self._raw.write(self._out.read())
            except ssl.SSLError as error:
                self._fail(error)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._tls is None:
            self._raw.writelines(list_of_data)
        else:
            self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._tls is not None and not self._handshaking and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the peer has not said goodbye yet, which nobody waits for
                self._tls.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)


class CertificateRefused(ConnectionError):
    """The peer's certificate is not of an authority that is trusted here, or not for this address."""


def _refusal(error: ssl.SSLError) -> ConnectionError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateRefused(
            f"TLS: the peer's certificate is refused: {error.verify_message}; BUCKRAM_CA (or [tls] ca, or a context's"
            " --ca) names the file of the cluster's authority"
        )
    return ConnectionError(f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}")
