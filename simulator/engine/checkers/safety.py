"""S1 to S10, S12, S13: agreement on a ledger's end and content, and durability of acknowledged entries."""

from __future__ import annotations

from itertools import pairwise

from buckram.types import EntryId, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import Checker, Insert
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, write_set
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Request


class Durability(Checker):
    """S1, S3, S4, S5, S9, S12: acknowledged entries stay, on the bookies that metadata names.

    The claims of a lying bookie count here like all others. `lying.py` checks the honest ones, and S1 in lives with a
    lying bookie, because S1 may not hold there for a recovery that cannot reach the other bookies.
    """

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        metadata = ledger.metadata
        if metadata is None:
            return
        if ledger.closed is not None and not self.facts.liars:
            self.report.check(
                "S1",
                entry <= ledger.closed[0],
                "ledger {} is closed at {}, entry {} is acknowledged now",
                ledger.ledger,
                ledger.closed[0],
                entry,
            )
        members = write_set(metadata, entry)
        claims = ledger.claims.get(entry, {})
        holders = [b for b in members if b in claims and (claims[b] or handle.deferred)]
        self.report.check(
            "S4",
            len(holders) >= metadata.ack_quorum,
            "entry {} of ledger {} acknowledged with {} of its write set {} (others that hold it: {}), ack quorum {}",
            entry,
            ledger.ledger,
            holders,
            members,
            [b for b in claims if b not in members],
            metadata.ack_quorum,
        )

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None:
            return
        if new.closed:
            self._check_close(ledger, old, new)
        if old is not None and old.fragments == new.fragments:
            return
        for entry in ledger.promised:
            if new.closed and entry > (new.last_entry or 0):
                continue  # S1 is violated already
            members = write_set(new, entry)
            holders = ledger.holders(entry, members)
            self.report.check(
                "S3",
                bool(holders),
                "acknowledged entry {} of ledger {} is on none of {}",
                entry,
                ledger.ledger,
                members,
            )
            self.report.check(
                "S12",
                len(holders) >= new.ack_quorum,
                "committed entry {} of ledger {} is only on {} of {} since {} changed metadata",
                entry,
                ledger.ledger,
                holders,
                members,
                who,
            )

    def _check_close(self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        last = new.last_entry
        assert last is not None
        top = max(ledger.promised, default=-1)
        if top >= 0 and not self.facts.liars:
            self.report.check(
                "S1", top <= last, "ledger {} is closed at {}, but entry {} was acknowledged", ledger.ledger, last, top
            )
        if old is not None and old.closed:
            return
        pushed = max(ledger.pushed, default=-1)
        self.report.check(
            "S9",
            top <= last <= pushed,
            "ledger {} closed at {}: acknowledged up to {}, pushed up to {}",
            ledger.ledger,
            last,
            top,
            pushed,
        )
        for entry in range(last + 1):
            members = write_set(new, entry)
            holders = ledger.holders(entry, members)
            self.report.check(
                "S5",
                len(holders) >= new.ack_quorum,
                "ledger {} is closed at {}, but entry {} is only on {} of {}",
                ledger.ledger,
                last,
                entry,
                holders,
                members,
            )

    def lac_seen(self, ledger: LedgerFacts, who: str, before: EntryId, lac: EntryId) -> None:
        self.report.check(
            "S12",
            lac >= before,
            "the LAC that {} shows for ledger {} fell from {} to {}",
            who,
            ledger.ledger,
            before,
            lac,
        )


class Content(Checker):
    """S6, S7, S13: every copy of an id is what the writer submitted as that id."""

    def request_sent(self, request: Request) -> None:
        """Define the copy of an id by the writer's first request with it, for S6 and S13."""
        if request.kind != "add" or request.recovery:
            return
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None or ledger.writer != request.client or request.key != ledger.key:
            return
        found = ledger.open(request.entry, request.body)
        if found is None:
            self.report.violate("S17", f"the writer sent entry {request.entry} of {request.ledger} with a bad digest")
            return
        copy, known = found[2], ledger.pushed.get(request.entry)
        if known is not None:
            self.report.check(
                "S6", known == copy, "entry {} of ledger {} was resent as something else", request.entry, request.ledger
            )
            return
        ledger.pushed[request.entry] = copy
        self._check_submitted(ledger, request.entry, copy.payload)
        before = ledger.pushed.get(request.entry - 1)
        if not ledger.explicit and (before is not None or request.entry == 0):
            expected = (before.length if before is not None else 0) + len(copy.payload)
            self.report.check(
                "S13",
                copy.length == expected,
                "entry {} of ledger {} says length {}, the sum is {}",
                request.entry,
                request.ledger,
                copy.length,
                expected,
            )

    def _check_submitted(self, ledger: LedgerFacts, entry: EntryId, payload: bytes) -> None:
        for handle in self.facts.handles:
            if handle.ledger != ledger.ledger:
                continue
            ids = handle.wanted if handle.explicit else list(range(len(handle.payloads)))
            submitted = [handle.payloads[n] for n, wanted in enumerate(ids) if wanted == entry]
            self.report.check(
                "S6",
                payload in submitted,
                "entry {} of ledger {} went out as {!r}, not as submitted",
                entry,
                ledger.ledger,
                payload[:40],
            )

    def inserted(self, ledger: LedgerFacts, insert: Insert) -> None:
        if not insert.key_ok:
            return
        known, copy = ledger.pushed.get(insert.entry), insert.copy
        if copy is None or known is None:
            self.report.violate(
                "S6",
                f"{insert.bookie} stored entry {insert.entry} of ledger {ledger.ledger}, "
                f"{'whose digest is bad' if copy is None else 'which was never written'}",
            )
            return
        self.report.check(
            "S6",
            copy.payload == known.payload,
            "{} stored another payload as entry {} of ledger {}",
            insert.bookie,
            insert.entry,
            ledger.ledger,
        )
        self.report.check(
            "S7",
            copy == known,
            "{} stored entry {} of ledger {} with length {}, the writer said {}",
            insert.bookie,
            insert.entry,
            ledger.ledger,
            copy.length,
            known.length,
        )

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None or not new.closed or (old is not None and old.closed):
            return
        # If the caller chooses ids, the length in the last entry is not the sum by id, so recovery cannot know it.
        if (ledger.explicit or ledger.deferred) and who != ledger.writer:
            return
        assert new.last_entry is not None
        total = sum(len(ledger.pushed[e].payload) for e in range(new.last_entry + 1) if e in ledger.pushed)
        self.report.check(
            "S13",
            new.length == total or ledger.deferred,
            "ledger {} closed by {} at entry {} with length {}, its entries are {} bytes",
            ledger.ledger,
            who,
            new.last_entry,
            new.length,
            total,
        )


class Order(Checker):
    """S8: per handle, acknowledgements in id order, and none after the first failure.

    Different kinds of calls return their results on different ways, so an earlier append may end a little later: one
    that is still pending must not fail afterwards, nor stay pending.
    """

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        if handle.explicit:
            return
        failed = [n for n in range(index) if handle.results[n] == "failed"]
        self.report.check(
            "S8",
            entry == index and not failed,
            "append {} of {} on ledger {} acknowledged as entry {}; earlier appends that failed: {}",
            index,
            handle.client,
            ledger.ledger,
            entry,
            failed[:5],
        )

    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None:
        later = [n for n in range(index, len(handle.results)) if handle.results[n] == "ok"]
        if later and not handle.explicit:
            self.report.check(
                "S8",
                False,
                "append {} of {} on ledger {} failed ({!r}), but append {} was acknowledged",
                index,
                handle.client,
                ledger.ledger,
                error,
                later[0],
            )

    def check_settled(self) -> None:
        for handle in self.facts.handles:
            top = max([n for n, result in enumerate(handle.results) if result == "ok"], default=-1)
            pending = [n for n in range(top) if handle.results[n] == "pending"]
            if top >= 0 and not handle.explicit and not handle.died:
                self.report.check(
                    "S8",
                    not pending,
                    "appends {} of {} never ended, but append {} was acknowledged",
                    pending,
                    handle.client,
                    top,
                )


class Records(Checker):
    """S2, S10: a ledger is closed once, and its fragments are valid."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None:
            return
        firsts = [fragment.first_entry for fragment in new.fragments]
        valid = (
            firsts[0] == 0
            and all(a < b for a, b in pairwise(firsts))
            and all(len(f.ensemble) == new.ensemble_size == len(dict.fromkeys(f.ensemble)) for f in new.fragments)
        )
        self.report.check("S10", valid, "ledger {}: invalid fragments {} by {}", ledger.ledger, new.fragments, who)
        if old is None:
            return
        if old.closed:
            same = new.closed and (new.last_entry, new.length) == (old.last_entry, old.length)
            self.report.check(
                "S2",
                same,
                "ledger {} was closed at {}, {} made it {} {}",
                ledger.ledger,
                (old.last_entry, old.length),
                who,
                new.state.name,
                (new.last_entry, new.length),
            )
        elif new.closed or old.state is LedgerState.IN_RECOVERY:
            self.report.check(
                "S2",
                new.state is not LedgerState.OPEN and ledger.closed in (None, (new.last_entry, new.length)),
                "ledger {} went from {} to {}, by {}",
                ledger.ledger,
                old.state.name,
                new.state.name,
                who,
            )
        if new.state is not old.state or len(new.fragments) != len(old.fragments):
            # Only a repair changes members of fragments that cannot grow, and nothing else with them.
            earlier = old.fragments[:-1]
            self.report.check(
                "S10",
                new.fragments[: len(earlier)] == earlier,
                "ledger {}: its earlier fragments were {}, {} made them {}",
                ledger.ledger,
                earlier,
                who,
                new.fragments,
            )
        self._check_new_fragment(ledger, old, new, who)

    def _check_new_fragment(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        if new.state is not LedgerState.OPEN or old.last_fragment == new.last_fragment or who != ledger.writer:
            return
        top = max(ledger.promised, default=-1)
        first = new.last_fragment.first_entry
        if first <= top and self._inspector.writer_gave_up():
            # The writer went on without this change, so entries that it acknowledged since must count under it, too.
            late = [entry for entry in ledger.promised if entry >= first]
            held = all(sum(b in ledger.claims.get(e, {}) for b in write_set(new, e)) >= new.ack_quorum for e in late)
            self.report.check(
                "S10",
                held,
                "ledger {}: its new fragment comes late, begins at {}, and its members do "
                "not hold what is acknowledged up to {}",
                ledger.ledger,
                first,
                top,
            )
            return
        self.report.check(
            "S10",
            first > top,
            "ledger {}: its new fragment begins at {}, acknowledged up to {}",
            ledger.ledger,
            first,
            top,
        )
