"""What must hold at every event of a stream's life: appends, acknowledgements, records that a reader gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buckram.core.streams.batch import Record
from buckram.errors import BuckramError
from buckram.sim.engine.checkers.report import Report
from buckram.sim.streams.facts import REFUSED, Content, Facts, Group, Line, Reading, Seen, Sent, Session


class Rules:
    """Keeps the facts and judges. `unknown_line` makes a violation of reading or writing what has no head."""

    def __init__(self, facts: Facts, report: Report, now: Callable[[], float]) -> None:
        self.facts, self.report, self._now = facts, report, now
        self.acked = 0

    # -- writers ------------------------------------------------------------------------------------------

    def session(self, host: str) -> Session:
        session = Session(host, len(self.facts.sessions))
        self.facts.sessions.append(session)
        return session

    def opened(self, session: Session, uid: str, epoch: int, next_offset: int) -> None:
        """The writer is open and says what comes next."""
        line = self.facts.lines[uid]
        session.line, session.epoch, session.first = line, epoch, next_offset
        if line.head is not None and line.head.epoch == epoch:
            known = max(line.top, max(line.acked, default=-1) + 1)
            self.report.check(
                "takeover",
                next_offset >= known,
                "the new writer of {} would begin at {}, records are known up to {}",
                line.name,
                next_offset,
                known,
            )
            others = [s for s in self.facts.sessions if s.line is line and s.epoch < epoch]
            if others:
                lives = any(not s.lost for s in others)
                self.report.situation("took over a writer that lives" if lives else "took over a writer that died")

    def group(self, session: Session, idents: Sequence[str]) -> None:
        """These were given to one atomic append."""
        group = Group(list(idents), session.line)
        if session.line is not None:
            session.line.groups.append(group)

    def stored(self, sent: Sent, offset: int | None) -> None:
        """An append ended well. `offset` None: it was stored before and its offset is not told."""
        session, line = sent.session, sent.session.line
        assert line is not None
        sent.result, sent.offset = "ok", offset
        self.acked += 1
        report = self.report
        # A retry of what is stored already is answered by whoever knows it.
        again = offset is None or offset < session.first or sent.ident in line.place
        since = line.fenced_since(session.epoch)
        if since is not None and not again:
            report.check(
                "fence",
                sent.at < since,
                "{} (epoch {}) of {} was appended after another writer sealed it and is acknowledged at {}",
                sent.ident,
                session.epoch,
                line.name,
                offset,
            )
        report.check(
            "deleted",
            line.deleted_at is None or sent.at < line.deleted_at or again,
            "{} is acknowledged although {} was deleted before",
            sent.ident,
            line.name,
        )
        if offset is None:
            return
        report.check(
            "M9",
            line.covered(offset),
            "{} is acknowledged at {} of {}, the list says {}",
            sent.ident,
            offset,
            line.name,
            line.head,
        )
        self._evidence(line, offset, Seen(sent.ident, None, sent.content.txid), f"the writer {session.host}")
        line.acked.setdefault(offset, sent)

    def refused(self, sent: Sequence[Sent]) -> None:
        """A typed error said that nothing was written."""
        for one in sent:
            one.result = REFUSED
            self._after_fence(one)

    def unknown(self, sent: Sequence[Sent]) -> None:
        for one in sent:
            if one.result == "pending":
                one.result = "unknown"
                self._after_fence(one)

    def _after_fence(self, sent: Sent) -> None:
        """It was not acknowledged; that counts where it must not have been."""
        line = sent.session.line
        since = line.fenced_since(sent.session.epoch) if line is not None else None
        if since is not None and sent.at >= since:
            self.report.check("fence", True)

    def left_out(self, sent: Sequence[Sent]) -> None:
        """Taken for stored before."""
        for one in sent:
            self.report.situation("retry was stored already")
            place, line = one.session.line.place.get(one.ident) if one.session.line else None, one.session.line
            if place is not None and line is not None and any(place < base for base in line.bases):
                self.report.situation("retry after a roll")
            earlier = [s for s in self.facts.sent[one.ident] if s is not one and s.session is not one.session]
            if earlier:
                self.report.situation("retry by another writer")
            self.stored(one, None)

    def lost(self, session: Session, error: BuckramError) -> None:
        """The writer says that it lost the stream: somebody must have taken it."""
        line = session.line
        assert line is not None
        head = line.head
        taken = line.gone or head is None or head.deleting or head.epoch > session.epoch
        if not taken and head is not None and head.open_segment is not None:
            taken = self.facts.fencer.get(head.open_segment.ledger) in self.facts.sealers
        # The lease goes first, the epoch follows.
        self.report.check(
            "undisturbed",
            taken or "took the lease" in str(error),
            "writer {} (epoch {}) of {} is lost although nobody took it: {}; {}",
            session.host,
            session.epoch,
            line.name,
            error,
            head,
        )

    def failed(self, session: Session, error: BuckramError, *, healthy: bool) -> None:
        """The writer says that it cannot go on. One that nothing hindered is not taken for dead by a janitor."""
        line = session.line
        if line is None or line.gone or line.head is None or line.head.epoch > session.epoch:
            return
        by_janitor = "discarded by a janitor" in str(error)
        self.report.check(
            "undisturbed",
            not (healthy and by_janitor),
            "writer {} (epoch {}) of {}, which nothing hindered, failed: {}",
            session.host,
            session.epoch,
            line.name,
            error,
        )

    # -- readers ------------------------------------------------------------------------------------------

    def reading(self, host: str, kind: str, *, follow: bool, skip: bool) -> Reading:
        reading = Reading(host, kind, follow, skip, began_at=self.facts.tick())
        self.facts.readings.append(reading)
        return reading

    def began(self, reading: Reading, uid: str, position: int) -> None:
        """It is open: where it says it is."""
        reading.line = self.facts.lines.get(uid)
        reading.first = position
        # From a time or txid on it may pass over records that come before.
        reading.expected = None if reading.wanted is not None else position

    def read(self, reading: Reading, records: Sequence[Record]) -> None:
        for record in records:
            self._record(reading, record)

    def _record(self, reading: Reading, record: Record) -> None:
        line, report = reading.line, self.report
        assert line is not None
        expected = reading.expected
        jumped = expected is not None and record.offset != expected
        if jumped and reading.skip and expected is not None and record.offset > expected:
            jumped = record.offset not in line.earliests
        report.check(
            "exactly-once",
            not jumped,
            "{} reader {} of {} gets offset {}, {} was due",
            reading.kind,
            reading.host,
            line.name,
            record.offset,
            expected,
        )
        report.check(
            "exactly-once",
            reading.stop is None or record.offset < reading.stop,
            "{} reader {} of {} gets offset {}, it was to stop before {}",
            reading.kind,
            reading.host,
            line.name,
            record.offset,
            reading.stop,
        )
        if reading.delivered and record.offset in line.bases:
            report.situation("reader crossed a take-over" if line.bases[record.offset] else "reader crossed a roll")
        if expected is None and reading.wanted is not None:
            self._first(line, reading, record)
        reading.expected = record.offset + 1
        report.check(
            "append-time",
            record.append_time >= reading.last_time,
            "offset {} of {} was appended at {}, before the one before it ({})",
            record.offset,
            line.name,
            record.append_time,
            reading.last_time,
        )
        reading.last_time = record.append_time
        reading.delivered += 1
        ident = self.facts.ident_of(record)
        self._authentic(line, ident, record)
        self._evidence(line, record.offset, Seen(ident, record.append_time, record.txid), f"reader {reading.host}")

    def _first(self, line: Line, reading: Reading, record: Record) -> None:
        """The first record from a time or txid on: it is not too early, and no known one before it was left out."""
        wanted, by_time = reading.wanted or 0, reading.kind == "time"
        known = record.append_time if by_time else record.txid
        missed = [
            offset
            for offset in range(reading.first or 0, record.offset)
            if (seen := line.truth.get(offset)) is not None
            and (value := seen.time if by_time else seen.txid) is not None
            and value >= wanted
            and line.head is not None
            and offset >= line.head.earliest
        ]
        self.report.check(
            "start",
            known is not None and known >= wanted and not missed,
            "a reader of {} from {} {} on gets {!r} first, {} were due before",
            line.name,
            reading.kind,
            wanted,
            record,
            missed,
        )

    def _authentic(self, line: Line, ident: str, record: Record) -> None:
        report, wanted = self.report, self.facts.contents(ident)
        report.check(
            "authentic",
            wanted is not None,
            "offset {} of {} is {!r}, which nobody appended",
            record.offset,
            line.name,
            record,
        )
        if wanted is None:
            return
        time = record.append_time if wanted.timestamp is None else wanted.timestamp
        if ident in self.facts.bulk and wanted.timestamp is None:
            time = record.timestamp  # stamped by the clock of whoever wrote it
        found = Content(
            record.value, record.key, record.headers, record.timestamp, record.txid, record.producer, record.sequence
        )
        report.check(
            "authentic",
            found == wanted._replace(timestamp=time),
            "offset {} of {} is read as {!r}, appended was {!r}",
            record.offset,
            line.name,
            found,
            wanted,
        )
        attempts = self.facts.sent.get(ident, [])
        report.check(
            "authentic",
            not attempts or any(sent.result != REFUSED for sent in attempts),
            "offset {} of {} is {}, of which a typed error said that nothing was written",
            record.offset,
            line.name,
            ident,
        )

    # -- both ---------------------------------------------------------------------------------------------

    def _evidence(self, line: Line, offset: int, seen: Seen, who: str) -> None:
        """Somebody learned that this record stands there."""
        report, known = self.report, line.truth.get(offset)
        if known is not None:
            report.check(
                "stable",
                known.ident == seen.ident,
                "offset {} of {} is {} to {}, it was {}",
                offset,
                line.name,
                seen.ident,
                who,
                known,
            )
        place = line.place.get(seen.ident)
        if place is not None:
            rule = "idempotent" if seen.ident.startswith("P") else "stable"
            report.check(
                rule,
                place == offset,
                "{} stands at {} of {} and, says {}, at {}",
                seen.ident,
                place,
                line.name,
                who,
                offset,
            )
        if known is not None and known.time is not None and seen.time is not None:
            report.check(
                "append-time",
                known.time == seen.time,
                "offset {} of {} was appended at {}, says {}; it was {}",
                offset,
                line.name,
                seen.time,
                who,
                known.time,
            )
        if known is None or known.time is None:
            line.truth[offset] = seen
        line.place.setdefault(seen.ident, offset)


__all__ = ["Rules"]
