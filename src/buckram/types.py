"""Values that every layer speaks: ids, ledger metadata, fragments, entries, bookies.

Frozen, typed, without behaviour beyond their own consistency. Nothing here does I/O,
encodes bytes (core/entries/entry, core/ledgers/metadata_codec) or decides anything (core/ledgers/metadata).

Ids are aliases: programs pass the numbers that they have stored, and entry ids and offsets are counted with. A value
has a type of its own if users never calculate with it and it must not be confused with its neighbour (Slot).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, NewType, TypeAlias

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str
Offset: TypeAlias = int
"""Number of a record in its stream. Offsets of bytes in files are plain ints."""
Position: TypeAlias = int
"""Index into an ensemble, 0 to E-1."""
Slot = NewType("Slot", int)
"""One assignment of a bookie to a position of an ensemble: slot modulo E is the position, and each replacement or
readmission gives the position a new slot. A request under an earlier slot is stale, even if the same bookie is back
(A-B-A). A type of its own, so that nothing takes a position for a slot.
"""
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_ENTRY: EntryId = -1
"""Id before the first entry: LAC of an empty ledger, last entry of an empty closed one."""
MAX_LEDGER_ID = 2**63 - 1
MIN_TIME, MAX_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970 (UTC), which Python can show. A time in nanoseconds is beyond."""
MASTER_KEY_SIZE = 20
BIRTH_SIZE = 16
NO_BIRTH = bytes(BIRTH_SIZE)
"""Birth of a ledger for which it is unknown, from releases and clients that send none."""
TRACE_SIZE = 24
"""Bytes of the context of a step in a trace: 16 of the trace, 8 of the step."""
DEFAULT_PORT = 3181


class DigestType(enum.IntEnum):
    """Digest kinds with their numbers in ledger metadata (docs/reference/protocol.md, entry format)."""

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
    """Identity of a metadata store's past. Every accepted restore raises `epoch` and gives another `restore`.

    Epoch 0: a cluster that never recorded one. Not `accepted`: restored and not accepted by an operator yet; or `moved`
    tells that the metadata are not here (any more, or not yet whole), see core/cluster/store_history.
    """

    epoch: int = 0
    restore: str = ""
    accepted: bool = True
    moved: str = ""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries from `first_entry` on, stored by one ensemble (ordered bookie ids)."""

    first_entry: EntryId
    """The first entry of this fragment; it ends where the next one begins."""
    ensemble: tuple[BookieId, ...]
    """The bookies that store it, in order; entry n goes to Qw of them from position n % E on."""


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Record of a ledger in the metadata store. Checked by core.ledgers.metadata.check_metadata.

    `last_entry` and `length` (payload bytes) are None unless the state is CLOSED.
    `format_version` is the serialisation (1, 2, 3) the ledger was created with and keeps.
    `creation_time_ms` is None when the record does not store it.
    """

    ensemble_size: int
    """E: number of bookies that store a fragment together."""
    write_quorum: int
    """Qw: number of copies of each entry."""
    ack_quorum: int
    """Qa: number of copies after which an entry is acknowledged."""
    fragments: tuple[Fragment, ...]
    """Fragments in order, at least one: which bookies store which entries."""
    state: LedgerState = LedgerState.OPEN
    """OPEN, IN_RECOVERY or CLOSED."""
    last_entry: EntryId | None = None
    """The last entry of a closed ledger, -1 if it is empty; None unless closed."""
    length: int | None = None
    """Payload bytes of a closed ledger; None unless closed."""
    digest_type: DigestType | None = DigestType.CRC32C
    """Kind of the entries' digest; None in old records that do not name it."""
    password: bytes | None = b""
    """The password as the record holds it; None in old records that do not store it."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """The application's own keys and values."""
    creation_time_ms: int | None = None
    """Milliseconds since 1970 UTC; None where the record does not store it."""
    creator_token: int = 0
    """Random number by which a client recognises its own record; 0 if there is none."""
    format_version: int = 3
    """The serialisation (1, 2 or 3) that the ledger was created with and keeps."""

    @property
    def closed(self) -> bool:
        """Return whether the state is CLOSED."""
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        """Return the fragment that a writer appends to."""
        return self.fragments[-1]


@dataclass(frozen=True, slots=True)
class Versioned:
    """Ledger metadata with the store's version of it; a conditional write names that version."""

    metadata: LedgerMetadata
    version: int


class Entry(NamedTuple):
    """One entry as a reader gets it.

    A tuple, because a frozen dataclass takes longer to make than everything else that is done for an entry read.
    """

    ledger_id: LedgerId
    """Id of its ledger."""
    entry_id: EntryId
    """Number of the entry in the ledger, from 0 on."""
    payload: bytes
    """Bytes that were appended."""
    last_add_confirmed: EntryId
    """Last confirmed entry (LAC) as its writer knew it when it sent this one."""
    length: int
    """The ledger's payload bytes up to and with this entry."""


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Address of a bookie: a name, or an IPv4 or IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """One registered bookie: identity, address, free-form properties (incarnation, rack, ...).

    `address` is None for a registration without a bookie-rpc endpoint: such a bookie is unreachable.
    """

    bookie_id: BookieId
    """Id of the bookie in metadata."""
    address: BookieAddress | None
    """Address at which it listens; None without an endpoint that clients can use."""
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Properties that it registered: incarnation, rack, version ..."""

    @property
    def incarnation(self) -> str | None:
        """Return the incarnation, which changes whenever its directory was created empty; None for bookies that have
        none.
        """
        return self.properties.get("buckram.incarnation")


@dataclass(frozen=True, slots=True)
class BookieSet:
    """The bookies registered at one moment, by id. A bookie in both is writable."""

    writable: Mapping[BookieId, BookieInfo]
    readonly: Mapping[BookieId, BookieInfo]

    def everybody(self) -> list[tuple[BookieId, BookieInfo]]:
        """Return all bookies by id, each once."""
        return sorted({**self.readonly, **self.writable}.items())

    def find(self, bookie_id: BookieId) -> BookieInfo | None:
        return self.writable.get(bookie_id) or self.readonly.get(bookie_id)

    def state_of(self, bookie_id: BookieId) -> str:
        """Return "writable", "readonly", or "down" for one that is not registered."""
        return "writable" if bookie_id in self.writable else "readonly" if bookie_id in self.readonly else "down"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Value of a key with its version. `owned`: the key is bound to the calling session."""

    value: bytes
    version: int
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetValue:
    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class CheckVersion:
    key: str
    version: int


KeyOp = Create | SetValue | Delete | CheckVersion
