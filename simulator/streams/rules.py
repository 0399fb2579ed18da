"""The invariants that are checked at every event of a stream: appends, acknowledgements, records that a reader gets.

Not here: changes of metadata (`heads.py`), checks of a whole life (`final_checks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buckram.core.streams.records.batch import Record
from buckram.errors import BuckramError
from simulator.engine.checkers.report import Report
from simulator.streams.facts import (
    REFUSED,
    AtomicBatch,
    Content,
    Facts,
    KnownRecord,
    ReaderSession,
    SentRecord,
    StreamHistory,
    WriterSession,
)


class Rules:
    """Keeps the facts and checks each event. `acked` counts acknowledged records."""

    def __init__(self, facts: Facts, report: Report, now: Callable[[], float]) -> None:
        self.facts, self.report, self._now = facts, report, now
        self.acked = 0

    # -- writers

    def new_session(self, host: str) -> WriterSession:
        session = WriterSession(host, len(self.facts.sessions))
        self.facts.sessions.append(session)
        return session

    def writer_opened(self, session: WriterSession, uid: str, epoch: int, next_offset: int) -> None:
        """Note an open writer, which expects its first record at `next_offset`; check that after a take-over."""
        history = self.facts.histories[uid]
        session.history, session.epoch, session.first = history, epoch, next_offset
        if history.head is not None and history.head.epoch == epoch:
            known = max(history.top, max(history.acked, default=-1) + 1)
            self.report.check(
                "takeover",
                next_offset >= known,
                "the new writer of {} would begin at {}, records are known up to {}",
                history.name,
                next_offset,
                known,
            )
            others = [s for s in self.facts.sessions if s.history is history and s.epoch < epoch]
            if others:
                lives = any(not s.lost for s in others)
                self.report.situation("took over a writer that lives" if lives else "took over a writer that died")

    def atomic_append(self, session: WriterSession, idents: Sequence[str]) -> None:
        """Note the records that are passed to one atomic append."""
        group = AtomicBatch(list(idents), session.history)
        if session.history is not None:
            session.history.groups.append(group)

    def acknowledged(self, sent: SentRecord, offset: int | None) -> None:
        """Check an append that succeeded. `offset` is None for a record stored before at an unknown offset."""
        session, history = sent.session, sent.session.history
        assert history is not None
        sent.result, sent.offset = "ok", offset
        self.acked += 1
        report = self.report
        # A retry of a stored record may be acknowledged by any writer that knows of it.
        again = offset is None or offset < session.first or sent.ident in history.offset_of
        since = history.fenced_since(session.epoch)
        if since is not None and not again:
            report.check(
                "fence",
                sent.at < since,
                "{} (epoch {}) of {} was appended after another writer sealed the segment, and is acknowledged at {}",
                sent.ident,
                session.epoch,
                history.name,
                offset,
            )
        report.check(
            "deleted",
            history.deleted_at is None or sent.at < history.deleted_at or again,
            "{} is acknowledged although {} was deleted before",
            sent.ident,
            history.name,
        )
        if offset is None:
            return
        report.check(
            "M9",
            history.is_listed(offset),
            "{} is acknowledged at {} of {}, the list says {}",
            sent.ident,
            offset,
            history.name,
            history.head,
        )
        self._note_record(
            history, offset, KnownRecord(sent.ident, None, sent.content.txid), f"the writer {session.host}"
        )
        history.acked.setdefault(offset, sent)

    def refused(self, sent: Sequence[SentRecord]) -> None:
        """Note appends that failed with an error which means that nothing was written."""
        for one in sent:
            one.result = REFUSED
            self._count_fenced(one)

    def unknown(self, sent: Sequence[SentRecord]) -> None:
        """Note appends that ended without a certain result."""
        for one in sent:
            if one.result == "pending":
                one.result = "unknown"
                self._count_fenced(one)

    def _count_fenced(self, sent: SentRecord) -> None:
        """Count the rule "fence" for an append that was fenced and not acknowledged."""
        history = sent.session.history
        since = history.fenced_since(sent.session.epoch) if history is not None else None
        if since is not None and sent.at >= since:
            self.report.check("fence", True)

    def already_stored(self, sent: Sequence[SentRecord]) -> None:
        """Check records that the writer reported as stored before."""
        for one in sent:
            self.report.situation("retry was stored already")
            place, history = (
                one.session.history.offset_of.get(one.ident) if one.session.history else None,
                one.session.history,
            )
            if place is not None and history is not None and any(place < base for base in history.segment_starts):
                self.report.situation("retry after a roll")
            earlier = [s for s in self.facts.sent[one.ident] if s is not one and s.session is not one.session]
            if earlier:
                self.report.situation("retry by another writer")
            self.acknowledged(one, None)

    def writer_lost(self, session: WriterSession, error: BuckramError) -> None:
        """Check a writer that failed with WriterLost: another one, a bulk step or a deletion must be the cause."""
        history = session.history
        assert history is not None
        head = history.head
        taken = history.head_removed or head is None or head.deleting or head.epoch > session.epoch
        if not taken and head is not None and head.open_segment is not None:
            taken = self.facts.fencer.get(head.open_segment.ledger) in self.facts.sealers
        # Another writer takes the lease before it changes the epoch.
        self.report.check(
            "undisturbed",
            taken or "took the lease" in str(error),
            "writer {} (epoch {}) of {} is lost although no other took the stream: {}; {}",
            session.host,
            session.epoch,
            history.name,
            error,
            head,
        )

    def writer_failed(self, session: WriterSession, error: BuckramError, *, healthy: bool) -> None:
        """Check a writer that failed: if `healthy` (no fault of process and session), no janitor may be the cause."""
        history = session.history
        if history is None or history.head_removed or history.head is None or history.head.epoch > session.epoch:
            return
        by_janitor = "discarded by a janitor" in str(error)
        self.report.check(
            "undisturbed",
            not (healthy and by_janitor),
            "writer {} (epoch {}) of {}, which had no fault, failed: {}",
            session.host,
            session.epoch,
            history.name,
            error,
        )

    # -- readers

    def new_reader(self, host: str, kind: str, *, follow: bool, skip: bool) -> ReaderSession:
        reading = ReaderSession(host, kind, follow, skip, began_at=self.facts.tick())
        self.facts.readings.append(reading)
        return reading

    def reader_opened(self, reading: ReaderSession, uid: str, position: int) -> None:
        """Note a reader that is open at this position."""
        reading.history = self.facts.histories.get(uid)
        reading.first = position
        # A start at a time or txid may skip records before it.
        reading.expected = None if reading.wanted is not None else position

    def records_read(self, reading: ReaderSession, records: Sequence[Record]) -> None:
        for record in records:
            self._check_record(reading, record)

    def _check_record(self, reading: ReaderSession, record: Record) -> None:
        history, report = reading.history, self.report
        assert history is not None
        expected = reading.expected
        jumped = expected is not None and record.offset != expected
        if jumped and reading.skip and expected is not None and record.offset > expected:
            jumped = record.offset not in history.earliest_offsets
        report.check(
            "exactly-once",
            not jumped,
            "{} reader {} of {} gets offset {}, expected was {}",
            reading.kind,
            reading.host,
            history.name,
            record.offset,
            expected,
        )
        report.check(
            "exactly-once",
            reading.stop is None or record.offset < reading.stop,
            "{} reader {} of {} gets offset {}, it was to stop before {}",
            reading.kind,
            reading.host,
            history.name,
            record.offset,
            reading.stop,
        )
        if reading.delivered and record.offset in history.segment_starts:
            report.situation(
                "reader crossed a take-over" if history.segment_starts[record.offset] else "reader crossed a roll"
            )
        if expected is None and reading.wanted is not None:
            self._check_first(history, reading, record)
        reading.expected = record.offset + 1
        report.check(
            "append-time",
            record.append_time >= reading.last_time,
            "offset {} of {} was appended at {}, before the one before it ({})",
            record.offset,
            history.name,
            record.append_time,
            reading.last_time,
        )
        reading.last_time = record.append_time
        reading.delivered += 1
        ident = self.facts.ident_of(record)
        self._check_authentic(history, ident, record)
        self._note_record(
            history, record.offset, KnownRecord(ident, record.append_time, record.txid), f"reader {reading.host}"
        )

    def _check_first(self, history: StreamHistory, reading: ReaderSession, record: Record) -> None:
        """Check the first record from a time or txid on: it is not too early, and no known one was skipped."""
        wanted, by_time = reading.wanted or 0, reading.kind == "time"
        known = record.append_time if by_time else record.txid
        missed = [
            offset
            for offset in range(reading.first or 0, record.offset)
            if (seen := history.known_records.get(offset)) is not None
            and (value := seen.time if by_time else seen.txid) is not None
            and value >= wanted
            and history.head is not None
            and offset >= history.head.earliest
        ]
        self.report.check(
            "start",
            known is not None and known >= wanted and not missed,
            "a reader of {} from {} {} on gets {!r} first, {} come before it",
            history.name,
            reading.kind,
            wanted,
            record,
            missed,
        )

    def _check_authentic(self, history: StreamHistory, ident: str, record: Record) -> None:
        report, wanted = self.report, self.facts.contents(ident)
        report.check(
            "authentic",
            wanted is not None,
            "offset {} of {} is {!r}, which was never appended",
            record.offset,
            history.name,
            record,
        )
        if wanted is None:
            return
        time = record.append_time if wanted.timestamp is None else wanted.timestamp
        if ident in self.facts.bulk and wanted.timestamp is None:
            time = record.timestamp  # stamped by the clock of the bulk writer
        found = Content(
            record.value, record.key, record.headers, record.timestamp, record.txid, record.producer, record.sequence
        )
        report.check(
            "authentic",
            found == wanted._replace(timestamp=time),
            "offset {} of {} is read as {!r}, appended was {!r}",
            record.offset,
            history.name,
            found,
            wanted,
        )
        attempts = self.facts.sent.get(ident, [])
        report.check(
            "authentic",
            not attempts or any(sent.result != REFUSED for sent in attempts),
            "offset {} of {} is {}, whose append failed with an error that means nothing was written",
            record.offset,
            history.name,
            ident,
        )

    # -- both

    def _note_record(self, history: StreamHistory, offset: int, seen: KnownRecord, who: str) -> None:
        """Check and keep the record that a writer or reader (`who`) learned to be at the offset."""
        report, known = self.report, history.known_records.get(offset)
        if known is not None:
            report.check(
                "stable",
                known.ident == seen.ident,
                "offset {} of {} is {} to {}, it was {}",
                offset,
                history.name,
                seen.ident,
                who,
                known,
            )
        place = history.offset_of.get(seen.ident)
        if place is not None:
            rule = "idempotent" if seen.ident.startswith("P") else "stable"
            report.check(
                rule,
                place == offset,
                "{} stands at {} of {} and, says {}, at {}",
                seen.ident,
                place,
                history.name,
                who,
                offset,
            )
        if known is not None and known.time is not None and seen.time is not None:
            report.check(
                "append-time",
                known.time == seen.time,
                "offset {} of {} was appended at {}, says {}; it was {}",
                offset,
                history.name,
                seen.time,
                who,
                known.time,
            )
        if known is None or known.time is None:
            history.known_records[offset] = seen
        history.offset_of.setdefault(seen.ident, offset)


__all__ = ["Rules"]
