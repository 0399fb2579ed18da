"""Checks of the arguments of the client's methods, and their types inside the client.

They are digest, password and custom metadata, and what may be appended: types and sizes of payloads, and entry ids.

Not here: ledger ids (`client/read/open.py`), whether there is room for an append now (`client/write/append_limits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from buckram.errors import EntryTooLarge, InvalidArgument
from buckram.types import Buffer, DigestType, EntryId, LedgerId

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


# -- payloads and entry ids -----------------------------------------------------------------------------------


def as_bytes(payload: Buffer) -> bytes:
    """Return the payload, or a copy of it if the caller could change it before it is sent. Raises InvalidArgument."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidArgument(f"a payload must be bytes, bytearray or memoryview, not {type(payload).__name__}")


def all_as_bytes(payloads: Iterable[Buffer]) -> list[bytes]:
    """Return each payload as `as_bytes` does."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise InvalidArgument(f"append_many takes a sequence of payloads, not one {type(payloads).__name__}")
    return [payload if type(payload) is bytes else as_bytes(payload) for payload in payloads]


def check_entry_id(entry_id: EntryId | None, explicit: bool) -> None:
    """Check that an append may have this id, or none. Raises InvalidArgument. `explicit`: the writer was created with
    explicit_ids."""
    if (entry_id is not None) is not explicit:
        raise InvalidArgument(
            "this writer was created with explicit_ids=True: give every append its entry_id"
            if entry_id is None
            else f"entry_id={entry_id!r}: only a writer created with explicit_ids=True takes entry ids"
        )
    if type(entry_id) is not int or not 0 <= entry_id < 2**63 - 1:
        raise InvalidArgument(f"entry_id={entry_id!r}: needs an int from 0 to 2**63-2")


def check_payload(
    ledger_id: LedgerId, payload: Buffer, entry_id: EntryId | None, max_bytes: int, *, explicit: bool
) -> bytes:
    """Return the bytes of an append. InvalidArgument, EntryTooLarge. `explicit`: the writer has explicit_ids."""
    body = payload if type(payload) is bytes else as_bytes(payload)
    if len(body) > max_bytes:
        raise EntryTooLarge(ledger_id, len(body), max_bytes)
    if entry_id is not None or explicit:
        check_entry_id(entry_id, explicit)
    return body


def check_payloads(
    ledger_id: LedgerId, payloads: Iterable[Buffer], max_bytes: int, *, explicit: bool
) -> Sequence[bytes]:
    """Return the bytes of many appends; none is taken where one is refused. Raises as `check_payload` does."""
    if explicit:
        raise InvalidArgument("append_many: this writer was created with explicit_ids=True, append one by one")
    bodies = all_as_bytes(payloads)
    largest = max(map(len, bodies), default=0)
    if largest > max_bytes:
        raise EntryTooLarge(ledger_id, largest, max_bytes)
    return bodies
