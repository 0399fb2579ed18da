"""Java's trust store of certificate authorities, for gateways with TLS (swebhdfs://).

Java reads no PEM files. Hadoop's client and the client that it gets access tokens with are two, and both take the
trust store that the JVM was started with. Not here: the gateway's own certificate
(`runtime/net/security/certificate_files.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from buckram.core.security.certificates import life_of
from buckram.errors import ConfigError, InvalidArgument
from buckram.extras import needs
from buckram.runtime.net.security.certificate_files import check_key_file

PASSWORD = "buckram"
"""Password that Java requires. It hides nothing: certificates are public, and the file's mode limits who may write."""
_IDENTITY = Path("relay", "identity.pem")
_MOST_BYTES = 16 * 1024 * 1024
_UNQUOTED = re.compile(r"[^\s\"'\\$]+")
"""Characters that need no quoting in a JVM's options."""


def write_trust_store(ca: Path, target: Path | None = None, *, also: bytes = b"") -> Path:
    """Write the certificates of a PEM file as a PKCS12 trust store for Java; returns where it is.

    `target`: default is a file of the user's cache that is named after what is in it. `also`: certificates beside those
    of the file, as PEM. Raises ConfigError without the extra `security`, and for a file that cannot be read, is no PEM
    file, or cannot be written; InvalidArgument.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    except ImportError:
        raise ConfigError(needs("a trust store for Java", "security")) from None
    pem = _read(ca) + (b"\n" + also if also else b"")
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
    _write(place, data, 0o644)
    return place


def relay_identity() -> Path:
    """Return the file with certificate and key of this user's relays, for JVMs to trust; made if it is missing.

    A JVM reads its trust store once, so the relays of all processes of a user have one. Raises as `write_trust_store`.
    """
    place = _cache() / _IDENTITY
    if _still_good(place):
        return place
    try:
        from buckram.runtime.net.security.certificate_authority import alone
    except ImportError:
        raise ConfigError(needs("a relay with TLS", "security")) from None
    _write(place, alone("relay of Buckram", ("localhost", "127.0.0.1")), 0o600, replace=place.exists())
    return place


def certificate_in(identity: Path) -> bytes:
    """Return the certificate of an identity as PEM, for a trust store."""
    pem = identity.read_bytes()
    return pem[pem.index(b"-----BEGIN CERTIFICATE-----") :]


def identity_context(identity: Path) -> ssl.SSLContext:
    """Return the context of a server with an identity. ConfigError if other users may read the file."""
    check_key_file(str(identity))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity)
    return context


def _still_good(identity: Path) -> bool:
    try:
        return not life_of(identity.read_text()).due(time.time())
    except (OSError, ValueError):
        return False


def java_options(trust_store: Path) -> str:
    """Return the options with which a JVM trusts the certificates of the store, and no others."""
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


def _write(place: Path, data: bytes, mode: int, *, replace: bool = True) -> None:
    """Write a file atomically, because a JVM may be starting with it. `replace` False: keep an existing file."""
    try:
        place.parent.mkdir(mode=0o700 if mode == 0o600 else 0o777, parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
            if replace:
                os.replace(draft, place)
            else:
                with suppress(FileExistsError):
                    os.link(draft, place)
                os.unlink(draft)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft)
            raise
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}; name a file that can be written as --trust-store") from None
