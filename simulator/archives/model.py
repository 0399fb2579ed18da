"""The model of a life of archives: what was appended, acknowledged and read of each stream, by its uid. Nothing is
checked here.

The label of a record is what its value begins with. A fork's records below its offset are those of its source, and are
looked up there: so what one reader finds in a fork is compared with what another one found in the source, or in another
fork of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from buckram.core.streams.metadata.head import HISTORY, Head, Segment
from buckram.types import LedgerId


def labelled(label: str, size: int) -> bytes:
    """Return a value with this label."""
    return f"{label}|".encode() + bytes(size)


def label_of(value: bytes | None) -> str:
    return (value or b"").partition(b"|")[0].decode(errors="replace")


@dataclass(slots=True, eq=False)
class Stream:
    """One stream from its creation to its deletion; another one of the same name is another object."""

    uid: str
    name: str
    head: Head | None = None
    source: Stream | None = None
    at: int = 0
    pages: dict[int, tuple[Segment, ...]] = field(default_factory=dict)
    acked: dict[int, str] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)
    """The record at each offset, as far as anybody was told; for a fork only from its own offset on."""
    offset_of: dict[str, int] = field(default_factory=dict)
    requested: dict[int, None] = field(default_factory=dict)
    """Offsets to which an actor wants it truncated."""
    earliest_offsets: dict[int, None] = field(default_factory=lambda: {0: None})
    cursors: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Offset of each cursor, and when it was created."""
    listed_ever: dict[LedgerId, Segment] = field(default_factory=dict)
    """Every segment that was ever listed, as it was last."""
    moved: dict[str, int] = field(default_factory=dict)
    """Number of segments that each host has put into history."""
    steps: dict[str, list[str]] = field(default_factory=dict)
    """The labels of each version of a bulk step, and of each import, in order."""
    published: dict[str, int] = field(default_factory=dict)
    """The offset that a publisher was told for a step."""
    removed: bool = False
    deleted_at: float | None = None
    """When a deletion returned."""

    @property
    def alive(self) -> bool:
        return not self.removed and self.head is not None and not self.head.deleting

    @property
    def usable(self) -> bool:
        return self.alive and self.head is not None and not self.head.incomplete

    @property
    def earliest(self) -> int:
        return self.head.earliest if self.head is not None else 0

    @property
    def top(self) -> int:
        """Return the offset after the last one that anybody knows of."""
        return max(max(self.known, default=-1) + 1, self.at, self.head.end if self.head is not None else 0)

    def owner(self, offset: int) -> Stream:
        """Return the stream to which the record at this offset was appended."""
        stream = self
        while stream.source is not None and offset < stream.at:
            stream = stream.source
        return stream

    def record(self, offset: int) -> str | None:
        return self.owner(offset).known.get(offset)

    def rows(self) -> Iterator[Segment]:
        """Yield the segments that it lists."""
        head = self.head
        if head is None:
            return
        for number in sorted(self.pages):
            yield from (row for row in self.pages[number] if head.first <= row.number < head.paged)
        yield from head.tail

    def needed(self) -> Iterator[Segment]:
        """Yield the segments that it needs: those with records that are not truncated, and the producers' table."""
        head = self.head
        if head is None or not self.alive:
            return
        for row in self.rows():
            if not row.sealed or row.end > head.earliest or row.number == head.producers:
                yield row
        if head.table is not None:
            yield head.table

    def lineage(self) -> Iterator[Stream]:
        stream: Stream | None = self
        while stream is not None:
            yield stream
            stream = stream.source


@dataclass(slots=True)
class Exported:
    """What is published of an export to one directory. It outlives its stream."""

    stream: Stream
    directory: str
    next: int = 0
    first: int = 0
    """The earliest offset when its first copy was published."""
    copies: dict[LedgerId, None] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """All streams of a life."""

    streams: dict[str, Stream] = field(default_factory=dict)
    current: dict[str, Stream] = field(default_factory=dict)
    """The stream that has the name now, or had it last."""
    sent: dict[str, str] = field(default_factory=dict)
    """The uid of the stream to which each label was sent."""
    owned: dict[LedgerId, str] = field(default_factory=dict)
    shared: dict[LedgerId, dict[str, None]] = field(default_factory=dict)
    intents: dict[tuple[str, LedgerId], str] = field(default_factory=dict)
    """The purpose of each intent."""
    exports: dict[str, Exported] = field(default_factory=dict)
    """By directory."""
    acked: int = 0

    def living(self) -> list[Stream]:
        return [stream for stream in self.current.values() if stream.usable]

    def forks_of(self, source: Stream) -> list[Stream]:
        return [one for one in self.streams.values() if one.alive and one is not source and source in one.lineage()]

    def lists_files(self, directory: str, copy: LedgerId) -> Stream | None:
        """Return a living stream that needs the files of this copy."""
        for stream in self.streams.values():
            for row in stream.needed():
                place = row.offloaded.location if row.offloaded is not None else ""
                if row.kind == HISTORY and (row.ledger, place) == (copy, directory):
                    return stream
        return None


__all__ = ["Exported", "Model", "Stream", "label_of", "labelled"]
