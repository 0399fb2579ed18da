"""The door of a bookie: the TLS handshake and login that a connection completes before its requests are handled.

Both have to end within a time and a number of bytes. Each login takes the messages of one plug-in and tells the door
who the peer is. A bookie without security has no door.

Before the door are connections whose peers are not known yet: how many there may be, for how long, and which one makes
room for another. To connect and say nothing costs an attacker nothing, so whoever is silent gives way to whoever comes:
an honest client speaks as soon as it is connected.

Not here: TLS (`runtime/net/security/tls.py`), the handshake's packets (`core/wire/server_protocol.py`), what is known
of those that have passed, and of tokens (`bookie/service/security/bookie_security.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import pwd
import secrets
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.security.bookie_security import BookieSecurity
from buckram.bookie.service.security.entry_access import EntryAccess
from buckram.config import AuthConfig, TlsConfig
from buckram.core.security import digest_md5
from buckram.core.security.digest_md5 import SaslRefused
from buckram.core.security.oidc import UnknownKey, issuer_of
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, TokenRefused, need_extra
from buckram.core.wire.server_protocol import AuthProvider, AuthStep, ServerProtocol
from buckram.errors import ConfigError
from buckram.runtime.net.security.certificate_files import TlsFiles, check_key_file
from buckram.runtime.net.security.logins import TOKEN_PLUGIN
from buckram.runtime.net.security.tls import Inner, TlsLink

FIRST_S = 3.0
"""Time within which a peer has to say something, and to begin TLS if it must, before it is closed, seconds."""
LOGIN_S = 10.0
"""Time within which a peer has to log in before it is closed, seconds."""
MOST_UNKNOWN = 512
"""Maximum number of connections without a login, and never more than half of all that the bookie takes."""
MOST_OF_ADDRESS = 256
"""Maximum number of these from one address; an IPv6 network of 64 bits counts as one address, because one machine has
all of it."""


@dataclass(slots=True, eq=False)
class _Entry:
    address: str
    timer: asyncio.TimerHandle


class UnauthenticatedConnections:
    """Connections that wait for their login. Peers that are known are not counted here."""

    def __init__(self, *, first_s: float = FIRST_S, login_s: float = LOGIN_S) -> None:
        self._first_s, self._login_s = min(first_s, login_s), login_s
        self._most = MOST_UNKNOWN
        self._entries: dict[Session, _Entry] = {}
        """The oldest first."""
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def bound(self, connections: int) -> None:
        """Limit waiting connections to half of this number of connections."""
        self._most = max(1, min(MOST_UNKNOWN, connections // 2))

    def admit(self, session: Session) -> str:
        """Take one more, which has to be known in time. Return why not; empty if it may come in."""
        address = counted_address(session.transport.get_extra_info("peername"))
        of_address = self._by_address[address]
        if address and of_address >= MOST_OF_ADDRESS and not self.make_room(address):
            return f"{of_address} connections from {address} have not logged in, the limit for one address: try later"
        if len(self._entries) >= self._most and not self.make_room() and not self._make_fair(address):
            return f"{len(self._entries)} connections have not logged in, which is the limit: try later"
        timer = asyncio.get_running_loop().call_later(self._first_s, self._first_look, session)
        self._entries[session] = _Entry(address, timer)
        self._by_address[address] += 1
        return ""

    def make_room(self, address: str = "") -> bool:
        """Drop the oldest connection that has said nothing (from this address); return whether there was one."""
        for session, entry in self._entries.items():
            if address in ("", entry.address) and not session.heard:
                self._drop(session, "sent nothing yet and was closed to make room for another connection")
                return True
        return False

    def _make_fair(self, address: str) -> bool:
        """Drop the oldest connection of the address that has most, if the new one's address has fewer."""
        counts = {one: count for one, count in self._by_address.items() if one}  # who is on this machine is spared
        most = max(counts, key=lambda one: counts[one], default="")
        if not most or counts[most] <= self._by_address[address] + 1:
            return False
        oldest = next(session for session, entry in self._entries.items() if entry.address == most)
        self._drop(
            oldest,
            f"had not logged in, as {counts[most] - 1} others from {most}, and was closed to make room for another",
        )
        return True

    def forget(self, session: Session) -> None:
        """Forget a connection whose peer is known now, or that has ended. Idempotent."""
        entry = self._entries.pop(session, None)
        if entry is None:
            return
        entry.timer.cancel()
        self._by_address[entry.address] -= 1
        if not self._by_address[entry.address]:
            del self._by_address[entry.address]

    def _drop(self, session: Session, why: str) -> None:
        self.forget(session)
        if not session.protocol.authenticated:
            session.abort(why)

    def _first_look(self, session: Session) -> None:
        if not session.heard:
            self._drop(session, f"sent nothing within {self._first_s:g} s")
        elif session.owes_tls:
            self._drop(session, f"did not begin TLS within {self._first_s:g} s")
        else:
            left = self._login_s - self._first_s
            self._entries[session].timer = asyncio.get_running_loop().call_later(left, self._too_late, session)

    def _too_late(self, session: Session) -> None:
        self._drop(session, f"was not secured and logged in within {self._login_s:g} s")


def counted_address(peer: object) -> str:
    """Return the address that a connection counts for; empty for a client of this machine's Unix socket."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0])
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else str(found)


log = logging.getLogger("buckram.bookie")

BEGIN_S = 0.5
"""Time a login that was begun in clear waits for START_TLS, which Apache's client sends beside it, seconds."""

LOGINS = ("token", "certificate", "sasl")

_CREDENTIALS = struct.Struct("3i")


class PendingConnection:
    """One connection between the listener and its session: where a login finds the session that it is for."""

    def __init__(self, door: ConnectionGate) -> None:
        self._door = door
        self.session: Session | None = None

    def known(self, principal: Principal, token: Token | None) -> None:
        assert self.session is not None
        self._door.passed(self.session, principal, token)


class ConnectionGate:
    """Made before the bookie listens. ConfigError for settings that do not do. `guard` is set before it serves."""

    def __init__(
        self,
        tls: TlsConfig,
        auth: AuthConfig | None = None,
        *,
        first_s: float = FIRST_S,
        login_s: float = LOGIN_S,
    ) -> None:
        auth = auth or AuthConfig()
        self.logins = frozenset(auth.logins.replace(",", " ").split())
        self.authorises = auth.authorisation == "on"
        self._check(tls, auth)
        self.issuer = issuer_of(auth) if self.logins else None
        self._files = TlsFiles(tls, server_side=True) if tls.mode != "off" else None
        self._needs_tls = tls.mode == "required"
        self._passwords = _passwords(auth.sasl_users) if "sasl" in self.logins else {}
        self._unix_admin = bool(auth.unix_admin)
        self.unknown = UnauthenticatedConnections(first_s=first_s, login_s=login_s)
        self.guard: BookieSecurity | None = None
        self.entries: EntryAccess | None = None
        """Judges requests about entries; None: every known peer may do everything."""

    def _check(self, tls: TlsConfig, auth: AuthConfig) -> None:
        unknown = self.logins - set(LOGINS)
        if unknown:
            raise ConfigError(f"[auth] logins: {', '.join(sorted(unknown))} is none of {', '.join(LOGINS)}")
        if "token" in self.logins:
            need_extra("[auth] logins: token")
        if auth.oidc_issuer and self.logins and "token" not in self.logins:
            raise ConfigError(
                "[auth] oidc_issuer: tokens of the issuer need the login `token`: add it to [auth] logins"
            )
        if "certificate" in self.logins and (tls.mode == "off" or tls.client_certificates == "no"):
            raise ConfigError("[auth] logins: certificate needs [tls] mode and client_certificates, set both")
        if self.authorises and not self.logins:
            raise ConfigError("[auth] authorisation = 'on': grants need clients that log in: set [auth] logins")

    @property
    def certificate(self) -> tuple[str, int]:
        """Return the file of the bookie's certificate, and when it expires (seconds since 1970; 0 if unknown)."""
        return ("", 0) if self._files is None else (self._files.certificate, self._files.ends_s())

    def protocol(self, max_frame_bytes: int) -> tuple[ServerProtocol, PendingConnection]:
        """Return the wire protocol of a new connection and its hallway, where it logs in."""
        hallway = PendingConnection(self)
        providers: list[AuthProvider] = []
        if "token" in self.logins and self.guard is not None:
            providers.append(TokenLogin(self.guard, hallway.known))
        if "sasl" in self.logins:
            providers.append(SaslLogin(self._passwords, hallway.known))
        protocol = ServerProtocol(
            max_frame_bytes,
            auth=providers if self.logins else None,
            offers_tls=self._files is not None,
            needs_tls=self._needs_tls,
        )
        return protocol, hallway

    def before(self, session: Session, hallway: PendingConnection) -> asyncio.Protocol:
        """Return the protocol between the transport and the session: TLS if the bookie has it, else the session
        itself."""
        hallway.session = session
        if self._files is None:
            return session
        return TlsLink(
            cast("Inner", session),
            context=self._files.context,
            on_secured=lambda tls: self._secured(session, tls),
        )

    def admit(self, session: Session) -> str:
        """Admit one more peer. One that is not known yet has to log in within a time. Return why not, or empty."""
        if session.local:
            self._local(session)
        return "" if session.protocol.authenticated else self.unknown.admit(session)

    def _local(self, session: Session) -> None:
        """Let the bookie's own user in through a Unix socket, as an administrator if that is allowed; remember the user
        of any other peer. The kernel gives the user; it holds for a peer until it begins a login.

        The bookie's own user could read its memory anyway.
        """
        user = _user_of(session.transport)
        if user == os.getuid() and self._unix_admin:
            session.protocol.logged_in()
            self.passed(session, Principal(f"unix:{_name(user)}", admin=True), None)
        else:
            session.user = _name(user)

    def passed(
        self, session: Session, principal: Principal, token: Token | None, certificate: int | None = None
    ) -> None:
        """Let a peer in whose login succeeded."""
        self.unknown.forget(session)
        session.principal = principal
        if self.guard is not None:
            self.guard.entered(session, principal, token, certificate)
        if self.entries is not None and not principal.admin:
            self.entries.guard(session)

    def begun(self, session: Session) -> None:
        """Wait for START_TLS after a login was begun in clear."""
        asyncio.get_running_loop().call_later(BEGIN_S, self._answer_begun, session)

    def _answer_begun(self, session: Session) -> None:
        if session.ended:
            return
        for item in session.protocol.answer_begun():
            session.handle_item(session, item)

    def waits(self, session: Session, payload: bytes) -> None:
        """Have a login wait for a key that its issuer may have published since; it goes on after that look."""
        if self.guard is not None:
            self.guard.meet(payload, lambda: None if session.ended else session.take(session.protocol.answer_login()))

    def begin_tls(self, session: Session, data: bytes) -> None:
        """Begin TLS after the answer to START_TLS. `data`: the first bytes of TLS."""
        link = session.transport
        assert isinstance(link, TlsLink)
        assert self._files is not None
        link.start_tls(self._files.context(), server_side=True)
        link.data_received(data)

    def _secured(self, session: Session, tls: ssl.SSLObject) -> None:
        session.protocol.secured()
        shown = tls.getpeercert() if "certificate" in self.logins else None
        principal = certificate_principal(shown)
        if shown and principal is not None:
            serial = int(str(shown["serialNumber"]), 16)
            if self.guard is not None and (why := self.guard.why_withdrawn(serial)):
                session.refuse(f"{principal}: {why}")
                return
            session.protocol.logged_in()
            self.passed(session, principal, None, serial)
        elif session.protocol.authenticated:
            self.unknown.forget(session)
        self._answer_begun(session)


def _passwords(name: str) -> Mapping[str, str]:
    """Return the passwords by user from a file of USER:PASSWORD lines. Raises ConfigError."""
    if not name:
        raise ConfigError("[auth] logins: sasl needs the file sasl_users, with a USER:PASSWORD line for each user")
    check_key_file(name)
    found: dict[str, str] = {}
    for number, line in enumerate(Path(name).read_text().splitlines(), 1):
        user, colon, password = line.strip().partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not (user and colon and password):
            raise ConfigError(f"{name}, line {number}: needs USER:PASSWORD")
        found[user] = password
    return found


def _user_of(transport: asyncio.BaseTransport) -> int:
    """Return the user id of the process behind a Unix socket; -1 if the kernel does not tell."""
    near = transport.get_extra_info("socket")
    try:
        with socket.socket(fileno=os.dup(near.fileno())) as copy:
            _, user, _ = _CREDENTIALS.unpack(copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except (OSError, AttributeError):
        return -1
    return int(user)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


# -- logins ---------------------------------------------------------------------------------------------------

OnKnown = Callable[[Principal, Token | None], None]

_REFUSED = AuthStep(None, failed=True)


class Tokens(Protocol):
    """Verifies tokens as of now (`bookie/service/security/bookie_security.py`)."""

    def verify(self, text: bytes) -> Token: ...


class TokenLogin:
    """The whole token at once."""

    plugin = TOKEN_PLUGIN

    def __init__(self, tokens: Tokens, on_known: OnKnown) -> None:
        self._tokens, self._on_known = tokens, on_known
        self._waited = False

    def step(self, payload: bytes) -> AuthStep:
        try:
            token = self._tokens.verify(payload)
        except UnknownKey as error:
            if not self._waited:  # the issuer may have published it a moment ago
                self._waited = True
                return AuthStep(None, waits=True)
            log.warning("a login is refused: %s", error)
            return _REFUSED
        except TokenRefused as error:
            log.warning("a login is refused: %s", error)
            return _REFUSED
        self._on_known(token.principal, token)
        return AuthStep(b"", done=True)


class SaslLogin:
    """DIGEST-MD5 as Apache's clients: an empty word, the challenge, their answer, ours."""

    plugin = digest_md5.PLUGIN

    def __init__(self, passwords: Mapping[str, str], on_known: OnKnown) -> None:
        self._passwords, self._on_known = passwords, on_known
        self._nonce = ""

    def step(self, payload: bytes) -> AuthStep:
        if not self._nonce:
            if payload:
                return _REFUSED
            self._nonce = secrets.token_urlsafe(24)
            return AuthStep(digest_md5.challenge(self._nonce))
        try:
            user, last = digest_md5.accept(payload, self._nonce, self._passwords)
        except SaslRefused as error:
            log.warning("a login is refused: %s", error)
            return _REFUSED
        self._on_known(Principal(f"sasl:{user}"), None)
        return AuthStep(last, done=True)


def certificate_principal(found: Mapping[str, Any] | None) -> Principal | None:
    """Return the principal of a verified certificate: its common name, with the roles in OU fields as Apache's
    BookieAuthZFactory reads them (`0:role,role;...`). None without a certificate or a name."""
    fields = [one for part in (found or {}).get("subject", ()) for one in part]
    names = [value for name, value in fields if name == "commonName"]
    if not names:
        return None
    roles: list[str] = []
    for name, value in fields:
        if name == "organizationalUnitName":
            for part in value.split(";"):
                code, _, rest = part.partition(":")
                roles += [one.strip() for one in rest.split(",") if one.strip()] if code.strip() == "0" else []
    return Principal(f"cert:{names[0]}", tuple(roles), "admin" in roles)
