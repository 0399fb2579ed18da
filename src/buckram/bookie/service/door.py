"""What a connection has to pass before its requests count: TLS and a login, within a time and a number of bytes.

A bookie without security has no door. Not here: TLS (`net/tls.py`), logins (`bookie/service/login.py`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import cast

from buckram.bookie.service.session import Session
from buckram.config import TlsConfig
from buckram.core.wire.server import ServerProtocol
from buckram.net.tls import Inner, TlsLink
from buckram.net.tls_files import TlsFiles

log = logging.getLogger("buckram.bookie")
LOGIN_S = 10.0
"""A peer that is not known by then is closed."""
MOST_UNKNOWN = 256
"""Connections whose peers are not known yet."""


class Door:
    """Made before the bookie listens. ConfigError for certificates that do not do."""

    def __init__(self, tls: TlsConfig, *, login_s: float = LOGIN_S) -> None:
        self._files = TlsFiles(tls, server_side=True) if tls.mode != "off" else None
        self._needs_tls = tls.mode == "required"
        self._login_s = login_s
        self._unknown: dict[Session, asyncio.TimerHandle] = {}

    def protocol(self, max_frame_bytes: int) -> ServerProtocol:
        """The wire's end of a new connection."""
        return ServerProtocol(max_frame_bytes, offers_tls=self._files is not None, needs_tls=self._needs_tls)

    def before(self, session: Session) -> asyncio.Protocol:
        """What stands between the transport and the session."""
        if self._files is None:
            return session
        return TlsLink(
            cast("Inner", session),
            context=self._files.context,
            on_secured=lambda tls: self._secured(session, tls),
        )

    def admit(self, session: Session) -> bool:
        """Whether one more unknown peer may come in; it has to be known in time."""
        if session.protocol.authenticated:
            return True
        for known in [one for one in self._unknown if one.ended or one.protocol.authenticated]:
            self._forget(known)
        if len(self._unknown) >= MOST_UNKNOWN:
            log.warning("%d connections have not logged in, the limit: another one is refused", MOST_UNKNOWN)
            return False
        loop = asyncio.get_running_loop()
        self._unknown[session] = loop.call_later(self._login_s, self._too_late, session)
        return True

    def _too_late(self, session: Session) -> None:
        self._forget(session)
        if not session.protocol.authenticated:
            session.abort(f"was not secured and logged in within {self._login_s:g} s")

    def _forget(self, session: Session) -> None:
        timer = self._unknown.pop(session, None)
        if timer is not None:
            timer.cancel()

    def begin_tls(self, session: Session) -> None:
        """After the answer to START_TLS."""
        link = session.transport
        assert isinstance(link, TlsLink)
        assert self._files is not None
        link.start_tls(self._files.context(), server_side=True)

    def _secured(self, session: Session, tls: ssl.SSLObject) -> None:
        session.protocol.secured()
        if session.protocol.authenticated:
            self._forget(session)
