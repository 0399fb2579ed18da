"""The facts of a life: per ledger and bookie, what was submitted, claimed, acknowledged, fenced and delivered.

A bookie that sent OK for an add claims to hold that entry durably. The facts come from the messages on the wire, the
metadata and the results of clients, never from the state inside a client or bookie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest
from buckram.errors import DigestMismatch
from buckram.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState

_open = Digest.open
"""The function as it was at import: a mutant planted in it must not affect the checkers."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The content of one entry: its payload and the length field of its header (payload bytes of the ledger up to and
    including it)."""

    payload: bytes
    length: int


@dataclass(slots=True)
class Handle:
    """One writer handle. The lists have an item for each append, in the order of the calls.

    A result is "pending", "ok" or "failed". `wanted` are ids that the caller chose, `ids` those that were returned.
    """

    client: str
    ledger: LedgerId
    explicit: bool = False
    deferred: bool = False
    results: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    wanted: list[EntryId | None] = field(default_factory=list)
    ids: list[EntryId | None] = field(default_factory=list)
    died: bool = False
    """Set if the writer's process crashed: the last results may never have reached the application."""
    closing: bool = False
    close_called_at: float | None = None
    acked: int = 0
    lac: EntryId = -1
    fenced_at: float | None = None
    forced: EntryId = -1


@dataclass(slots=True)
class LedgerFacts:
    """The facts of one ledger."""

    ledger: LedgerId
    digest: Digest | None = None
    key: bytes | None = None
    writer: str = ""
    metadata: LedgerMetadata | None = None
    version: int = -1
    records: list[tuple[float, LedgerMetadata]] = field(default_factory=list)
    """All versions of the ledger's metadata, each with the time since which it is stored."""
    deleted: bool = False
    delete_returned: bool = False
    recovery_fragment: Fragment | None = None
    recovery_attempts: int = 0
    recovery_failed: int = 0
    recoveries_done: list[tuple[str, EntryId, int]] = field(default_factory=list)
    explicit: bool = False
    deferred: bool = False
    pushed: dict[EntryId, Copy] = field(default_factory=dict)
    acked: dict[EntryId, float] = field(default_factory=dict)
    max_acked: EntryId = -1
    max_lac: EntryId = -1
    max_lac_source: str = ""
    claims: dict[EntryId, dict[BookieId, bool]] = field(default_factory=dict)
    """Claims by entry and bookie: True for a durable one, False if acknowledged before the sync (deferred sync)."""
    claimed_at: dict[tuple[EntryId, BookieId], float] = field(default_factory=dict)
    held_since: dict[tuple[EntryId, BookieId], float] = field(default_factory=dict)
    """Time of a bookie's first acknowledgement of an entry."""
    fenced: dict[BookieId, int] = field(default_factory=dict)
    """Bookies that answered a fencing read, with the loop step of the first such answer."""
    negatives: dict[tuple[BookieId, EntryId], float] = field(default_factory=dict)
    delivered: dict[EntryId, bytes] = field(default_factory=dict)
    max_delivered: EntryId = -1
    max_delivered_by: str = ""
    closed: tuple[EntryId, int] | None = None
    forced: EntryId = -1
    repaired: bool = False
    went_back: bool = False
    """Set if the metadata store was restored to a state with older metadata of this ledger, or none."""
    racks: int = 0
    """Racks that each write quorum of this ledger must span; 0: not enforced."""

    def open(self, entry: EntryId | None, stored: bytes) -> tuple[EntryId, EntryId, Copy] | None:
        """Return (id, LAC, copy) of a stored entry that passes its digest, otherwise None."""
        if self.digest is None:
            return None
        try:
            found = _open(self.digest, self.ledger, entry, stored)
        except DigestMismatch:
            return None
        return found.entry_id, found.last_add_confirmed, Copy(found.payload, found.length)

    @property
    def promised(self) -> list[EntryId]:
        """Return the ids that must survive anything within the guarantee."""
        return [e for e in self.acked if not self.deferred or e <= self.forced]

    def holders(self, entry: EntryId, members: tuple[BookieId, ...]) -> list[BookieId]:
        """Return those of the members that claim to hold the entry durably."""
        claims = self.claims.get(entry, {})
        return [b for b in members if claims.get(b)]

    @property
    def state(self) -> LedgerState | None:
        return None if self.metadata is None else self.metadata.state


def behind_end(metadata: LedgerMetadata | None, entry: EntryId) -> bool:
    """Return whether the ledger was closed before this entry: the entry is not needed, and denying it is correct."""
    return metadata is not None and metadata.closed and metadata.last_entry is not None and entry > metadata.last_entry


def fragment_of(metadata: LedgerMetadata, entry: EntryId) -> Fragment:
    """Return the fragment that the entry belongs to."""
    found = metadata.fragments[0]
    for fragment in metadata.fragments:
        if fragment.first_entry <= entry:
            found = fragment
    return found


def members_of(fragment: Fragment, metadata: LedgerMetadata, entry: EntryId) -> tuple[BookieId, ...]:
    """Return the write set of an entry in a fragment by its definition: Qw bookies from position entry mod E on."""
    size = metadata.ensemble_size
    return tuple(fragment.ensemble[(entry + i) % size] for i in range(metadata.write_quorum))


def write_set(metadata: LedgerMetadata, entry: EntryId) -> tuple[BookieId, ...]:
    """Return the bookies that store the entry according to the metadata."""
    return members_of(fragment_of(metadata, entry), metadata, entry)


def write_sets(fragment: Fragment, metadata: LedgerMetadata) -> list[tuple[BookieId, ...]]:
    """Return all write sets that occur in the fragment."""
    return [members_of(fragment, metadata, start) for start in range(metadata.ensemble_size)]


def entries_of(metadata: LedgerMetadata) -> list[tuple[EntryId, tuple[BookieId, ...]]]:
    """Return every entry of a closed ledger with its write set."""
    last = metadata.last_entry if metadata.last_entry is not None else -1
    ends = [f.first_entry - 1 for f in metadata.fragments[1:]] + [last]
    return [
        (entry, members_of(fragment, metadata, entry))
        for fragment, end in zip(metadata.fragments, ends, strict=True)
        for entry in range(fragment.first_entry, end + 1)
    ]


@dataclass(slots=True)
class BookieFacts:
    """The facts of one bookie."""

    name: BookieId
    incarnations: list[str] = field(default_factory=list)
    running: bool = False
    rack: str | None = None
    liar: bool = False
    damaged: bool = False
    """Set if bytes of its disk were changed, or a write failed: entries may be unreadable, but never wrong."""
    wiped: bool = False
    """Set when its disk was replaced by an empty one; its earlier claims no longer count."""
    reborn: bool = False
    """Set when an operator replaced its disk and it serves again, as another incarnation."""
    reborn_at: float | None = None
    listed_at: float = 0.0
    """Time of its present registration: clients that never saw another one do not know its address before."""
    fence_negatives: int = 0
    limbo: bool = False


@dataclass(slots=True)
class Facts:
    """The facts of a life. `recovering` and `repairing` count running calls by client and ledger."""

    ledgers: dict[LedgerId, LedgerFacts] = field(default_factory=dict)
    bookies: dict[BookieId, BookieFacts] = field(default_factory=dict)
    recovering: dict[tuple[str, LedgerId], int] = field(default_factory=dict)
    repairing: dict[tuple[str, LedgerId], int] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    enforced: dict[str, int] = field(default_factory=dict)
    """Number of racks that each write quorum of a client's ledgers must span from their creation on, by client."""
    unplaced: Callable[[str, BookieId], bool] = field(default=lambda who, bookie: False)
    """Returns whether a client cannot know a bookie's rack: the bookie was gone before the client's first look."""
    strangers: dict[str, frozenset[str]] = field(default_factory=dict)
    """Permissions of each client of another tenant on the ledgers of this life, by client."""
    restorers: set[str] = field(default_factory=set)
    """Processes that put metadata back, or move them: their changes are no client's, and are not judged."""
    restores: int = 0
    """Number of times that the metadata store was restored to an older state."""

    def ledger(self, ledger_id: LedgerId) -> LedgerFacts:
        facts = self.ledgers.get(ledger_id)
        if facts is None:
            facts = self.ledgers[ledger_id] = LedgerFacts(ledger_id)
        return facts

    def bookie(self, name: BookieId) -> BookieFacts:
        facts = self.bookies.get(name)
        if facts is None:
            facts = self.bookies[name] = BookieFacts(name)
        return facts

    @property
    def liars(self) -> bool:
        return any(b.liar for b in self.bookies.values())
