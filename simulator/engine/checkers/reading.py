"""S3, S6, S7, S14 to S20: what readers get, and that each append ends once."""

from __future__ import annotations

from buckram.errors import Code
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata
from simulator.engine.checkers.base import Checker, ReadResult
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, write_set
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request


class Reads(Checker):
    """Checks finished reads. Remembers per client which replica answered what, and who sent bad bytes."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._now, self._pace = inspector.now, inspector.pace
        self._answers: dict[tuple[str, LedgerId, EntryId], dict[BookieId, str]] = {}
        self._requested: dict[tuple[str, LedgerId, EntryId], dict[BookieId, bool]] = {}
        self._bad: dict[tuple[str, LedgerId], int] = {}

    def request_sent(self, request: Request) -> None:
        if request.kind == "read" and request.entry >= 0 and not request.ghost:
            requested = self._requested.setdefault((request.client, request.ledger, request.entry), {})
            requested[request.bookie] = True

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or request.kind not in ("read", "batch", "poll", "read_lac"):
            return
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None:
            return
        good = answer.code is Code.OK
        for offset, body in enumerate(answer.bodies):
            wanted = answer.first + offset if answer.first >= 0 and request.kind != "read_lac" else None
            found = ledger.open(wanted, body)
            if found is None:
                good = False
                self._bad[request.client, request.ledger] = self._bad.get((request.client, request.ledger), 0) + 1
        if request.entry >= 0 and request.kind in ("read", "batch"):
            answers = self._answers.setdefault((request.client, request.ledger, request.entry), {})
            answers[request.bookie] = "negative" if answer.negative else "positive" if good else "unknown"
            silent = [
                b for b in self._requested.get((request.client, request.ledger, request.entry), {}) if b not in answers
            ]
            if len(dict.fromkeys([*answers.values(), *["unknown" for _ in silent]])) == 3:
                self.report.situation("read with all three answer classes")
        if request.kind == "batch" and answer.bodies and len(answer.bodies) > 1:
            self.report.situation("batch read cut by size")

    def lac_seen(self, ledger: LedgerFacts, who: str, before: EntryId, lac: EntryId) -> None:
        """Check S17: no LAC is above the writer's LACs, the last fragment's start and the ledger's end."""
        if who == ledger.writer or ledger.metadata is None or lac < 0:
            return
        known = max(
            ledger.max_lac,
            ledger.metadata.last_fragment.first_entry - 1,
            ledger.closed[0] if ledger.closed is not None else -1,
        )
        self.report.check(
            "S17",
            lac <= known,
            "{} takes {} for the LAC of ledger {}, but the highest known one is {}",
            who,
            lac,
            ledger.ledger,
            known,
        )

    def read_done(self, ledger: LedgerFacts, result: ReadResult) -> None:
        for entry, payload, length, _ in result.entries:
            self._check_entry(ledger, result, entry, payload, length)
        if result.error == "NoSuchEntry" and result.error_entry is not None:
            self._check_denial(ledger, result, result.error_entry)
        if result.kind == "final":
            self._check_final_read(ledger, result)

    def _check_entry(
        self, ledger: LedgerFacts, result: ReadResult, entry: EntryId, payload: bytes, length: int
    ) -> None:
        known = ledger.pushed.get(entry)
        right = known is not None and known.payload == payload
        self.report.check(
            "S6",
            right,
            "{} read {!r} as entry {} of ledger {}, which was never written so",
            result.client,
            payload[:40],
            entry,
            ledger.ledger,
        )
        if self._bad.get((result.client, ledger.ledger)):
            self.report.check(
                "S17",
                right,
                "{} got bytes that fail their digest as entry {} of ledger {}",
                result.client,
                entry,
                ledger.ledger,
            )
        if known is not None:
            self.report.check(
                "S7",
                known.length == length,
                "{} read entry {} of ledger {} with length {}, not {}",
                result.client,
                entry,
                ledger.ledger,
                length,
                known.length,
            )
        before = ledger.delivered.setdefault(entry, payload)
        if before is not payload:
            self.report.check(
                "S15",
                before == payload,
                "entry {} of ledger {} was read as {!r} and as {!r}",
                entry,
                ledger.ledger,
                before[:40],
                payload[:40],
            )
        if result.kind in ("read", "tail"):
            self.report.check(
                "S16",
                entry <= result.lac,
                "{} got entry {} of ledger {}, its LAC was {}",
                result.client,
                entry,
                ledger.ledger,
                result.lac,
            )
            if entry > ledger.max_delivered:
                ledger.max_delivered, ledger.max_delivered_by = entry, result.client
            if ledger.closed is not None:
                self._check_within_end(ledger)

    def _check_within_end(self, ledger: LedgerFacts) -> None:
        assert ledger.closed is not None
        self.report.check(
            "S14",
            ledger.max_delivered <= ledger.closed[0],
            "{} was given entry {} of ledger {}, which is closed at {}",
            ledger.max_delivered_by,
            ledger.max_delivered,
            ledger.ledger,
            ledger.closed[0],
        )

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is not None and new.closed and ledger.max_delivered >= 0 and ledger.closed is not None:
            self._check_within_end(ledger)

    def _check_denial(self, ledger: LedgerFacts, result: ReadResult, entry: EntryId) -> None:
        if ledger.metadata is None or (ledger.closed is not None and entry > ledger.closed[0]):
            return
        answers = self._answers.get((result.client, ledger.ledger, entry), {})
        members = write_set(ledger.metadata, entry)
        # A session with a follower that lags, or whose messages are late, may not know the newest metadata.
        known = [ledger.metadata]
        if self._pace.metadata_s:
            since = [at for at, _ in ledger.records[1:]] + [self._now()]
            known = [
                record
                for (_, record), until in zip(ledger.records, since, strict=True)
                if until >= self._now() - self._pace.metadata_s
            ]
        self.report.check(
            "S18",
            any(all(answers.get(b) == "negative" for b in write_set(record, entry)) for record in known),
            "a read of {} failed because entry {} of ledger {} does not exist, but its replicas {} answered {}",
            result.client,
            entry,
            ledger.ledger,
            members,
            answers,
        )

    def _check_final_read(self, ledger: LedgerFacts, result: ReadResult) -> None:
        if ledger.closed is None or ledger.deleted:
            return
        got = [entry for entry, *_ in result.entries]
        self.report.check(
            "S19",
            not result.error and got == list(range(ledger.closed[0] + 1)),
            "the final read of ledger {}, closed at {}, gave {} {}",
            ledger.ledger,
            ledger.closed[0],
            got[:20],
            result.error,
        )
        for entry in ledger.promised:
            few = ledger.metadata is None or ledger.metadata.ack_quorum < 2
            if self.facts.liars and (few or entry > ledger.closed[0]):
                continue  # S1 decides whether this is allowed
            self.report.check(
                "S3", entry in got, "acknowledged entry {} of ledger {} is not in the final read", entry, ledger.ledger
            )


class Completions(Checker):
    """S20: an append ends once."""

    def __init__(self, facts: Facts, report: Report) -> None:
        super().__init__(facts, report)
        self._ended: dict[tuple[int, int], tuple[str, Handle]] = {}
        """The handle is kept, because Python gives the id of a deleted object to another one."""

    def _check_first_end(self, handle: Handle, index: int, how: str) -> None:
        before = self._ended.setdefault((id(handle), index), (how, handle))[0]
        self.report.check(
            "S20", before is how, "append {} of {} ended as {} and as {}", index, handle.client, before, how
        )

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        self._check_first_end(handle, index, f"entry {entry}")

    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None:
        self._check_first_end(handle, index, f"{error!r}")
