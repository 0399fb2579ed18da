"""Opening a ledger for reading: passive, it never fences and never writes (F16). Recovery is recover.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

from buckram.client.read.lac import read_last_confirmed
from buckram.client.read.reader import OnReaderClosed, Reader
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.metadata import birth_of
from buckram.errors import InvalidArgument, Unauthorized
from buckram.runtime.process.tasks import TaskScope
from buckram.types import DigestType, LedgerId, LedgerMetadata

_PAGE = 1000


def check_ledger_id(ledger_id: LedgerId) -> LedgerId:
    if type(ledger_id) is not int or not 0 <= ledger_id < 2**63:
        raise InvalidArgument(f"ledger id {ledger_id!r}: needs an int from 0 to 2**63-1")
    return ledger_id


def check_password(ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes) -> None:
    """Raise Unauthorized before anything is asked or changed, where the metadata knows the password (F14)."""
    if metadata.password is not None and metadata.password != password:
        what = "wrong password" if password else "it has a password, and none was given"
        raise Unauthorized(f"ledger {ledger_id}: {what}; nothing was fenced or written")


def digest_of(ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes, kind: DigestType | None) -> Digest:
    """Return the ledger's digest. Its kind comes from the metadata; `kind` serves records that do not store it."""
    stored = metadata.digest_type if metadata.digest_type is not None else kind
    if stored is None:
        raise InvalidArgument(f"ledger {ledger_id}: its metadata does not name the digest; pass digest=...")
    return Digest(stored, password, birth_of(metadata))


async def open_ledger(
    services: Services,
    ledger_id: LedgerId,
    *,
    password: bytes = b"",
    digest: DigestType | None = None,
    on_closed: OnReaderClosed | None = None,
) -> Reader:
    """Return a reader of the ledger as it is.

    Errors: NoSuchLedger, Unauthorized, EncryptionKeyMissing, MetadataUnavailable, and ReadFailed where too few bookies
    say how far an open ledger is confirmed.
    """
    services.guard()
    versioned = await services.store.read_ledger(check_ledger_id(ledger_id))
    metadata = versioned.metadata
    check_password(ledger_id, metadata, password)
    opener = digest_of(ledger_id, metadata, password, digest)
    reading = await services.encryption.reading_soon(ledger_id, metadata, opener, password)
    async with TaskScope(f"open {ledger_id}") as scope:
        lac = await read_last_confirmed(services, ledger_id, metadata, opener, scope)
    return Reader(services, ledger_id, versioned, reading, lac, on_closed=on_closed)


async def list_ledgers(services: Services) -> AsyncIterator[LedgerId]:
    """Iterate over all ledger ids, ascending. An error of the store is raised; it never looks like the end."""
    services.guard()
    after = -1
    while page := await services.store.list_ledgers(after=after, limit=_PAGE):
        for ledger_id in page:
            yield ledger_id
        after = page[-1]
