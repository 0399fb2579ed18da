"""The facts of the streams of a life: what was appended, acknowledged and read. Nothing is checked here.

Each record has an identity, which its value begins with (or its key if it has no value). Each stream that was created
has a `StreamHistory`, by its uid; a name may have several one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.records.batch import Record
from buckram.core.streams.records.record_format import HeaderList
from buckram.types import LedgerId

HOSTILE = "hostile"
"""The namespace of a tenant whose client is not honest."""
REFUSED = "refused"
"""The result of an append that failed with an error which means that nothing was written."""


class Content(NamedTuple):
    """The expected content of a record. `timestamp` None stands for its append time."""

    value: bytes | None
    key: bytes | None = None
    headers: HeaderList = ()
    timestamp: int | None = None
    txid: int | None = None
    producer: str | None = None
    sequence: int | None = None


@dataclass(slots=True)
class WriterSession:
    """One open writer. `epoch` and `history` are known once it is open."""

    host: str
    number: int
    epoch: int = -1
    first: int = 0
    """The writer's next_offset right after it was opened."""
    history: StreamHistory | None = None
    order: list[SentRecord] = field(default_factory=list)
    lost: bool = False


@dataclass(slots=True, eq=False)
class SentRecord:
    """One record in one call. `at` is the serial number of the call; `result` is pending, ok, refused or unknown."""

    ident: str
    content: Content
    session: WriterSession
    at: int
    result: str = "pending"
    offset: int | None = None


class KnownRecord(NamedTuple):
    """The record at an offset. `time`, its append time, is None until the record was read."""

    ident: str
    time: int | None
    txid: int | None


@dataclass(slots=True)
class AtomicBatch:
    """The records of one atomic append, in their order."""

    idents: list[str]
    history: StreamHistory | None = None


@dataclass(slots=True)
class BulkAttempt:
    """One attempt of a bulk step: records by ledger, in the order of publishing. `published` are the offsets that the
    publisher got."""

    application: str
    version: int
    attempt: int
    ledgers: list[tuple[LedgerId, list[str]]] = field(default_factory=list)
    published: range | None = None

    @property
    def idents(self) -> list[str]:
        return [ident for _, part in self.ledgers for ident in part]


@dataclass(slots=True, eq=False)
class StreamHistory:
    """The facts of one stream from its creation to its deletion.

    `known_records` and `acked` (acknowledged records) are by offset, `offset_of` is by identity. `final` is what a
    reader found at the end of the life, identities by offset.
    """

    uid: str
    name: str
    head: Head | None = None
    known_records: dict[int, KnownRecord] = field(default_factory=dict)
    offset_of: dict[str, int] = field(default_factory=dict)
    acked: dict[int, SentRecord] = field(default_factory=dict)
    groups: list[AtomicBatch] = field(default_factory=list)
    steps: list[BulkAttempt] = field(default_factory=list)
    fences: list[tuple[int, int]] = field(default_factory=list)
    """(serial, epoch): since this event no append of a writer with a lower epoch can be acknowledged."""
    listed: dict[LedgerId, Segment] = field(default_factory=dict)
    """The newest segment entry of every ledger that ever was listed, except for those in `retired`."""
    retired: dict[LedgerId, Segment] = field(default_factory=dict)
    """Segments that a compacted one has replaced."""
    listed_by: dict[LedgerId, int] = field(default_factory=dict)
    """The epoch of the head that listed the ledger."""
    segment_starts: dict[int, bool] = field(default_factory=dict)
    """First offsets of segments; True if the segment before was written in another epoch."""
    earliest_offsets: dict[int, None] = field(default_factory=lambda: {0: None})
    """All values that `earliest` ever had."""
    requested_truncations: dict[int, None] = field(default_factory=dict)
    """Offsets that an actor has requested to truncate to."""
    truncated_by_size: bool = False
    """Set if an actor requested to truncate by size, which removes whole segments."""
    final: dict[int, str] | None = None
    final_earliest: int = 0
    head_removed: bool = False
    """Set when its head was removed."""
    deleted_at: int | None = None
    """Serial number of the return of a delete()."""
    source: StreamHistory | None = None
    """Source of a completed fork, which has the same records below the offset `at`; None for other streams."""
    at: int = 0

    @property
    def top(self) -> int:
        """Return the offset after the highest one with a known record."""
        return max(self.known_records, default=-1) + 1

    def is_listed(self, offset: int) -> bool:
        """Return whether a listed segment has the offset, or the offset was truncated."""
        head = self.head
        if head is None or offset < head.earliest or offset < head.end:
            return True
        row = head.open_segment
        return row is not None and row.base <= offset

    def fenced_since(self, epoch: int) -> int | None:
        """Return the serial number since which writers of this epoch are fenced, or None."""
        return next((serial for serial, by in self.fences if by > epoch), None)


@dataclass(slots=True)
class ReaderSession:
    """One open reader. `expected` is the offset that must come next, None before the first record."""

    host: str
    kind: str
    follow: bool
    skip: bool
    history: StreamHistory | None = None
    began_at: int = 0
    wanted: int | None = None
    """The append time or txid that it starts at."""
    first: int | None = None
    expected: int | None = None
    last_time: int = 0
    stop: int | None = None
    delivered: int = 0
    done: bool = False


class Facts:
    """The facts of a life of streams. Serial numbers order events at the same virtual time."""

    def __init__(self) -> None:
        self.serial = 0
        self.histories: dict[str, StreamHistory] = {}
        self.current: dict[str, StreamHistory] = {}
        """The stream that has the name now, or had it last, by full name."""
        self.sent: dict[str, list[SentRecord]] = {}
        """The sent records by identity; a record of a producer may have been sent several times."""
        self.bulk: dict[str, Content] = {}
        self.sessions: list[WriterSession] = []
        self.readings: list[ReaderSession] = []
        self.owned: dict[LedgerId, str] = {}
        """The uid of the stream that each existing ledger names as its owner."""
        self.hostile: dict[str, None] = {}
        """The uids of the streams of a hostile tenant, to which no rule applies."""
        self.shared: dict[LedgerId, dict[str, None]] = {}
        """The uids of the streams that hold each ledger that was ever shared."""
        self.left_to_others: dict[tuple[str, LedgerId], bool] = {}
        """True if other streams still held a shared ledger when a stream let it go, by uid and ledger."""
        self.fencer: dict[LedgerId, str] = {}
        """The host that started the recovery of a stream's ledger."""
        self.sealers: dict[str, None] = {}
        """Hosts that seal open segments in bulk steps: they fence first, and the epoch changes with the step."""
        self.intents: dict[tuple[str, LedgerId], str] = {}
        """The state of every intent that exists."""
        self.intended: dict[tuple[str, LedgerId], tuple[str, int]] = {}
        """The purpose of every intent that ever existed, and its creation time by its creator's clock, in us."""
        self.cursors: dict[tuple[str, str], int] = {}

    def tick(self) -> int:
        """Return the next serial number."""
        self.serial += 1
        return self.serial

    def history(self, uid: str, name: str) -> StreamHistory:
        """Return the history of the stream, a new one if the uid is new."""
        history = self.histories.get(uid)
        if history is None:
            history = self.histories[uid] = StreamHistory(uid, name)
        return history

    def submit(self, session: WriterSession, idents: Sequence[str], contents: Sequence[Content]) -> list[SentRecord]:
        """Record an append. Call it before the append, in the same turn of the event loop."""
        at = self.tick()
        sent = [SentRecord(ident, content, session, at) for ident, content in zip(idents, contents, strict=True)]
        for one in sent:
            self.sent.setdefault(one.ident, []).append(one)
        session.order += sent
        return sent

    def contents(self, ident: str) -> Content | None:
        """Return the content that was appended under this identity, or None."""
        found = self.bulk.get(ident)
        if found is None and ident in self.sent:
            found = self.sent[ident][-1].content
        return found

    def ident_of(self, record: Record) -> str:
        """Return the identity that a record's value or key begins with."""
        source = record.value or record.key or b""
        return source.partition(b"|")[0].decode(errors="replace")


__all__ = [
    "HOSTILE",
    "REFUSED",
    "Content",
    "Facts",
    "AtomicBatch",
    "StreamHistory",
    "ReaderSession",
    "KnownRecord",
    "SentRecord",
    "WriterSession",
    "BulkAttempt",
]
