"""What is known of the streams of a life: what was appended, told and read. Nothing is judged here.

A record is known by its identity, text that stands in its value (or its key where it has no value). One incarnation of
a stream name is a `StreamHistory`, by the stream's uid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.core.streams.batch import Record
from buckram.core.streams.head import Head, Segment
from buckram.core.streams.record_format import HeaderList
from buckram.types import LedgerId

REFUSED = "refused"
"""A typed error said that nothing was written."""


class Content(NamedTuple):
    """What a record must look like when it is read. `timestamp` None: its append time."""

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
    """Its next_offset when it was open."""
    history: StreamHistory | None = None
    order: list[SentRecord] = field(default_factory=list)
    lost: bool = False


@dataclass(slots=True, eq=False)
class SentRecord:
    """One record in one call. `at`: the serial number of the event; `result`: pending, ok, refused or unknown."""

    ident: str
    content: Content
    session: WriterSession
    at: int
    result: str = "pending"
    offset: int | None = None


class KnownRecord(NamedTuple):
    """What stands at an offset, by the first evidence. `time` is None while only an acknowledgement is known."""

    ident: str
    time: int | None
    txid: int | None


@dataclass(slots=True)
class AtomicBatch:
    """An atomic batch, in order."""

    idents: list[str]
    history: StreamHistory | None = None


@dataclass(slots=True)
class BulkAttempt:
    """An attempt of a bulk step: idents by ledger in the order of publishing. `told`: the range it was told."""

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
    """One incarnation of a stream name."""

    uid: str
    name: str
    head: Head | None = None
    known_records: dict[int, KnownRecord] = field(default_factory=dict)
    offset_of: dict[str, int] = field(default_factory=dict)
    acked: dict[int, SentRecord] = field(default_factory=dict)
    groups: list[AtomicBatch] = field(default_factory=list)
    steps: list[BulkAttempt] = field(default_factory=list)
    fences: list[tuple[int, int]] = field(default_factory=list)
    """(serial, epoch): from then on writers of lower epochs are out for good."""
    listed: dict[LedgerId, Segment] = field(default_factory=dict)
    """Newest row of every ledger that ever was in the list, but for those below."""
    retired: dict[LedgerId, Segment] = field(default_factory=dict)
    """Rows in whose place a compacted one came."""
    listed_by: dict[LedgerId, int] = field(default_factory=dict)
    """Epoch of the head that listed it."""
    segment_starts: dict[int, bool] = field(default_factory=dict)
    """Where segments begin; True where another epoch wrote the one before."""
    earliest_offsets: dict[int, None] = field(default_factory=lambda: {0: None})
    """Every value that `earliest` ever had."""
    requested_truncations: dict[int, None] = field(default_factory=dict)
    """Offsets that somebody asked to truncate to."""
    truncated_by_size: bool = False
    """Somebody asked to truncate by size, which goes by whole segments."""
    final: dict[int, str] | None = None
    final_earliest: int = 0
    head_removed: bool = False
    """Its head was removed."""
    deleted_at: int | None = None
    """Serial at which a delete() returned."""

    @property
    def top(self) -> int:
        """The offset after the highest that is known to hold a record."""
        return max(self.known_records, default=-1) + 1

    def is_listed(self, offset: int) -> bool:
        """The list has a row for it, or it was truncated."""
        head = self.head
        if head is None or offset < head.earliest or offset < head.end:
            return True
        row = head.open_segment
        return row is not None and row.base <= offset

    def fenced_since(self, epoch: int) -> int | None:
        return next((serial for serial, by in self.fences if by > epoch), None)


@dataclass(slots=True)
class ReaderSession:
    """One reader. `expected`: the offset that must come next; None before the first."""

    host: str
    kind: str
    follow: bool
    skip: bool
    history: StreamHistory | None = None
    began_at: int = 0
    wanted: int | None = None
    """The append time or txid from which on it reads."""
    first: int | None = None
    expected: int | None = None
    last_time: int = 0
    stop: int | None = None
    delivered: int = 0
    done: bool = False


class Facts:
    """All of a life. Serial numbers order events that happen at one virtual time."""

    def __init__(self) -> None:
        self.serial = 0
        self.histories: dict[str, StreamHistory] = {}
        self.current: dict[str, StreamHistory] = {}
        """By full name: the incarnation that has a head now, or had it last."""
        self.sent: dict[str, list[SentRecord]] = {}
        """By identity; a producer's record may have been sent many times."""
        self.bulk: dict[str, Content] = {}
        self.sessions: list[WriterSession] = []
        self.readings: list[ReaderSession] = []
        self.owned: dict[LedgerId, str] = {}
        """Ledgers that exist and name a stream, with its uid."""
        self.fencer: dict[LedgerId, str] = {}
        """Who began the recovery of a ledger that is a stream's."""
        self.sealers: dict[str, None] = {}
        """Hosts that seal live segments in bulk steps: they fence first, the epoch follows with the step."""
        self.intents: dict[tuple[str, LedgerId], str] = {}
        """State of every intent that exists."""
        self.intended: dict[tuple[str, LedgerId], tuple[str, int]] = {}
        """Purpose of every intent there ever was, and when its maker thought to make it (microseconds)."""
        self.cursors: dict[tuple[str, str], int] = {}

    def tick(self) -> int:
        self.serial += 1
        return self.serial

    def history(self, uid: str, name: str) -> StreamHistory:
        history = self.histories.get(uid)
        if history is None:
            history = self.histories[uid] = StreamHistory(uid, name)
        return history

    def submit(self, session: WriterSession, idents: Sequence[str], contents: Sequence[Content]) -> list[SentRecord]:
        """Before the call to append, in the same turn."""
        at = self.tick()
        made = [SentRecord(ident, content, session, at) for ident, content in zip(idents, contents, strict=True)]
        for one in made:
            self.sent.setdefault(one.ident, []).append(one)
        session.order += made
        return made

    def contents(self, ident: str) -> Content | None:
        found = self.bulk.get(ident)
        if found is None and ident in self.sent:
            found = self.sent[ident][-1].content
        return found

    def ident_of(self, record: Record) -> str:
        source = record.value or record.key or b""
        return source.partition(b"|")[0].decode(errors="replace")


__all__ = [
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
