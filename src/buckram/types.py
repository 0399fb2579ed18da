"""Values that every layer speaks: ids, ledger metadata, fragments, entries, bookies.

Frozen, typed, without behaviour beyond their own consistency. Nothing here does I/O,
encodes bytes (core/entry, core/metadata_codec) or decides anything (core/metadata).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_ENTRY: EntryId = -1
"""The id before the first entry: LAC of an empty ledger, last entry of an empty closed one."""
MAX_LEDGER_ID = 2**63 - 1
MASTER_KEY_SIZE = 20
BIRTH_SIZE = 16
NO_BIRTH = bytes(BIRTH_SIZE)
"""Of a ledger whose birth is not known: bookies have it from releases and clients that give none."""
DEFAULT_PORT = 3181


class DigestType(enum.IntEnum):
    """Digest kinds with their numbers in ledger metadata (docs/protocol.md, entry format)."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4


class LedgerState(enum.IntEnum):
    """Ledger states with their numbers in ledger metadata."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class History:
    """Which past a metadata store has. Every accepted restore raises `epoch` and gives another `restore`.

    Epoch 0: a cluster that never noted any. Not `accepted`: restored, and nobody has said yet that it shall go on.
    """

    epoch: int = 0
    restore: str = ""
    accepted: bool = True


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries from `first_entry` on, stored by one ensemble (ordered bookie ids)."""

    first_entry: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What the metadata store knows of a ledger. Checked by core.metadata.check_metadata.

    `last_entry` and `length` (payload bytes) are None unless the state is CLOSED.
    `format_version` is the serialisation (1, 2, 3) the ledger was created with and keeps.
    `creation_time_ms` is None when the record does not store it.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId | None = None
    length: int | None = None
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = b""
    custom_metadata: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    creation_time_ms: int | None = None
    creator_token: int = 0
    format_version: int = 3

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]


@dataclass(frozen=True, slots=True)
class Versioned:
    """Ledger metadata with the store's version of it; a conditional write names that version."""

    metadata: LedgerMetadata
    version: int


class Entry(NamedTuple):
    """One entry as a reader gets it. `length` is the ledger's payload bytes up to and with it.

    A tuple, because a frozen dataclass takes longer to make than everything else that is done for an entry read.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    last_add_confirmed: EntryId
    length: int


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where a bookie listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """One registered bookie: identity, address, free-form properties (incarnation, rack, ...).

    `address` is None for a registration without a bookie-rpc endpoint: such a bookie is unreachable.
    """

    bookie_id: BookieId
    address: BookieAddress | None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def incarnation(self) -> str | None:
        return self.properties.get("buckram.incarnation")


@dataclass(frozen=True, slots=True)
class BookieSet:
    """The bookies registered at one moment, by id. A bookie in both is writable."""

    writable: Mapping[BookieId, BookieInfo]
    readonly: Mapping[BookieId, BookieInfo]

    def find(self, bookie_id: BookieId) -> BookieInfo | None:
        return self.writable.get(bookie_id) or self.readonly.get(bookie_id)
