"""Values of a stream's metadata and their JSON: the head (the one cell by which a stream changes), segment rows, pages.

JSON, because people repair it by hand. Not here: how a head may change (`changes.py`), keys and reading
(`streams/shared/metadata`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from buckram.core.streams.records.positions import PositionMark
from buckram.core.streams.records.record_format import NO_TXID
from buckram.errors import MalformedRecord
from buckram.types import EntryId, LedgerId, Offset

FORMAT = 1
PAGE_SEGMENTS = 256
"""Page k holds the segments numbered k * 256 to k * 256 + 255."""
LEDGER, HISTORY = "ledger", "history"
"""The kinds of a segment's place: a ledger on bookies, or files outside the cluster (core/streams/external/history)."""


class Summary(NamedTuple):
    """Summary of a sealed segment. Times in microseconds UTC; `last_entry` of the ledger; `bytes` of entry payloads."""

    records: int
    last_entry: EntryId
    bytes: int
    first_append: int
    last_append: int
    min_timestamp: int
    max_timestamp: int
    last_txid: int
    """Greatest txid of the stream up to the end of this segment: never decreases over rows. NO_TXID: none yet."""
    snapshot: EntryId
    """Newest producers' snapshot in the ledger; -1: none."""


class Offloaded(NamedTuple):
    """Where the files of an offloaded segment are, and what proves them."""

    location: str
    """URL or absolute path of the directory that holds them."""
    digest: str
    """Hexadecimal SHA-256 of the segment's manifest, which has those of the files."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the segment list. Open while `summary` is None."""

    number: int
    ledger: LedgerId
    base: int
    created: int
    """When it was listed, microseconds UTC; for rolling by time."""
    summary: Summary | None = None
    kind: str = LEDGER
    offloaded: Offloaded | None = None
    """Place of the files of a HISTORY segment, None for others. Its `ledger` is an id of no ledger that names the
    files.
    """

    @property
    def sealed(self) -> bool:
        return self.summary is not None

    @property
    def end(self) -> int:
        """Return the offset after its last record; of an open segment its base."""
        return self.base + (self.summary.records if self.summary else 0)


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """Writer that claimed the stream last and has not closed it."""

    name: str
    nonce: str
    since: int


class Transaction(NamedTuple):
    """The newest published version of one application, and which offsets it got."""

    version: int
    first_offset: Offset
    next_offset: Offset
    time: int
    query: str = ""
    """Id of the streaming query; `place` is a mark of where its checkpoint is (core/streams/metadata/transactions).
    Empty: none.
    """
    place: str = ""
    past: tuple[str, ...] = ()
    """Queries that this one replaced; they never publish again."""
    targets: str = ""
    """Marks of the further streams that the query has written to (core/streams/metadata/transactions)."""
    pause: int = 0
    """Longest recent time between two batches of a streaming query, microseconds; 0: not known."""
    planned: int = 0
    """Time at which Spark planned the batch, from its checkpoint, microseconds UTC; 0: not known."""
    history: str = ""
    """Mark of the metadata history in which a streaming query published it (core/streams/metadata/transactions); empty:
    not known.
    """


class SnapshotRow(NamedTuple):
    """A published snapshot of the machine whose log the stream is; `core/streams/metadata/snapshots.py` has the
    rules.
    """

    offset: Offset
    """Offset of the state: it contains the effects of all records below."""
    ledger: LedgerId
    last_entry: EntryId
    bytes: int
    """Bytes of the ledger's payloads."""
    digest: str
    """Hexadecimal SHA-256 of the ledger's payloads before the last one, which holds the digest itself."""
    created: int
    """Microseconds UTC."""


class Fork(NamedTuple):
    """Origin of a stream that began as a copy of another one; `core/streams/forks.py` has the rules."""

    source: str
    """NAMESPACE/STREAM."""
    uid: str
    """Uid of the source stream when the fork was made."""
    at: Offset
    """The records below it are those of the source."""
    done: bool
    """False while the fork is being made: until then it has no record and cannot be used."""
    producers_known: bool = True
    """False if some producers of records below `at` are in no table: they are new to it, and to each fork of it."""


class Mirror(NamedTuple):
    """Part of a stream in a pair with the same records in two clusters; `core/streams/metadata/mirrors.py` has the
    rules.
    """

    state: str
    """MIRROR, PROMOTED or SUPERSEDED of `core/streams/metadata/mirrors.py`."""
    cluster: str
    """The identity of the other cluster."""
    uid: str
    """Uid of the stream in the other cluster."""
    epoch: int = 0
    """The number of promotions of its namespace, over both clusters."""
    end: Offset = 0
    """Offset at which this side ended when it was fenced (SUPERSEDED), or from which on the two differ (PROMOTED)."""


@dataclass(frozen=True, slots=True)
class Head:
    """All of a stream that can change, but for pages, lease, intents and cursors."""

    uid: str
    created: int
    epoch: int = 0
    """Grows with every claim; a change by an older epoch is refused."""
    writer: WriterInfo | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    earliest: int = 0
    first: int = 0
    """Number of the first segment that may still exist; those below are gone."""
    paged: int = 0
    """Segments with smaller numbers are in pages."""
    tail: tuple[Segment, ...] = ()
    end: int = 0
    """The offset after the last sealed record."""
    last_append: int = 0
    last_txid: int = NO_TXID
    next_number: int = 0
    producers: int | None = None
    """Number of the segment whose tail holds the producers' table."""
    table: Segment | None = None
    """Segment with the producers' table, once it was trimmed from the list: its ledger is kept for the table alone."""
    ended: bool = False
    deleting: bool = False
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    garbage: tuple[LedgerId, ...] = ()
    """Ledgers that left the list or never came into it, to be deleted."""
    rewritten: int = 0
    """Number of times that compaction rewrote a page: pages cached before the last one are out of date."""
    snapshots: tuple[SnapshotRow, ...] | None = None
    """Snapshots of the machine whose log this is, the oldest first; None for a stream that is no machine's log."""
    fork: Fork | None = None
    """Origin of a stream that was made as a fork; None for other streams."""
    mirror: Mirror | None = None
    """Relation to the stream in another cluster; None if it was never replicated with a change of sides."""
    mark: PositionMark | None = None
    """Position in a mirror's source up to which the two were found equal; None if they were never compared."""
    deleted_for: str = ""
    """Purpose under which deletion of the stream began (`core/streams/metadata/purposes.py`); empty for one not being
    deleted.
    """

    @property
    def incomplete(self) -> bool:
        """Return whether the stream is a fork that is not complete: it cannot be used."""
        return self.fork is not None and not self.fork.done

    @property
    def came(self) -> Offset:
        """Return the offset below which records came from the fork's source; 0 for other streams."""
        return 0 if self.fork is None else self.fork.at

    @property
    def open_segment(self) -> Segment | None:
        last = self.tail[-1] if self.tail else None
        return last if last is not None and not last.sealed else None


@dataclass(frozen=True, slots=True)
class Page:
    """Sealed segments in order of their numbers. Some may be missing (compacted into the one
    before); those below `Head.first` are gone."""

    number: int
    segments: tuple[Segment, ...]


# -- JSON -------------------------------------------------------------------------------------------------


def encode_head(head: Head) -> bytes:
    return _dump(
        {
            "format": FORMAT,
            "uid": head.uid,
            "created": head.created,
            "epoch": head.epoch,
            "writer": None if head.writer is None else [head.writer.name, head.writer.nonce, head.writer.since],
            "policy": dict(head.policy),
            "properties": dict(head.properties),
            "earliest": head.earliest,
            "first": head.first,
            "paged": head.paged,
            "end": head.end,
            "last_append": head.last_append,
            "last_txid": head.last_txid,
            "next_number": head.next_number,
            "producers": head.producers,
            "ended": head.ended,
            "deleting": head.deleting,
            "garbage": list(head.garbage),
            "rewritten": head.rewritten,
            "table": None if head.table is None else _row(head.table),
            "transactions": {name: _txn(done) for name, done in head.transactions.items()},
            "tail": [_row(segment) for segment in head.tail],
        }
        | _beside(head.transactions)
        | ({} if head.snapshots is None else {"snapshots": [list(row) for row in head.snapshots]})
        | ({} if head.fork is None else {"fork": list(head.fork)[: 4 if head.fork.producers_known else 5]})
        | ({} if head.mirror is None else {"mirror": list(head.mirror)})
        | ({} if head.mark is None else {"mark": list(head.mark)})
        | ({"deleted_for": head.deleted_for} if head.deleted_for else {})
    )


def decode_head(key: str, data: bytes) -> Head:
    """Parse a stream's head. Raises MalformedRecord, which names the key."""
    raw = _load(key, data)
    try:
        writer = raw["writer"]
        return Head(
            uid=_text(raw["uid"]),
            created=_int(raw["created"]),
            epoch=_int(raw["epoch"]),
            writer=None if writer is None else WriterInfo(_text(writer[0]), _text(writer[1]), _int(writer[2])),
            policy=dict(raw["policy"]),
            properties={_text(name): _text(value) for name, value in raw["properties"].items()},
            earliest=_int(raw["earliest"]),
            first=_int(raw["first"]),
            paged=_int(raw["paged"]),
            end=_int(raw["end"]),
            last_append=_int(raw["last_append"]),
            last_txid=_int(raw["last_txid"]),
            next_number=_int(raw["next_number"]),
            producers=None if raw["producers"] is None else _int(raw["producers"]),
            ended=raw["ended"] is True,
            deleting=raw["deleting"] is True,
            garbage=tuple(map(_int, raw["garbage"])),
            transactions=_transactions(raw),
            tail=tuple(map(_segment, raw["tail"])),
            rewritten=_int(raw.get("rewritten", 0)),
            table=None if raw.get("table") is None else _segment(raw["table"]),
            snapshots=None if raw.get("snapshots") is None else tuple(map(_snapshot, raw["snapshots"])),
            fork=None if raw.get("fork") is None else _fork(raw["fork"]),
            mirror=None if raw.get("mirror") is None else _mirror(raw["mirror"]),
            mark=None if raw.get("mark") is None else _mark(raw["mark"]),
            deleted_for=_text(raw.get("deleted_for", "")),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedRecord(f"{key}: not the head of a stream ({error!r}); restore it from a backup") from None


def encode_page(page: Page) -> bytes:
    return _dump({"format": FORMAT, "page": page.number, "segments": [_row(segment) for segment in page.segments]})


def decode_page(key: str, data: bytes) -> Page:
    raw = _load(key, data)
    try:
        return Page(_int(raw["page"]), tuple(map(_segment, raw["segments"])))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MalformedRecord(f"{key}: not a page of segments ({error!r}); restore it from a backup") from None


def _row(segment: Segment) -> list[Any]:
    row: list[Any] = [segment.number, segment.kind, segment.ledger, segment.base, segment.created]
    if segment.summary is None:
        return row
    return [*row, *segment.summary, *(segment.offloaded or ())]


def _segment(row: Sequence[Any]) -> Segment:
    number, kind, ledger, base, created, *rest = row
    known = len(Summary._fields)
    found, place = rest[:known], rest[known:]
    if (rest and len(found) != known) or len(place) != (len(Offloaded._fields) if kind == HISTORY else 0):
        raise ValueError(f"a segment row of {len(row)} fields")
    summary = Summary(*map(_int, found)) if rest else None
    offloaded = Offloaded(*map(_text, place)) if place else None
    return Segment(_int(number), _int(ledger), _int(base), _int(created), summary, _text(kind), offloaded)


def _snapshot(row: Sequence[Any]) -> SnapshotRow:
    offset, ledger, last_entry, size, digest, created = row
    return SnapshotRow(_int(offset), _int(ledger), _int(last_entry), _int(size), _text(digest), _int(created))


def _fork(row: Sequence[Any]) -> Fork:
    source, uid, at, done, *more = row
    return Fork(_text(source), _text(uid), _int(at), done is True, not more or more[0] is True)


def _mirror(row: Sequence[Any]) -> Mirror:
    state, cluster, uid, epoch, end = row
    return Mirror(_text(state), _text(cluster), _text(uid), _int(epoch), _int(end))


def _mark(row: Sequence[Any]) -> PositionMark:
    offset, append_time, digest, epoch, restore = row
    return PositionMark(_int(offset), _int(append_time), _text(digest), _int(epoch), _text(restore))


def _txn(done: Transaction) -> list[Any]:
    plain: list[Any] = list(done[:4])
    return [*plain, done.query, done.place, list(done.past)] if done.query or done.place or done.past else plain


def _beside(transactions: Mapping[str, Transaction]) -> dict[str, Any]:
    """Return the fields of transactions outside their rows, since earlier releases know rows of up to seven fields."""
    values = {
        key: {name: value for name, done in transactions.items() if (value := getattr(done, attribute))}
        for key, attribute, _ in _FIELDS_BESIDE
    }
    return {key: found for key, found in values.items() if found}


def _transactions(raw: Mapping[str, Any]) -> dict[str, Transaction]:
    found = {name: _transaction(done) for name, done in raw["transactions"].items()}
    for key, attribute, checked in _FIELDS_BESIDE:
        for name, value in raw.get(key, {}).items():
            if name in found:
                found[name] = found[name]._replace(**{attribute: checked(value)})
    return found


def _transaction(row: Sequence[Any]) -> Transaction:
    version, first, stop, time, *rest = row
    query, place, past = rest or ("", "", ())
    return Transaction(
        _int(version), _int(first), _int(stop), _int(time), _text(query), _text(place), tuple(map(_text, past))
    )


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _load(key: str, data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        if "\\u" in text:  # one half of a character can be read, and never be written again
            json.dumps(raw, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not JSON of a stream ({error}); restore it from a backup") from None
    if raw.get("format") != FORMAT:
        raise MalformedRecord(f"{key}: format {raw.get('format')!r}, this version of buckram knows {FORMAT}")
    return raw


_INT64 = range(-(2**63), 2**63)


def _int(value: Any) -> int:
    if type(value) is not int or value not in _INT64:  # as is_int64; a head has dozens of them
        raise TypeError(f"{value!r:.60} is no whole number of 64 bits")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


_FIELDS_BESIDE: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("targets", "targets", _text),
    ("pauses", "pause", _int),
    ("planned", "planned", _int),
    ("histories", "history", _text),
)
"""Fields of transactions outside their rows, in the order of writing: key, attribute, and the check of a value."""
