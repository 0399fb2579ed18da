"""The rules of replication: what is acknowledged, what the tool says and what the stores hold, against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buckram.core.streams.metadata.head import Head, Mirror
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.core.streams.records.batch import Record
from buckram.core.streams.replication_links import SOURCE, Link
from buckram.replication.promotion import Promotion
from simulator.engine.world import World
from simulator.replication.truth import Ack, Attempt, StreamFacts, Truth

_AFTER: dict[str, tuple[str, ...]] = {
    "": (MIRROR, SUPERSEDED, PROMOTED),
    MIRROR: (PROMOTED, SUPERSEDED),
    PROMOTED: (SUPERSEDED, PROMOTED),
    SUPERSEDED: (SUPERSEDED,),
}
"""The marks that may come after one another on one stream."""
_LINKS: dict[str, tuple[str, ...]] = {
    "": (SOURCE, MIRROR, SUPERSEDED),
    SOURCE: (SOURCE, SUPERSEDED),
    MIRROR: (MIRROR, PROMOTED, SUPERSEDED),
    PROMOTED: (PROMOTED, SUPERSEDED),
    SUPERSEDED: (SUPERSEDED, MIRROR),
}
"""The states of a side that may come after one another."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a promotion said of one stream: of the mirror with the uid `mirror`, about the source `source`."""

    mirror: str
    source: str
    end: int
    source_end: int | None
    exact: bool
    differs: int | None
    compared: bool


class Rules:
    """The rules of one life. `told` is what promotions said, in order."""

    def __init__(self, world: World, truth: Truth) -> None:
        self.report, self.truth, self._world = world.report, truth, world
        self.told: list[Told] = []
        self.acked = 0
        self._links: dict[str, Link] = {}
        self._beside: dict[str, dict[str, int]] = {}
        """For each stream: the greatest offset of each kind of position that was written down beside its records."""
        self.seen: dict[str, dict[int, str]] = {}
        """Records that were read, by the uid of the stream and offset."""

    # -- writers --------------------------------------------------------------------------------------------

    def acknowledged(self, attempt: Attempt, uid: str, offset: int, *, forgettable: bool) -> None:
        """A writer was told that its record is stored in the stream with this uid at this offset."""
        self.acked += 1
        report, facts = self.report, self.truth.streams[uid]
        earlier = [ack for ack in attempt.acks if not ack.forgettable and self.truth.reaches(ack, uid)]
        if not any(one.went_back for one in self.truth.line(uid)):
            for ack in earlier:
                report.check("once", ack.offset == offset, "{} is at {} and at {}", attempt.ident, ack.offset, offset)
                if ack.uid != uid:
                    report.situation("a repetition was recognised after a promotion")
        # While a promotion is under way, some streams are written already, and the link is that of a mirror.
        mirror = (facts.marks[-1].state if facts.marks else self.state_of(facts.place)) == MIRROR
        report.check("fence", not mirror, "{} at {} of {} is acknowledged by a mirror", attempt.ident, offset, uid)
        fenced = facts.fenced_at
        if fenced is not None and not forgettable:
            report.check("fence", offset < fenced, "{} of {} is acknowledged, fenced at {}", offset, uid, fenced)
        now = self._world.loop.time()
        self.truth.acknowledged(attempt, Ack(attempt.ident, uid, offset, now, forgettable, bool(earlier)))

    def refused_sequence(self, earlier: Sequence[Attempt], uid: str, told: str) -> None:
        """A producer was told that the stream with this uid does not have all that it appended before."""
        if not earlier or any(one.went_back for one in self.truth.line(uid)):
            return
        lacking = [
            one.ident
            for one in earlier
            if not any(self.truth.reaches(ack, uid) for ack in one.acks if not ack.forgettable)
        ]
        self.report.check("once", bool(lacking), "{} has all that a producer appended: {}", uid, told)

    # -- heads ----------------------------------------------------------------------------------------------

    def marked(self, facts: StreamFacts, before: Mirror | None, head: Head) -> None:
        """The mark of a stream has changed."""
        mark, report = head.mirror, self.report
        if mark is None:
            report.check("marks", before is None, "{} has lost the mark {}", facts.uid, before)
            return
        state = "" if before is None else before.state
        report.check("marks", mark.state in _AFTER[state], "{} was {!r}, now {}", facts.uid, state, mark.state)
        if mark.state == SUPERSEDED:
            late = [ack.offset for ack in facts.acks if ack.offset >= mark.end and not ack.forgettable]
            report.check("fence", not late, "{} is fenced at {}, {} were acknowledged", facts.uid, mark.end, late)
        if mark.state == PROMOTED and state == MIRROR:
            for kind, offset in self._beside.get(facts.uid, {}).items():
                report.check(
                    "ahead", offset <= mark.end, "the {} of {} is {}, it ends at {}", kind, facts.uid, offset, mark.end
                )

    def head_changed(self, facts: StreamFacts, before: Head | None, head: Head) -> None:
        """Anything of a head has changed."""
        last = None if before is None else before.mirror
        if last != head.mirror:
            self.marked(facts, last, head)
        if head.mirror is None or head.mirror.state != MIRROR:
            return
        line = list(self.truth.line(facts.uid))
        wanted = max([one.truncated for one in line] + [one.begun for one in line[1:]])
        first = 0 if before is None else before.earliest
        self.report.check(
            "ahead",
            head.earliest <= wanted or facts.kept or head.earliest == first,
            "{} is truncated to {}, nobody wanted more than {}",
            facts.uid,
            head.earliest,
            wanted,
        )
        if head.open_segment is None:
            self.report.check(
                "ahead", head.earliest <= head.end, "{} begins behind its end: {}", facts.uid, head.earliest
            )
        if head.mark is not None:
            self.beside(facts.uid, "position", head.mark.offset)

    def beside(self, uid: str, kind: str, offset: int) -> None:
        """A position was written down beside the records of a stream."""
        known = self._beside.setdefault(uid, {})
        known[kind] = max(offset, known.get(kind, 0))

    def link_changed(self, place: str, link: Link | None) -> None:
        known = self._links.get(place)
        if link is None:
            self.report.check("links", known is None, "the link of {} is gone, it was {}", place, known)
            return
        if link.tentative:
            self.report.check("links", known is None, "the link of {} was {}, now tentative", place, known)
            return
        if link.state == MIRROR:
            own = [
                head.uid for (where, _), head in self.truth.present.items() if where == place and head.mirror is None
            ]
            self.report.check("refused", not own, "{} is a mirror, and has streams of its own: {}", place, own)
        self._links[place] = link
        state, epoch = ("", -1) if known is None else (known.state, known.epoch)
        changed = link.state != state and (state, link.state) != (SUPERSEDED, MIRROR)
        self.report.check(
            "links",
            link.epoch >= epoch + changed and link.state in _LINKS[state],
            "the link of {} was {} with epoch {}, now {} with epoch {}",
            place,
            state or "not there",
            epoch,
            link.state,
            link.epoch,
        )

    def link_restored(self, place: str, link: Link | None) -> None:
        if link is None:
            self._links.pop(place, None)
        else:
            self._links[place] = link

    def state_of(self, place: str) -> str:
        """Return the state of a side by the ground truth; empty if it has none."""
        link = self._links.get(place)
        return "" if link is None else link.state

    # -- promotions -----------------------------------------------------------------------------------------

    def promoted(self, place: str, found: Promotion) -> None:
        """A promotion has returned."""
        for one in found.streams:
            name = one.stream.partition("/")[2]
            head = self.truth.present.get((place, name))
            if head is None or head.mirror is None:
                continue
            source = self.truth.streams.get(head.mirror.uid)
            told = Told(head.uid, head.mirror.uid, one.end, one.source_end, one.exact, one.differs, one.compared)
            self.told.append(told)
            self.report.check(
                "told", one.end == head.mirror.end, "{} goes on at {}, told {}", name, head.mirror.end, one.end
            )
            if one.missing:
                self.report.situation("a promotion lacked records")
            if one.differs is not None:
                self.report.situation("a promotion told where the source differs")
            present = self.truth.present.get((source.place, name)) if source is not None else None
            if source is None or not one.exact or present is None or present.uid != source.uid:
                continue
            self._told_of_fenced(source, one.end, one.source_end or 0, one.missing or 0, one.differs)

    def _told_of_fenced(
        self, source: StreamFacts, end: int, source_end: int, missing: int, differs: int | None
    ) -> None:
        """Compare what was said of a source that is fenced with what it has acknowledged."""
        offsets = sorted({ack.offset for ack in source.acks if not ack.forgettable})
        report = self.report
        beyond = [offset for offset in offsets if offset >= source_end]
        report.check("told", not beyond, "{} was fenced at {}, it acknowledged {}", source.uid, source_end, beyond)
        lacking = [offset for offset in offsets if offset >= (end if differs is None else differs)]
        report.check("told", len(lacking) <= missing, "{} of {} are missing, told {}", lacking, source.uid, missing)
        if differs is None and not source.went_back:
            report.check("source", end <= source_end, "{} ends at {}, its mirror at {}", source.uid, source_end, end)

    def judge_acks(self) -> None:
        """Check that where both sides acknowledged at one offset, a promotion has said so."""
        for facts in self.truth.streams.values():
            source = self.truth.streams.get(facts.parent)
            if source is None or facts.kept:
                continue
            own = {ack.offset for ack in facts.acks if not ack.again and not ack.forgettable}
            both = [ack.offset for ack in source.acks if not ack.again and not ack.forgettable and ack.offset in own]
            if not both:
                continue
            self.report.situation("both sides acknowledged")
            said = [told for told in self.told if (told.mirror, told.source) == (facts.uid, source.uid)]
            for offset in both:
                known = any(
                    not told.exact or offset < (told.source_end or 0) or (told.differs or offset + 1) <= offset
                    for told in said
                )
                self.report.check(
                    "told", known, "{} at {} of {} and its mirror, told {}", source.name, offset, source.uid, said
                )

    def judge_comparisons(self) -> None:
        """Check that where a promotion has compared both sides, a record that differs is one that it told of."""
        for told in self.told:
            source = self.truth.streams.get(told.source)
            if source is None or not told.compared:
                continue
            seen, stop = self.seen.get(told.mirror, {}), told.end if told.differs is None else told.differs
            for ack in source.acks:
                ident = seen.get(ack.offset, ack.ident)
                same = ack.forgettable or ack.offset >= stop or ident == ack.ident
                self.report.check(
                    "told", same, "{} of {} is {} in its mirror, told {}", ack.offset, source.uid, ident, told
                )

    # -- records that are read ------------------------------------------------------------------------------

    def read(self, uid: str, records: Sequence[Record]) -> None:
        """Check records that were read in a stream: each was appended to it or its source, and has its place."""
        line = self.truth.uids(uid)
        known = self.seen.setdefault(uid, {})
        idents: dict[str, int] = {}
        for record in records:
            ident = ident_of(record)
            attempt = self.truth.attempts.get(ident)
            ours = attempt is not None and any(tried in line for tried in attempt.tried)
            self.report.check("source", ours, "{} has {} at {}, nobody appended it there", uid, ident, record.offset)
            if attempt is None:
                continue
            self._compare(uid, line, attempt, record)
            if record.producer is not None:
                self.report.check(
                    "once", ident not in idents, "{} is at {} and {}", ident, idents.get(ident), record.offset
                )
            idents[ident] = record.offset
            known[record.offset] = ident

    def _compare(self, uid: str, line: list[str], attempt: Attempt, record: Record) -> None:
        places = [ack.offset for ack in attempt.acks if ack.uid in line]
        unknown = sum(tried in line for tried in attempt.tried) > len(places)
        what = (record.value, record.key, tuple(record.headers), record.producer, record.sequence)
        wanted = (attempt.value, attempt.key, attempt.headers, attempt.producer, attempt.sequence)
        self.report.check("same", what == wanted, "{} at {} of {} is {}", attempt.ident, record.offset, uid, what)
        at = record.offset in places or unknown or not places
        self.report.check(
            "same", at, "{} is at {} of {}, acknowledged at {}", attempt.ident, record.offset, uid, places
        )


def ident_of(record: Record) -> str:
    return bytes(record.value or b"").partition(b"|")[0].decode()


__all__ = ["Rules", "Told", "ident_of"]
