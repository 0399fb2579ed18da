"""What was attempted and acknowledged in a life, in which stream of which cluster: the model that rules compare with.

It knows what applications did and what the two metadata stores hold (`heads.py` tells it). It knows nothing of how
streams are copied: a record belongs to the stream with a uid in which it was appended, and to all streams that the
stores call mirrors of that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from buckram.core.streams.metadata.head import Head, Mirror

HeaderPairs = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Attempt:
    """One record that a writer appends, maybe several times: the first time, and as a repetition."""

    ident: str
    value: bytes
    key: bytes | None
    headers: HeaderPairs
    producer: str | None = None
    sequence: int | None = None
    tried: list[str] = field(default_factory=list)
    """Uids of the streams in which it was tried, one for each try."""
    acks: list[Ack] = field(default_factory=list)


@dataclass(slots=True)
class Ack:
    """An acknowledgement of a record in the stream with this uid."""

    ident: str
    uid: str
    offset: int
    at_s: float
    forgettable: bool = False
    """True if the metadata of the cluster were restored to a state from before: it may be gone there."""
    again: bool = False
    """True if it was a repetition that was recognised, and nothing was appended."""


@dataclass(slots=True)
class StreamFacts:
    """One stream of one cluster, from its creation to its deletion."""

    place: str
    name: str
    uid: str
    parent: str = ""
    """Uid of the stream whose records it has: of its source, or of the one that it keeps aside; empty if none."""
    kept: bool = False
    """True if it keeps records of a stream of its own cluster aside."""
    marks: list[Mirror] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    begun: int = 0
    """Its earliest offset when it was created."""
    truncated: int = 0
    """The highest offset to which somebody wanted to truncate it."""
    deleted: bool = False
    """True if an operator deleted it for good: its records are of no use any more."""
    went_back: bool = False
    """True if the metadata of its cluster were restored since it was made."""

    @property
    def fenced_at(self) -> int | None:
        """Return the offset at which it was superseded; None if it was not."""
        return next((mark.end for mark in reversed(self.marks) if mark.state == "superseded"), None)

    @property
    def promoted_at(self) -> int | None:
        """Return the offset from which on it has records of its own; None if it is a mirror."""
        return next((mark.end for mark in self.marks if mark.state == "promoted"), None)


class Truth:
    """All streams and all attempts of a life."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamFacts] = {}
        self.attempts: dict[str, Attempt] = {}
        self.present: dict[tuple[str, str], Head] = {}
        """Heads as they are in the stores now, by place and name."""

    # -- what happens ---------------------------------------------------------------------------------------

    def head_is(self, place: str, name: str, head: Head | None) -> StreamFacts | None:
        """Note what a store has under a name now; returns the facts of that stream."""
        if head is None:
            self.present.pop((place, name), None)
            return None
        self.present[place, name] = head
        facts = self.streams.get(head.uid)
        if facts is None:
            facts = self.streams[head.uid] = StreamFacts(place, name, head.uid, begun=head.earliest)
        mark = head.mirror
        if mark is not None:
            if mark.uid and not facts.parent:
                facts.parent = mark.uid
                source = self.streams.get(mark.uid)
                facts.kept = source is not None and source.place == place
            if not facts.marks or facts.marks[-1] != mark:
                facts.marks.append(mark)
        return facts

    def acknowledged(self, attempt: Attempt, ack: Ack) -> None:
        attempt.acks.append(ack)
        self.streams[ack.uid].acks.append(ack)

    def went_back(self, place: str, to_s: float) -> None:
        """Note that the metadata of a cluster are those of an earlier time."""
        for facts in self.streams.values():
            if facts.place == place:
                facts.went_back = True
                for ack in facts.acks:
                    ack.forgettable = ack.forgettable or ack.at_s > to_s

    def lost(self, place: str, name: str, first: int, end: int | None) -> None:
        """Note that a stream has lost these records: they were deleted, and a restore brought only the list back."""
        head = self.present[place, name]
        facts = self.streams[head.uid]
        facts.truncated = max(facts.truncated, head.earliest)
        for ack in facts.acks:
            ack.forgettable = ack.forgettable or (first <= ack.offset and (end is None or ack.offset < end))

    # -- what is known --------------------------------------------------------------------------------------

    def line(self, uid: str) -> Iterator[StreamFacts]:
        """Iterate over a stream and those whose records it has: its source, the source of that one, ..."""
        seen: list[str] = []
        while uid and uid in self.streams and uid not in seen:
            seen.append(uid)
            yield self.streams[uid]
            uid = self.streams[uid].parent

    def reaches(self, ack: Ack, uid: str) -> bool:
        """Return whether a record that was acknowledged is below the offset from which on the stream has its own."""
        for facts in self.line(uid):
            if facts.uid == ack.uid:
                return True
            if facts.promoted_at is None or ack.offset >= facts.promoted_at:
                return False
        return False

    def uids(self, uid: str) -> list[str]:
        return [facts.uid for facts in self.line(uid)]


__all__ = ["Ack", "Attempt", "StreamFacts", "Truth"]
