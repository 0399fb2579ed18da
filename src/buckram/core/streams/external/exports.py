"""Exports of a stream, the pure part: what one location has already, which sealed segments it lacks, and from where on.

An export copies sealed segments to a location in the order of offsets, with the files and manifests of offloaded ones,
and the stream keeps its segments. Its record, a metadata key of its own, says how far the location has the stream and
which copies are published there; a compare-and-set of the record publishes a copy. Not here: the files
(`core/streams/external/history.py`), the order of steps (`streams/maintain/history/export.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from buckram.core.streams.json_values import is_int64
from buckram.core.streams.metadata.changes import is_dead
from buckram.core.streams.metadata.head import HISTORY, Head, Segment
from buckram.core.streams.records.record_format import HEADER, HEADER_SIZE, NO_SNAPSHOT, parse_header
from buckram.errors import InvalidArgument, MalformedBatch, MalformedRecord
from buckram.types import Buffer, LedgerId, Offset

FORMAT = 1
MAX_COPIES = 40_000
"""The most copies in one location: their ids must fit into one value of every metadata store."""
_FIRST_AT = 8
"""Index of the field of a header with the number of the segment's records before the entry."""


@dataclass(frozen=True, slots=True)
class Export:
    """Progress of the export of a stream to one location. `version` is that of its key; -1: the key does not exist."""

    location: str
    next: Offset = 0
    """Every record below it is in the location, or was truncated before it could be copied."""
    copies: tuple[LedgerId, ...] = ()
    """The ids of the published copies, in the order of offsets."""
    version: int = -1


class Due(NamedTuple):
    """A segment that a location lacks from offset `first` on. `present`: it is history in that very location."""

    row: Segment
    first: Offset
    present: bool


def export_key(location: str) -> str:
    """Return the name of the key of the export to this directory."""
    return hashlib.sha256(location.encode()).hexdigest()[:32]


def encode_export(export: Export) -> bytes:
    fields = {"format": FORMAT, "location": export.location, "next": export.next, "copies": list(export.copies)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_export(key: str, data: bytes, version: int) -> Export:
    """Return the record of an export. MalformedRecord names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        numbers = [raw["next"], *raw["copies"]]
        if not all(is_int64(number) and number >= 0 for number in numbers):
            raise TypeError("a number is none")
        location = str(raw["location"])
        location.encode()  # one half of a character could be read, and never be written again
        return Export(location, raw["next"], tuple(raw["copies"]), version)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not the record of an export ({error!r}); restore it from a backup") from None


def due_of(head: Head, rows: Iterable[Segment], export: Export) -> list[Due]:
    """Return the sealed segments that the location lacks, wholly or from some offset on, the oldest first.

    A segment can be there in part after compaction, which makes one of several.
    """
    found: list[Due] = []
    for row in rows:
        if row.sealed and row.end > export.next and not is_dead(head, row):
            there = row.kind == HISTORY and row.offloaded is not None and row.offloaded.location == export.location
            found.append(Due(row, max(row.base, export.next), there))
    return found


def advanced(name: str, export: Export, due: Due, copy: LedgerId | None) -> Export | None:
    """Return the record with this segment published; None if another run has published it. InvalidArgument if full."""
    if export.next > due.first:
        return None
    if copy is not None and len(export.copies) >= MAX_COPIES:
        raise InvalidArgument(
            f"stream {name}: its export to {export.location} has {MAX_COPIES} copies, the most that one location "
            "holds; export what follows to another one"
        )
    copies = export.copies if copy is None else (*export.copies, copy)
    return replace(export, next=due.row.end, copies=copies)


def without(export: Export, copies: Iterable[LedgerId]) -> Export:
    """Return the record without these copies; it goes on where it was."""
    gone = set(copies)
    return replace(export, copies=tuple(copy for copy in export.copies if copy not in gone))


def cut_row(row: Segment, first: Offset, first_entry: int) -> Segment:
    """Return the row of what a segment holds from offset `first` on, which entry `first_entry` begins with."""
    summary = row.summary
    if summary is None or first == row.base:
        return row
    summary = summary._replace(
        records=row.end - first, last_entry=summary.last_entry - first_entry, snapshot=NO_SNAPSHOT
    )
    return replace(row, base=first, summary=summary)


def rebased(payload: Buffer, records: int) -> bytes:
    """Return an entry as one of a segment that begins `records` records later. MalformedBatch."""
    header = parse_header(payload)
    if header.first < records:
        raise MalformedBatch(f"begins at record {header.first} of its segment, the copy begins at {records}")
    fields = list(HEADER.unpack_from(payload))
    fields[_FIRST_AT] = header.first - records
    return HEADER.pack(*fields) + bytes(memoryview(payload)[HEADER_SIZE:])
