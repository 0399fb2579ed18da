"""A private certificate authority: makes itself, and certificates for bookies and clients, as PEM files.

For `buckram up --secure` and tests; a cluster of several machines can have its certificates from anywhere. Needs the
extra `security`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from buckram.errors import ConfigError

AUTHORITY_DAYS = 3650
DAYS = 365
"""Validity of a certificate in days, for the authority's own and those that it signs."""
_SKEW = datetime.timedelta(minutes=10)
"""Time by which certificates begin earlier, for peers whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    serial: int


class Authority:
    """The authority whose files are in `directory` (`ca.pem`, `ca.key`), made where they are missing.

    ConfigError where one of them is there without the other, or cannot be read."""

    def __init__(self, directory: Path, *, days: float = AUTHORITY_DAYS) -> None:
        """`days`: what its certificate lives if it is made."""
        self.directory = directory
        self.certificate, self._key_file = directory / "ca.pem", directory / "ca.key"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(self._key_file, _pem(key))
            self._certify(key, days)
        self._ca, self._key = self._read()

    def _read(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            ca = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            key = serialization.load_pem_private_key(self._key_file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.directory}: the authority's ca.pem and ca.key cannot be read, and nothing can be signed "
                f"without: {error}; put both back"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
            raise ConfigError(f"{self._key_file}: is not the key of {self.certificate}; put the right one back")
        return ca, key

    def renew(self, *, days: float = AUTHORITY_DAYS) -> None:
        """Renew the authority's certificate, with its key and name: certificates that it signed stay valid, also for
        peers that have the old one."""
        self._certify(self._key, days)
        self._ca, self._key = self._read()

    def _certify(self, key: ec.EllipticCurvePrivateKey, days: float) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Buckram private authority")])
        made = (
            _begun(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_public(self.certificate, made)

    def bookie(self, name: str, hosts: Sequence[str], *, days: float = DAYS) -> Pair:
        """Make the certificate of a bookie or another server for these hosts and addresses."""
        return self._issue(name, name, (), hosts, days, (ExtendedKeyUsageOID.SERVER_AUTH,))

    def client(
        self, name: str, subject: str, *, units: Sequence[str] = (), days: float = DAYS, folder: Path | None = None
    ) -> Pair:
        """Make a certificate that identifies a client; `units` are its OU fields, which may name roles. `folder`: where
        the files are put, if not beside the authority's."""
        return self._issue(name, subject, units, (), days, (ExtendedKeyUsageOID.CLIENT_AUTH,), folder)

    def _issue(
        self,
        name: str,
        subject: str,
        units: Sequence[str],
        hosts: Sequence[str],
        days: float,
        uses: Sequence[x509.ObjectIdentifier],
        folder: Path | None = None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        fields = [x509.NameAttribute(NameOID.COMMON_NAME, subject)]
        fields += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        made = _begun(x509.Name(fields), self._ca.subject, key.public_key(), days)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(sign=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        place = folder or self.directory
        pair = Pair(place / f"{name}.pem", place / f"{name}.key", signed.serial_number)
        write_private(pair.key, _pem(key))
        _write_public(pair.certificate, signed)
        return pair


def alone(subject: str, hosts: Sequence[str], *, days: float = AUTHORITY_DAYS) -> bytes:
    """Return a certificate that signed itself and can sign no other, for a server at these hosts, behind its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    made = _begun(name, name, key.public_key(), days)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(_usage(sign=False), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage((ExtendedKeyUsageOID.SERVER_AUTH,)), critical=False)
    made = made.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
    return _pem(key) + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write_private(path: Path, data: bytes) -> None:
    """Put a secret in a file that only its owner can read, whole or not at all."""
    _write(path, data, 0o600)


def _write_public(path: Path, certificate: x509.Certificate) -> None:
    """Put a certificate in a file, whole or not at all: who reads it may be a process that runs."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), mode)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step. If root replaces another user's file, the new one keeps that owner, whose processes
    go on reading it."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        if os.geteuid() == 0 and path.exists():
            os.fchown(file.fileno(), path.stat().st_uid, path.stat().st_gid)
    draft.replace(path)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + datetime.timedelta(days=days)) - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
