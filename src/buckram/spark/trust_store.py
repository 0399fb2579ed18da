"""Whom Java trusts: a trust store of certificate authorities, for gateways with TLS (swebhdfs://).

Java reads no PEM files. Hadoop's client and the client that it gets access tokens with are two, and both take the
trust store that the JVM was started with. Not here: the gateway's own certificate (`net/tls_files.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from buckram.errors import ConfigError, InvalidArgument
from buckram.extras import needs

PASSWORD = "buckram"
"""Java asks for one. It hides nothing: certificates are public, and who may write the file is the file's mode."""
_MOST_BYTES = 16 * 1024 * 1024
_UNQUOTED = re.compile(r"[^\s\"'\\$]+")
"""What stands in a JVM's options as it is."""


def write_trust_store(ca: Path, target: Path | None = None) -> Path:
    """Write the certificates of a PEM file as a PKCS12 trust store for Java; returns where it is.

    `target`: default is a file of the user's cache that is named after what is in it. Raises ConfigError without the
    extra `security`, and for a file that cannot be read, is no PEM file, or cannot be written; InvalidArgument.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    except ImportError:
        raise ConfigError(needs("a trust store for Java", "security")) from None
    pem = _read(ca)
    place = (target or _cache() / f"trust-{hashlib.sha256(pem).hexdigest()[:32]}.p12").absolute()
    if not _UNQUOTED.fullmatch(str(place)):
        raise InvalidArgument(f"{place}: Java's options take no path with spaces, quotes, $ or \\; choose another one")
    if target is None and place.exists():
        return place
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(
            f"{ca}: is no PEM file of certificates ({error}); name what the gateway's was signed with"
        ) from None
    named = [pkcs12.PKCS12Certificate(one, f"ca-{number}".encode()) for number, one in enumerate(found, 1)]
    data = pkcs12.serialize_java_truststore(named, BestAvailableEncryption(PASSWORD.encode()))
    _write(place, data)
    return place


def java_options(trust_store: Path) -> str:
    """The options with which a JVM trusts what is in the store, and nothing else."""
    given = {"": str(trust_store), "Type": "PKCS12", "Password": PASSWORD}
    return " ".join(f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in given.items())


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "buckram"


def _read(ca: Path) -> bytes:
    try:
        with ca.open("rb") as file:
            pem = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{ca}: {error.strerror}; name the PEM file of the authority that signed the gateway's"
        ) from None
    if len(pem) > _MOST_BYTES:
        raise ConfigError(
            f"{ca}: has more than {_MOST_BYTES} bytes, which no file of certificates has; name another one"
        )
    return pem


def _write(place: Path, data: bytes) -> None:
    """As a whole or not at all: a JVM may be starting with it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o644)
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}; name a file that can be written as --trust-store") from None


__all__ = ["PASSWORD", "java_options", "write_trust_store"]
