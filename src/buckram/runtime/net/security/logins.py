"""Logins of a client: a token, or a user and a password (SASL DIGEST-MD5, also for Apache's bookies)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from buckram.config import AuthConfig, TlsConfig, load
from buckram.core.security import digest_md5
from buckram.core.security.digest_md5 import SaslRefused
from buckram.core.security.tokens import ends_of
from buckram.errors import ConfigError
from buckram.runtime.net.security.secure_network import Login, LoginRefused, secured, tls_of_environment
from buckram.seams import Network

TOKEN_PLUGIN = "buckram-token"
TOKEN_VARIABLE = "BUCKRAM_TOKEN"


class TokenLogin:
    plugin = TOKEN_PLUGIN

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return self._token.encode()

    def answer(self, payload: bytes) -> bytes | None:
        return None

    def refused(self) -> str:
        ends = ends_of(self._token)
        if ends is None:
            said = "it is no token"
        elif ends <= time.time():
            said = f"it has ended, on {time.strftime('%Y-%m-%d at %H:%M UTC', time.gmtime(ends))}"
        else:
            said = "it is another cluster's, was revoked, or was changed"
        return f"its token does not count ({TOKEN_VARIABLE}, BUCKRAM_AUTH_TOKEN_FILE or a context's): {said}"


class SaslLogin:
    plugin = digest_md5.PLUGIN

    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password
        self._cnonce = secrets.token_urlsafe(24)
        self._challenge = b""

    def first(self) -> bytes:
        return b""

    def answer(self, payload: bytes) -> bytes | None:
        try:
            if not self._challenge:
                self._challenge = payload
                return digest_md5.response(payload, self._user, self._password, self._cnonce)
            digest_md5.check_server(payload, self._challenge, self._user, self._password, self._cnonce)
        except SaslRefused as error:
            raise LoginRefused(f"SASL: {error}") from None
        return None

    def refused(self) -> str:
        return "its user and password are not known there (BUCKRAM_AUTH_SASL_USER, BUCKRAM_AUTH_SASL_PASSWORD_FILE)"


def login_of(auth: AuthConfig, token: str, environment: Mapping[str, str]) -> Callable[[], Login] | None:
    """Return the way to log in, from the given token, the settings or the environment; None for no login. Raises
    ConfigError."""
    given = bool(token)
    if not token and auth.token_file:
        token = read_secret(auth.token_file)
        if not token:
            # Whoever meant to give one must not be taken for somebody who gives none.
            raise ConfigError(f"[auth] token_file = {auth.token_file!r}: it is empty; write a token into it")
    token = token or environment.get(TOKEN_VARIABLE, "").strip()
    if token:
        if not token.isascii():
            raise ConfigError(f"{TOKEN_VARIABLE}: not a token; `buckram token create` prints one")
        # Tokens of an issuer end soon: whoever renews the file needs no new process.
        own_file = auth.token_file if not given else ""
        return lambda: TokenLogin(_renewed(own_file, token))
    if auth.sasl_user:
        password = read_secret(auth.sasl_password_file)
        return lambda: SaslLogin(auth.sasl_user, password)
    return None


def _renewed(file: str, before: str) -> str:
    """Return the token in the file; the earlier one if there is no file, or it is empty."""
    try:
        found = read_secret(file) if file else ""
    except ConfigError:
        found = ""
    return found if found and found.isascii() else before


def read_secret(name: str) -> str:
    """Return the only line of a file. Raises ConfigError."""
    try:
        return Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name or 'the file of the password'}: {error}; name a file with one line") from None


def secured_by(
    environment: Mapping[str, str], network: Network, *, tls: TlsConfig | None = None, token: str = ""
) -> Network:
    """Return the network with the given TLS and login, or else those of the environment. Raises ConfigError."""
    auth: AuthConfig = load("auth", environment=environment)[0]
    login = login_of(auth, token, environment)
    return secured(network, tls_of_environment(environment) if tls is None else tls, login)
