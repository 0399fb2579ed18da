"""L3, L4, L8, L9: what must happen once faults are healed or limited, as far as it is seen on the wire.

Not here: the others of L1 to L14, which are checked where a life waits for something (`simulator/ledgers/ending.py`).
"""

from __future__ import annotations

from buckram.errors import Code
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, write_set
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request
from simulator.engine.metadata import HOST

POLL_SLACK_S = 1.0
CHANGE_DEADLINE_S = 5.0
"""Deadline of an ensemble change while metadata and writer are undisturbed (a probe, a pause, a round trip),
seconds."""


class Progress(Checker):
    """Checks how long acknowledgements, long polls and ensemble changes take."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        pace = inspector.pace
        self._poll_s = pace.deadline_s(POLL_SLACK_S, syncs=6)
        self._gate_s = pace.deadline_s(POLL_SLACK_S, syncs=6, metadata_requests=2)
        self._change_s = pace.deadline_s(CHANGE_DEADLINE_S, syncs=10, metadata_requests=6)
        self._now, self._steady = inspector.now, inspector.steady
        self._ok: dict[tuple[str, LedgerId, EntryId], dict[BookieId, float]] = {}
        self._changed_at: dict[LedgerId, float] = {}
        self._polls: list[Request] = []

    def request_delivered(self, request: Request) -> None:
        if request.kind == "poll" and request.wait_s is not None:
            self._polls.append(request)

    def answer_sent(self, answer: Answer) -> None:
        request = answer.request
        if request is not None and request.kind == "poll" and request.wait_s is not None:
            self._polls = [poll for poll in self._polls if poll is not request]
            self._poll_ended(request)

    def _poll_ended(self, request: Request) -> None:
        began = request.delivered_at or 0.0
        # The bookie may have to read the ledger's owner from metadata first, which counts as waiting.
        if self._steady(request.bookie, began) and self._steady(HOST, began):
            assert request.wait_s is not None
            waited = self._now() - began
            self.report.check(
                "L8",
                waited <= max(request.wait_s + self._poll_s, self._gate_s),
                "{} answered a long poll of {:.1f} s after {:.1f} s",
                request.bookie,
                request.wait_s,
                waited,
            )

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is not None and request.kind == "add" and not request.recovery and answer.code is Code.OK:
            key = (request.client, request.ledger, request.entry)
            self._ok.setdefault(key, {})[request.bookie] = self._now()

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        """Check L4: an entry is acknowledged soon after the last event that it needed, maybe an ensemble change."""
        metadata = ledger.metadata
        if metadata is None or handle.explicit:
            return
        since = self._changed_at.get(ledger.ledger, 0.0)
        for earlier in range(max(0, entry - 5), entry + 1):
            ok = self._ok.get((handle.client, ledger.ledger, earlier), {})
            times = sorted(at for bookie, at in ok.items() if bookie in write_set(metadata, earlier))
            if len(times) >= metadata.ack_quorum:
                since = max(since, times[metadata.ack_quorum - 1])
        if self._steady(handle.client, since) and self._steady(HOST, since):
            self.report.check(
                "L4",
                self._now() - since <= self._change_s,
                "entry {} of ledger {} had all that it needed {:.1f} s before it was acknowledged",
                entry,
                ledger.ledger,
                self._now() - since,
            )

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        self._changed_at[ledger.ledger] = self._now()
        if old is not None and new is not None and who == ledger.writer and new.state is LedgerState.OPEN:
            self.report.check("L9", True)
            if old.fragments != new.fragments:
                self._report_lost_quorums(ledger, old, new)

    def _report_lost_quorums(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata) -> None:
        for (client, ledger_id, entry), ok in self._ok.items():
            if ledger_id == ledger.ledger and client == ledger.writer and entry not in ledger.acked:
                before = [b for b in write_set(old, entry) if b in ok]
                after = [b for b in write_set(new, entry) if b in ok]
                if len(before) >= new.ack_quorum > len(after):
                    self.report.situation("completed add lost its quorum")
                    return

    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None:
        if type(error).__name__ != "NotEnoughBookies" or ledger.metadata is None:
            return
        began = self._now() - 30.0
        steady = [
            name
            for name, one in self.facts.bookies.items()
            if one.running and not one.liar and self._steady(name, began)
        ]
        self.report.check(
            "L9",
            len(steady) < ledger.metadata.ensemble_size or not self._steady(handle.client, began),
            "{} failed because there are not enough bookies, but {} were well",
            handle.client,
            steady,
        )

    def check_settled(self) -> None:
        """Check L3, L4 and L8 long after the faults were healed and the last entry was submitted."""
        for poll in self._polls:
            if poll.conn is not None and poll.conn.broken:
                continue  # the answer has no receiver
            if poll.wait_s is not None and self._now() > (poll.delivered_at or 0.0) + poll.wait_s + self._poll_s:
                self._poll_ended(poll)
        self._polls.clear()
        for handle in self.facts.handles:
            ledger = self.facts.ledgers[handle.ledger]
            waiting = [n for n, result in enumerate(handle.results) if result == "pending"]
            if handle.died or not self._steady(handle.client, 0.0) or handle.explicit or ledger.metadata is None:
                continue
            self.report.check(
                "L3",
                not waiting,
                "appends {} of {} on ledger {} are pending since the faults ended",
                waiting,
                handle.client,
                handle.ledger,
            )
            if waiting and waiting[0] == handle.acked:
                entry = waiting[0]
                ok = self._ok.get((handle.client, handle.ledger, entry), {})
                members = [b for b in write_set(ledger.metadata, entry) if b in ok]
                self.report.check(
                    "L4",
                    len(members) < ledger.metadata.ack_quorum,
                    "entry {} of ledger {} has its quorum {} and is not acknowledged",
                    entry,
                    handle.ledger,
                    members,
                )
