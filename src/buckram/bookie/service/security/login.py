"""Logins of one connection: each takes the words of one plug-in and tells the door who it is.

Not here: the handshake's packets (`core/wire/server_protocol.py`), what is known of tokens
(`bookie/service/security/bookie_security.py`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from buckram.core.security import digest_md5
from buckram.core.security.digest_md5 import SaslRefused
from buckram.core.security.oidc import UnknownKey
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, TokenRefused
from buckram.core.wire.server_protocol import AuthStep
from buckram.runtime.net.security.logins import TOKEN_PLUGIN

log = logging.getLogger("buckram.bookie")
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
