"""Requests to a bookie and its replies as frozen values, the same for both wire protocols.

`body` is always a whole stored entry. Keys are the 20 bytes that `master_key` returns. Ids are i64. The `code` of a
reply is an `errors.Code`; replies that carry an error code are returned, never raised. Beside a request stands its
context for the reply; an invalid request is decoded to a `BadPacket` or a `RefusedRequest`.

Not here: bytes (`core/wire/v2.py`, `core/wire/v3.py`), the format of entries (`core/entries/entry.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from buckram.core.wire.introduction import Identity, Introduction
from buckram.core.wire.located import Located
from buckram.errors import Code
from buckram.types import BookieId, DigestType, EntryId, LedgerId

LAST_ENTRY: EntryId = -1
"""Entry id of a Read for the entry with the highest id that this bookie stores for the ledger."""

TOTAL_DISK_CAPACITY = 1

FREE_DISK_SPACE = 2

MEMORY_USE = 0x100

LOSS = 0x200

DISK_STATE = 0x400

REPORT = 0x800

QUOTAS = 0x1000
"""Flags of Buckram's own; Apache's bookies ignore them and leave the values out of the reply."""


class MemoryUse(NamedTuple):
    """Bytes of memory that a part of a bookie uses, and its limit (None if that follows from other limits)."""

    name: str
    bytes: int
    limit: int | None = None


class Trouble(NamedTuple):
    """Problem of a bookie: its description, the reason, and what an operator can do, which may be nothing."""

    what: str
    why: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    """Store one entry. `recovery` passes a fence; `deferred_sync` (v3 only) is answered before the sync.

    `birth`, here and in other requests about a ledger, is that of the ledger that is meant; b"" if unknown. On v2 it
    is sent ahead in a packet of its own (core/wire/client_protocol).
    """

    ledger_id: LedgerId
    entry_id: EntryId
    master_key: bytes
    body: bytes
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False
    birth: bytes = b""


class Read(NamedTuple):
    """Read one entry (LAST_ENTRY: the last one stored). With `fence` the key is needed and the ledger is fenced first.

    `previous_lac` makes it a long poll (v3): wait up to `timeout_ms` (None: not at all) for a LAC above it; with
    `piggyback` the entry after it comes along. The order of these rules is fence, previous_lac, plain.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    fence: bool = False
    master_key: bytes | None = None
    high_priority: bool = False
    previous_lac: EntryId | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchRead:
    """Read consecutive entries from `entry_id` on (v2 only). max_count <= 0: no limit; max_bytes: the whole frame.

    Three flags need the master key; a bookie that does not support one, or has another key, answers in the usual form.
    `framed` asks for the entries in the frames in which they were added, which are ready in the log. `located` asks for
    the places of these frames in files. `from_files` asks for what the files hold, regardless of memory, for audits.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    max_count: int
    max_bytes: int
    fence: bool = False
    master_key: bytes | None = None
    high_priority: bool = False
    framed: bool = False
    located: bool = False
    from_files: bool = False
    birth: bytes = b""


def ask_for_places(ledger: LedgerId, first: EntryId, last: EntryId, key: bytes, birth: bytes = b"") -> BatchRead:
    """Return the request for the places of entries first..last. A bookie without places answers with one entry."""
    count = min(last - first + 1, 2**31 - 1)
    return BatchRead(ledger, first, count, 1, master_key=key, framed=True, located=True, birth=birth)


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy `count` entries from `entry_id` on from the files of the bookie `source` on the same machine (v2 only, and
    only where the bookie announced PULLS). They are stored as recovery adds; `digest` verifies them.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    count: int
    master_key: bytes
    digest: DigestType
    source: BookieId
    located: Located
    birth: bytes = b""

    @property
    def size(self) -> int:
        """Return the bytes of files that are read for it."""
        return sum(extent.length for extent in self.located.extents)


@dataclass(frozen=True, slots=True)
class Auth:
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTls:
    pass


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Store an explicit LAC. `body` is the sealed packet (Digest.seal_lac); ledger_id and lac equal those inside."""

    ledger_id: LedgerId
    lac: EntryId
    master_key: bytes
    body: bytes
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class ReadLac:
    ledger_id: LedgerId
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class Force:
    """Sync barrier: everything acknowledged before it is durable when it returns."""

    ledger_id: LedgerId
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class GetBookieInfo:
    """Request figures of a bookie. With `introduction` it is the first exchange of a connection: our bookies answer
    with their identity, and a bookie that is not the expected one answers nothing else.
    """

    requested: int = TOTAL_DISK_CAPACITY | FREE_DISK_SPACE
    introduction: Introduction | None = None


@dataclass(frozen=True, slots=True)
class ListEntries:
    ledger_id: LedgerId
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class AddReply:
    code: Code
    ledger_id: LedgerId
    entry_id: EntryId


class ReadReply(NamedTuple):
    """`entry_id` echoes the request, except for a long poll: -1 without a body, else the entry's own id.

    `max_lac`: the bookie's known LAC (plain v3 reads and long polls only). `lac_update_ms`: ms since the epoch.
    """

    code: Code
    ledger_id: LedgerId
    entry_id: EntryId
    body: bytes | None = None
    max_lac: EntryId | None = None
    lac_update_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReadReply:
    """`bodies` are the stored entries from `entry_id` on, without gaps."""

    code: Code
    ledger_id: LedgerId
    entry_id: EntryId
    bodies: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class LocatedReply:
    """The places of the entries of a batch read, from `entry_id` on."""

    code: Code
    ledger_id: LedgerId
    entry_id: EntryId
    located: Located


@dataclass(frozen=True, slots=True)
class PullReply:
    """`count` entries from `entry_id` on are durable, of `bytes` stored bytes; a code other than OK is the reason why
    there are not more.
    """

    code: Code
    ledger_id: LedgerId
    entry_id: EntryId
    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class AuthReply:
    code: Code
    plugin: str = ""
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class StartTlsReply:
    code: Code


@dataclass(frozen=True, slots=True)
class WriteLacReply:
    code: Code
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class ReadLacReply:
    """OK with one or both bodies missing is legal. `lac_body` is a LAC packet, `last_entry_body` a stored entry."""

    code: Code
    ledger_id: LedgerId
    lac_body: bytes | None = None
    last_entry_body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ForceReply:
    code: Code
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class BookieInfoReply:
    code: Code
    total_bytes: int | None = None
    free_bytes: int | None = None
    memory: Sequence[MemoryUse] = ()
    loss: int | None = None
    """Number of the newest loss of a bookie in limbo; 0 without limbo, None if the reply does not have it."""
    identity: Identity | None = None
    figures: Mapping[str, int] = field(default_factory=dict)
    """Figures of the bookie's disk and of the check of its files, by name; the unit is in the name."""
    troubles: Sequence[Trouble] = ()
    report: bytes | None = None
    """A JSON object (`core/cluster/bookie_report.py`), None if the answer does not have it."""


@dataclass(frozen=True, slots=True)
class ListEntriesReply:
    """`availability` is encoded as in `core/wire/availability.py`. `birth`: of the stored ledger, b"" if unknown."""

    code: Code
    ledger_id: LedgerId
    availability: bytes = b""
    birth: bytes = b""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An envelope without ids (v3): not authenticated, unimplemented operation, TLS not available."""

    code: Code


Request: TypeAlias = (
    Add | Read | BatchRead | Pull | Auth | StartTls | WriteLac | ReadLac | Force | GetBookieInfo | ListEntries
)

Reply: TypeAlias = (
    AddReply
    | ReadReply
    | BatchReadReply
    | LocatedReply
    | PullReply
    | AuthReply
    | StartTlsReply
    | WriteLacReply
    | ReadLacReply
    | ForceReply
    | BookieInfoReply
    | ListEntriesReply
    | ErrorReply
)


# -- contexts of requests, and invalid ones -------------------------------------------------------------------

OP_READ, OP_ADD, OP_AUTH, OP_WRITE_LAC, OP_READ_LAC = 1, 2, 5, 6, 7

OP_BOOKIE_INFO, OP_START_TLS, OP_FORCE, OP_LIST_ENTRIES, OP_BATCH_READ = 8, 9, 10, 11, 12

OP_PULL = 0x45
"""Opcode of a pull on v2; v3 does not have it."""


class ReplyContext(NamedTuple):
    """Echoed into the reply. `operation` is the v3 number on both wires.

    `version`: the request's version byte (v2). `txn`: the v3 transaction id or the v2 batch read's request id.
    `priority`: the v3 header's, for replies that copy the whole header; -1 when it has none.
    """

    protocol: int
    version: int
    operation: int
    ledger_id: LedgerId = -1
    entry_id: EntryId = -1
    txn: int = 0
    priority: int = -1


class BadPacket(Exception):
    """A packet that cannot be answered: the connection must be closed."""


class RefusedRequest(NamedTuple):
    """A valid packet that is answered with an error at once. `envelope_only`: the reply has no ids (v3)."""

    code: Code
    envelope_only: bool = False


def error_reply(context: ReplyContext, code: Code) -> Reply:
    """Return the reply of the request's operation with this code and the request's ids."""
    operation, ledger, entry = context.operation, context.ledger_id, context.entry_id
    if operation == OP_READ:
        return ReadReply(code, ledger, entry)
    if operation == OP_ADD:
        return AddReply(code, ledger, entry)
    if operation == OP_BATCH_READ and context.protocol == 2:
        return BatchReadReply(code, ledger, entry)
    if operation == OP_PULL:
        return PullReply(code, ledger, entry)
    if operation == OP_WRITE_LAC:
        return WriteLacReply(code, ledger)
    if operation == OP_READ_LAC:
        return ReadLacReply(code, ledger)
    if operation == OP_FORCE:
        return ForceReply(code, ledger)
    if operation == OP_BOOKIE_INFO:
        return BookieInfoReply(code)
    if operation == OP_LIST_ENTRIES:
        return ListEntriesReply(code, ledger)
    if operation == OP_AUTH:
        return AuthReply(code)
    return ErrorReply(code)
