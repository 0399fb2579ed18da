"""What must be true when all is copied: both sides are equal, and each acknowledged record is in one place."""

from __future__ import annotations

from buckram.core.streams.records.batch import Record
from simulator.replication.rules import ident_of
from simulator.replication.stage import Stage
from simulator.replication.truth import Ack, StreamFacts

KEPT = ".kept-"
Found = dict[tuple[str, str], tuple[str, list[Record]]]
Where = dict[str, dict[tuple[str, int], list[str]]]
"""For each record the names and offsets at which it was found in the end, with the uids of the streams."""


class FinalChecks:
    """The checks of one life. `found` has the uid and the records of each stream, by place and name."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.report, self.truth = stage, stage.world.report, stage.truth
        self.beside: dict[tuple[str, str], tuple[int, dict[str, int]]] = {}
        """The earliest offset and the cursors of each stream, by place and name."""
        self.grants: dict[str, str] = {}

    def run(self, found: Found) -> None:
        for uid, records in found.values():
            self.stage.rules.read(uid, records)
        self._equal(found)
        self._all_kept(found)

    def _equal(self, found: Found) -> None:
        source, mirror = self.stage.primary.name, self.stage.primary.other.name
        for place, name in found:
            if place != source:
                continue
            ours, theirs = found[place, name][1], found.get((mirror, name), ("", []))[1]
            one, two = self.beside[place, name], self.beside.get((mirror, name))
            facts = self.truth.streams[found[place, name][0]]
            if facts.went_back and two is not None:
                # A restore may have undone truncations and moves of cursors that the mirror had followed.
                begin = two[0] if one[0] < two[0] <= facts.truncated else one[0]
                ours = [record for record in ours if record.offset >= begin]
                moved = {cursor: max(at, begin, two[1].get(cursor, 0)) for cursor, at in one[1].items()}
                one = begin, {**two[1], **moved}
            differing = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), None)
            self.report.check("equal", differing is None, "{} differs: {}", name, differing)
            self.report.check(
                "equal", len(ours) == len(theirs), "{} has {}, its mirror {}", name, len(ours), len(theirs)
            )
            self.report.check("equal", one == two, "beside the records of {} are {}, in the mirror {}", name, one, two)
        self.report.check("equal", self.grants[source] == self.grants[mirror], "grants {}", self.grants)

    def _all_kept(self, found: Found) -> None:
        where: Where = {}
        for (_, name), (uid, records) in found.items():
            for record in records:
                places = where.setdefault(ident_of(record), {}).setdefault((name, record.offset), [])
                places.append(uid)
        for facts in self.truth.streams.values():
            for ack in facts.acks:
                self._kept(facts, ack, where.get(ack.ident, {}))
            self._seen_is_kept(facts, where)

    def _seen_is_kept(self, facts: StreamFacts, where: Where) -> None:
        """Check that what was once read in a mirror is somewhere, also if its source has forgotten it in a restore."""
        line, above = list(self.truth.line(facts.uid)), self._above(facts.uid)
        if facts.went_back or any(one.deleted for one in line):
            return
        for offset, ident in self.stage.rules.seen.get(facts.uid, {}).items():
            found = any(place[1] == offset for place in where.get(ident, {}))
            given_up = any(offset < one.truncated for one in (*line, *above))
            self.report.check(
                "kept", found or given_up, "{} was read at {} of {}, and is gone", ident, offset, facts.uid
            )

    def _kept(self, facts: StreamFacts, ack: Ack, places: dict[tuple[str, int], list[str]]) -> None:
        """Check that an acknowledged record is in one place; it may have been given up by whoever could do so."""
        here = [
            name
            for (name, offset), uids in places.items()
            if offset == ack.offset and any(facts.uid in self.truth.uids(uid) for uid in uids)
        ]
        if len(self.truth.attempts[ack.ident].tried) == 1:
            names = sorted({name for name, _ in places})
            self.report.check("kept", len(names) <= 1, "{} of {} is in {}", ack.ident, facts.uid, names)
        if here or ack.forgettable or facts.deleted or self._given_up(facts, ack):
            return
        self.report.check(
            "kept", False, "{} at {} of {} ({}) is nowhere but {}", ack.ident, ack.offset, facts.name, facts.uid, places
        )

    def _given_up(self, facts: StreamFacts, ack: Ack) -> bool:
        """Return whether somebody truncated the record, in this stream or in one that has its records.

        A record below the offset from which on a stream has its own was truncated in those whose records it has, too: a
        repetition of it is recognised all the same.
        """
        below = list(self.truth.line(facts.uid)) if ack.offset < (facts.promoted_at or 0) else []
        return any(ack.offset < one.truncated for one in (*self._above(facts.uid), *below))

    def _above(self, uid: str) -> list[StreamFacts]:
        """Return the stream and all that have its records."""
        return [one for one in self.truth.streams.values() if uid in self.truth.uids(one.uid)]


__all__ = ["FinalChecks", "Found"]
