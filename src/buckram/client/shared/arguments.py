"""Arguments of the client's methods in the types that the client works with: digest, password, custom metadata.

Not here: payloads and entry ids (`client/shared/payloads.py`) and ledger ids (`client/read/open.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from buckram.errors import InvalidArgument
from buckram.types import DigestType

_DIGESTS = {
    "crc32": DigestType.CRC32,
    "crc32c": DigestType.CRC32C,
    "mac": DigestType.MAC,
    "hmac": DigestType.MAC,
    "dummy": DigestType.DUMMY,
}


def digest_type(digest: str | DigestType) -> DigestType:
    """Return the digest type that a caller names. InvalidArgument lists the names."""
    if isinstance(digest, DigestType):
        return digest
    kind = _DIGESTS.get(digest.lower()) if isinstance(digest, str) else None
    if kind is None:
        raise InvalidArgument(f"digest {digest!r}: choose one of crc32c, crc32, mac, dummy")
    return kind


def password_bytes(password: bytes | str) -> bytes:
    """Return the password as bytes; a str is encoded in UTF-8. InvalidArgument for any other type."""
    if isinstance(password, bytes):
        return password
    if isinstance(password, str):
        return password.encode()
    raise InvalidArgument(f"the password must be bytes or str, not {type(password).__name__}")


def custom_metadata_bytes(custom: Mapping[str, bytes | str] | None) -> dict[str, bytes]:
    """Return the custom metadata with values as bytes; a str is encoded in UTF-8. InvalidArgument for other types."""
    result: dict[str, bytes] = {}
    for key, value in (custom or {}).items():
        if not isinstance(key, str) or not isinstance(value, bytes | str):
            raise InvalidArgument(f"custom metadata {key!r}: {value!r}: keys are str, values bytes or str")
        result[key] = value.encode() if isinstance(value, str) else value
    return result
