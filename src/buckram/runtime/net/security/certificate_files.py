"""Certificates and keys from PEM files, which are read again when they change: connections that are open stay.

Not here: TLS itself (`runtime/net/security/tls.py`).
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from buckram.config import TlsConfig
from buckram.core.security.certificates import ends_s
from buckram.errors import ConfigError

_log = logging.getLogger("buckram.tls")
_State = tuple[tuple[int, int, int] | None, ...]


class TlsFiles:
    """Gives the SSL context of new connections. ConfigError, at first, for files that do not do."""

    def __init__(self, config: TlsConfig, *, server_side: bool) -> None:
        self._config, self._server_side = config, server_side
        self._files = [Path(name) for name in (config.ca, config.certificate, config.key) if name]
        self._state = self._look()
        self._refused: _State = ()
        self._ends: tuple[_State, int] = (), 0
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context of the current files. While they cannot be used, the one in use stays, and an error is
        logged."""
        state = self._look()
        if state != self._state:
            try:
                self._context, self._state, self._refused = self._load(), state, ()
                _log.info("certificates were read again: %s", ", ".join(map(str, self._files)))
            except ConfigError as error:  # tried at each connection: what was in the way need not be in the files
                if state != self._refused:
                    self._refused = state
                    _log.error("the certificates in use stay: %s", error)
        return self._context

    @property
    def certificate(self) -> str:
        """File of this side's certificate; empty if it has none."""
        return self._config.certificate

    def ends_s(self) -> int:
        """When that certificate ends, in seconds since 1970; 0 if it shows none, or the file cannot be read."""
        state = self._look()
        if state != self._ends[0]:
            try:
                self._ends = state, ends_s(Path(self._config.certificate).read_text())
            except (OSError, ValueError):
                return 0
        return self._ends[1]

    def lasting_context(self) -> ssl.SSLContext:
        """Return a context for a server that keeps one for good: each handshake uses the context that `context` returns
        at that time."""
        lasting = self._load()

        def choose(tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, before: ssl.SSLContext) -> None:
            tls.context = self.context()

        lasting.sni_callback = choose  # called in every handshake, whether the client names a host or not
        return lasting

    def _look(self) -> _State:
        found: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                seen = path.stat()
                found.append((seen.st_mtime_ns, seen.st_ino, seen.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        config = self._config
        if self._server_side and not (config.certificate and config.key):
            raise ConfigError(
                f"[tls] mode = {config.mode!r}: a bookie needs certificate and key; `buckram up --secure` makes some"
            )
        if bool(config.certificate) != bool(config.key):
            raise ConfigError("[tls] certificate and key go together: name both, or none")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._server_side:
            self._ask_clients(context)
        else:
            context.check_hostname = bool(config.verify_host)
        self._trust(context)
        if config.certificate:
            check_key_file(config.key)
            try:
                context.load_cert_chain(config.certificate, config.key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"[tls] certificate {config.certificate}, key {config.key}: {_why(error)}; both must be PEM, and "
                    "the key that of the certificate"
                ) from None
        return context

    def _ask_clients(self, context: ssl.SSLContext) -> None:
        wanted = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        context.verify_mode = wanted[self._config.client_certificates]
        if context.verify_mode is not ssl.CERT_NONE and not self._config.ca:
            raise ConfigError("[tls] client_certificates: name in `ca` the authorities that are trusted")

    def _trust(self, context: ssl.SSLContext) -> None:
        if not self._config.ca:
            if not self._server_side:
                context.load_default_certs()
            return
        try:
            context.load_verify_locations(cafile=self._config.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"[tls] ca {self._config.ca}: {_why(error)}; it must be a PEM file") from None


def check_key_file(name: str) -> None:
    """Raise ConfigError for a private key that others may read."""
    try:
        mode = os.stat(name).st_mode & 0o777
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}; name the file of the private key") from None
    if mode & 0o077:
        raise ConfigError(f"{name}: has mode {mode:04o}, others can read this key: chmod 0600 {name}")


def _why(error: OSError) -> str:
    return error.strerror or str(error)
