"""Values that every layer speaks: ids, ledger metadata, fragments, entries, bookies.

Frozen, typed, without behaviour beyond their own consistency. Nothing here does I/O,
encodes bytes (core/entries/entry, core/ledgers/metadata_codec) or decides anything (core/ledgers/metadata).

Ids are aliases: programs pass the numbers that they have stored, and entry ids and offsets are counted with. A type
of its own has what is never calculated by users and must not be confused with its neighbour (Slot).
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
"""The number of a record in its stream. Offsets of bytes in files are plain ints."""
Position: TypeAlias = int
"""An index into an ensemble, 0 to E-1."""
Slot = NewType("Slot", int)
"""One assignment of a bookie to a position of an ensemble: slot modulo E is the position, and each replacement or
readmission gives the position a new slot. What was asked under an earlier slot is stale, even if the same bookie is
back (A-B-A). A type of its own, so that nothing takes a position for a slot."""
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_ENTRY: EntryId = -1
"""The id before the first entry: LAC of an empty ledger, last entry of an empty closed one."""
MAX_LEDGER_ID = 2**63 - 1
MIN_TIME, MAX_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970 (UTC), which Python can show. A time in nanoseconds is beyond."""
MASTER_KEY_SIZE = 20
BIRTH_SIZE = 16
NO_BIRTH = bytes(BIRTH_SIZE)
"""Of a ledger whose birth is not known: bookies have it from releases and clients that give none."""
TRACE_SIZE = 24
"""Of the context of a step in a trace: 16 bytes of the trace, 8 of the step."""
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
    """Which past a metadata store has. Every accepted restore raises `epoch` and gives another `restore`.

    Epoch 0: a cluster that never noted any. Not `accepted`: restored, and nobody has said yet that it shall go on; or
    `moved` says that the metadata are not here (any more, or not yet whole), as core/cluster/history has it.
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
    """What the metadata store knows of a ledger. Checked by core.metadata.check_metadata.

    `last_entry` and `length` (payload bytes) are None unless the state is CLOSED.
    `format_version` is the serialisation (1, 2, 3) the ledger was created with and keeps.
    `creation_time_ms` is None when the record does not store it.
    """

    ensemble_size: int
    """E: how many bookies store a fragment together."""
    write_quorum: int
    """Qw: how many copies each entry gets."""
    ack_quorum: int
    """Qa: how many copies an entry has when it is acknowledged."""
    fragments: tuple[Fragment, ...]
    """Which bookies store which entries, in order; there is at least one."""
    state: LedgerState = LedgerState.OPEN
    """OPEN, IN_RECOVERY or CLOSED."""
    last_entry: EntryId | None = None
    """The last entry of a closed ledger, -1 if it is empty; None unless closed."""
    length: int | None = None
    """Payload bytes of a closed ledger; None unless closed."""
    digest_type: DigestType | None = DigestType.CRC32C
    """How entries are checked; None in old records that do not name it."""
    password: bytes | None = b""
    """The password as the record holds it; None in old records that do not store it."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """The application's own keys and values."""
    creation_time_ms: int | None = None
    """Milliseconds since 1970 UTC; None where the record does not store it."""
    creator_token: int = 0
    """A random number by which a client knows its own record again; 0 where there is none."""
    format_version: int = 3
    """The serialisation (1, 2 or 3) that the ledger was created with and keeps."""

    @property
    def closed(self) -> bool:
        """Whether the state is CLOSED."""
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that a writer appends to."""
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
    """The ledger that it is in."""
    entry_id: EntryId
    """Its number in the ledger, from 0 on."""
    payload: bytes
    """What was appended."""
    last_add_confirmed: EntryId
    """The last confirmed entry (LAC) as its writer knew it when it sent this one."""
    length: int
    """The ledger's payload bytes up to and with this entry."""


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where a bookie listens: a name, or an IPv4 or IPv6 address without brackets."""

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
    """The name of the bookie in metadata."""
    address: BookieAddress | None
    """Where it listens; None without an endpoint that clients can use."""
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What it says of itself: incarnation, rack, version ..."""

    @property
    def incarnation(self) -> str | None:
        """Changes whenever its directory was created empty; None for bookies that do not tell one."""
        return self.properties.get("buckram.incarnation")


@dataclass(frozen=True, slots=True)
class BookieSet:
    """The bookies registered at one moment, by id. A bookie in both is writable."""

    writable: Mapping[BookieId, BookieInfo]
    readonly: Mapping[BookieId, BookieInfo]

    def everybody(self) -> list[tuple[BookieId, BookieInfo]]:
        """All of them by id, each once."""
        return sorted({**self.readonly, **self.writable}.items())

    def find(self, bookie_id: BookieId) -> BookieInfo | None:
        return self.writable.get(bookie_id) or self.readonly.get(bookie_id)

    def state_of(self, bookie_id: BookieId) -> str:
        """Return "writable", "readonly", or "down" for one that is not registered."""
        return "writable" if bookie_id in self.writable else "readonly" if bookie_id in self.readonly else "down"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`owned`: the key is bound to the session that asks."""

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
