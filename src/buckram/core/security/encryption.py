"""Encryption of a ledger's entries by its clients: AES-256-GCM, so that bookies and backups hold no plain text.

A payload is sealed as a nonce (12 bytes), the ciphertext and a tag (16 bytes). The key is not the namespace's own but
one of this ledger, derived from it and the ledger's birth, and the tag covers the entry's id: an entry that is put in
another place, or another ledger, does not open. The digest that bookies check covers the sealed payload.

The custom metadata of the ledger names the key by its id, a fingerprint: two keys with one id do not happen, so a wrong
key is never tried. Pure. Needs the extra `security`. Not here: where keys come from (`client/shared/encryption.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest
from buckram.core.ledgers.metadata import birth_of
from buckram.errors import BuckramError, ConfigError, DigestMismatch
from buckram.extras import needs
from buckram.types import DigestType, Entry, EntryId, LedgerId, LedgerMetadata

ENCRYPTION = "buckram.encryption"
"""Key in the custom metadata of a ledger whose entries are sealed; its value is the id of the encryption key."""
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
MAX_KEYS = 1000
_HEX = re.compile(r"[0-9a-fA-F]{64}")
START_BYTES = 6
"""Bytes of a nonce that a writer draws once at random; the others count its entries."""


@dataclass(frozen=True, slots=True)
class Key:
    """A namespace's key. `key_id` is derived from it and may be shown."""

    key_id: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> Key:
        return cls(hashlib.sha256(b"buckram key id\0" + secret).hexdigest()[:16], secret)


def parse_keys(text: str, where: str) -> tuple[Key, ...]:
    """Parse keys from lines of 64 hexadecimal digits; new ledgers use the first one. `where`: the source, for errors.

    Blank lines, and those that begin with #, are skipped. Raises ConfigError.
    """
    lines = [line.strip() for line in text.splitlines()]
    wanted = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    bad = [number for number, line in wanted if not _HEX.fullmatch(line)]
    if bad or not wanted or len(wanted) > MAX_KEYS:
        what = f"line {bad[0]} is no key" if bad else f"{len(wanted)} keys"
        raise ConfigError(
            f"{where}: {what}; needs 1 to {MAX_KEYS} lines of {2 * KEY_BYTES} hexadecimal digits, "
            "as `buckram key create` writes them"
        )
    return tuple(Key.of(bytes.fromhex(line)) for _, line in wanted)


class Cipher:
    """Sealing and opening of the entries of one ledger. `start`: 6 random bytes for each writer; empty for readers."""

    def __init__(self, key: Key, birth: bytes, start: bytes = b"") -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError:
            raise ConfigError(needs("encryption", "security")) from None
        own = HKDF(SHA256(), KEY_BYTES, salt=birth, info=b"buckram ledger entries").derive(key.secret)
        self._aead, self._broken = AESGCM(own), InvalidTag
        self._start, self._sealed = start, 0

    def seal(self, entry_id: EntryId, payload: bytes) -> bytes:
        nonce = self._start + self._sealed.to_bytes(NONCE_BYTES - START_BYTES, "big")
        self._sealed += 1
        return nonce + self._aead.encrypt(nonce, payload, entry_id.to_bytes(8, "big"))

    def seal_all(self, first: EntryId, payloads: Sequence[bytes]) -> list[bytes]:
        """Seal the payloads of consecutive entries."""
        return [self.seal(first + place, payload) for place, payload in enumerate(payloads)]

    def open(self, entry_id: EntryId, sealed: bytes) -> bytes | None:
        """Return the payload; None if it was not sealed with this key for this entry."""
        if len(sealed) < OVERHEAD:
            return None
        try:
            return self._aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], entry_id.to_bytes(8, "big"))
        except self._broken:
            return None


class SealedDigest(Digest):
    """A digest that also opens the sealed payloads for readers. A bad seal counts as a bad digest."""

    __slots__ = ("cipher",)

    def __init__(self, kind: DigestType, password: bytes, birth: bytes, cipher: Cipher) -> None:
        super().__init__(kind, password, birth)
        self.cipher = cipher

    def open(self, ledger_id: LedgerId, entry_id: EntryId | None, stored: bytes) -> Entry:
        entry = super().open(ledger_id, entry_id, stored)
        payload = self.cipher.open(entry.entry_id, entry.payload)
        if payload is None:
            raise DigestMismatch(ledger_id, f"entry {entry.entry_id}: its digest is right, and its encryption is not")
        return entry._replace(payload=payload)

    def open_prefix(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[Entry]:
        entries = super().open_prefix(ledger_id, first, bodies)
        payloads = self._opened(first, [entry.payload for entry in entries])
        return [entry._replace(payload=payload) for entry, payload in zip(entries, payloads, strict=False)]

    def open_payloads(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[bytes]:
        if self.kind is not DigestType.CRC32C:
            return [entry.payload for entry in self.open_prefix(ledger_id, first, bodies)]
        return self._opened(first, super().open_payloads(ledger_id, first, bodies))

    def _opened(self, first: EntryId, sealed: Sequence[bytes]) -> list[bytes]:
        """Return the payloads up to the first one that does not open."""
        found: list[bytes] = []
        for place, one in enumerate(sealed):
            payload = self.cipher.open(first + place, one)
            if payload is None:
                break
            found.append(payload)
        return found


class LockedDigest(Digest):
    """The digest of a reader without the key: opening any entry raises `why`."""

    __slots__ = ("why",)

    def __init__(self, digest: Digest, password: bytes, why: BuckramError) -> None:
        super().__init__(digest.kind, password, digest.birth)
        self.why = why

    def open(self, ledger_id: LedgerId, entry_id: EntryId | None, stored: bytes) -> Entry:
        raise self.why.with_traceback(None)

    def open_prefix(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[Entry]:
        raise self.why.with_traceback(None)

    def open_payloads(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[bytes]:
        raise self.why.with_traceback(None)


def key_id_of(custom_metadata: Mapping[str, bytes]) -> str:
    """Return the id of the key with which a ledger's entries are sealed; "" if they are not."""
    return custom_metadata.get(ENCRYPTION, b"").decode(errors="replace")


def sealed_digest(metadata: LedgerMetadata, digest: Digest, password: bytes, key: Key) -> SealedDigest:
    """Return the digest for readers of a ledger that is sealed with this key."""
    birth = birth_of(metadata)
    return SealedDigest(digest.kind, password, birth, Cipher(key, birth))
