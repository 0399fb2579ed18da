"""The judge: turns what it observes at the seams into events, keeps the facts, and passes each event to the checkers.

Not here: the invariants (the other modules of this package).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from buckram.core.entries.entry import Digest, master_key
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.metadata_codec import parse
from buckram.errors import BuckramError, Code
from buckram.metadata.records.bookie_health import CONVICTED
from buckram.metadata.tree.layout import ClusterLayout, Layout
from buckram.metadata.tree.store import TreeStore
from buckram.types import (
    NO_BIRTH,
    BookieId,
    Buffer,
    DigestType,
    EntryId,
    KeyValue,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Versioned,
)
from simulator.engine.checkers.absence import Absence
from simulator.engine.checkers.base import Checker, Insert, ReadResult
from simulator.engine.checkers.disks import OnDisks
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts
from simulator.engine.checkers.fencing import BookieDuties, WriterDuties
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.liveness import Progress
from simulator.engine.checkers.lying import HonestCopies
from simulator.engine.checkers.membership import Membership
from simulator.engine.checkers.modes import Modes
from simulator.engine.checkers.reading import Completions, Reads
from simulator.engine.checkers.recovering import RecoveryDuties
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.safety import Content, Durability, Order, Records
from simulator.engine.checkers.tenants import Isolation
from simulator.engine.checkers.wire import Answer, Request, Wire


class HoldsEntry(Protocol):
    """Returns whether a bookie's store has an entry."""

    def __call__(self, ledger_id: LedgerId, entry: EntryId, /) -> bool: ...


class Judge:
    """The judge of one life. Implements metadata.MetadataObserver and wire.WireEvents; `wire` observes the network."""

    def __init__(self, report: Report, inspector: Inspector, layout: ClusterLayout | None = None) -> None:
        self.report, self.facts, self._layout = report, Facts(), layout or Layout()
        facts = self.facts
        self.progress = Progress(facts, report, inspector)
        self.order = Order(facts, report)
        self.checkers: list[Checker] = [
            Durability(facts, report),
            OnDisks(facts, report, inspector),
            Content(facts, report),
            self.order,
            Records(facts, report, inspector),
            RecoveryDuties(facts, report),
            BookieDuties(facts, report, inspector),
            WriterDuties(facts, report, inspector),
            Reads(facts, report, inspector),
            Completions(facts, report),
            Modes(facts, report, inspector),
            HonestCopies(facts, report, inspector),
            Absence(facts, report, inspector),
            self.progress,
        ]
        self._isolation = Isolation(facts, report)
        self._membership = Membership(report, self._layout)
        self.wire = Wire(inspector, self)
        self._inspector = inspector

    # the wire

    def _is_strange(self, request: Request | None) -> bool:
        """Return whether a stranger sent it: the rules of clients do not apply; `Isolation` checks the answers."""
        return request is not None and request.client in self.facts.strangers

    def request_sent(self, request: Request) -> None:
        for checker in () if self._is_strange(request) else self.checkers:
            checker.request_sent(request)

    def request_delivered(self, request: Request) -> None:
        for checker in () if self._is_strange(request) else self.checkers:
            checker.request_delivered(request)

    def answer_sent(self, answer: Answer) -> None:
        request = answer.request
        if self._is_strange(request):
            self._isolation.answer_sent(answer)
            return
        if request is not None and answer.code is Code.OK:
            ledger = self.facts.ledgers.get(request.ledger)
            if ledger is not None:
                self._claim(ledger, request)
        elif request is not None and answer.code is Code.READ_ONLY and request.kind == "add":
            self.report.situation("read-only bookie refused an add")
        for checker in self.checkers:
            checker.answer_sent(answer)

    def _claim(self, ledger: LedgerFacts, request: Request) -> None:
        if request.kind == "add":
            claims = ledger.claims.setdefault(request.entry, {})
            claims[request.bookie] = claims.get(request.bookie, False) or not request.deferred
            ledger.held_since.setdefault((request.entry, request.bookie), self._inspector.now())
            if request.recovery:
                self.report.situation("recovery wrote entries back")
                if ledger.racks:
                    self.report.situation("recovery wrote back under a rule of places")
        elif request.kind == "force":
            before = request.delivered_at or 0.0
            for entry, claims in ledger.claims.items():
                if request.bookie in claims and ledger.claimed_at.get((entry, request.bookie), 0.0) <= before:
                    claims[request.bookie] = True
        if request.kind == "add" and request.deferred:
            ledger.claimed_at.setdefault((request.entry, request.bookie), self._inspector.now())

    def answer_delivered(self, answer: Answer) -> None:
        for checker in () if self._is_strange(answer.request) else self.checkers:
            checker.answer_delivered(answer)

    # metadata

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        ledger_id = self._layout.ledger_of(key)
        if who in self.facts.restorers:
            self._put_back(ledger_id, key, new)
            return
        if new is not None and f"/{CONVICTED}/" in key:
            for checker in self.checkers:
                checker.convicted(key.rpartition("/")[2], who)
        if ledger_id is None:
            self._membership.key_changed(key, old, new)
            folder, _, name = key.rpartition("/")
            if old is None and folder.startswith(self._layout.registrations(readonly=False)) and name != "readonly":
                self.facts.bookie(name).listed_at = self._inspector.now()
            return
        before = parse(old.value) if old is not None else None
        after = parse(new.value) if new is not None else None
        self.report.check("S11", True)
        self.ledger_changed(ledger_id, before, after, who)

    def _put_back(self, ledger_id: LedgerId | None, key: str, new: KeyValue | None) -> None:
        """Take over a change by whoever puts metadata back to an older state."""
        if ledger_id is None:
            self._membership.learn(key, new)
            return
        ledger = self.facts.ledger(ledger_id)
        ledger.went_back, ledger.closed, ledger.recovery_fragment = True, None, None
        ledger.metadata = parse(new.value) if new is not None else None

    def ledger_changed(
        self, ledger_id: LedgerId, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        ledger = self.facts.ledger(ledger_id)
        if new is not None and ledger.deleted and not ledger.went_back:
            # A new ledger with a used id: the facts of the deleted one must not apply to it.
            del self.facts.ledgers[ledger_id]
            self.facts.handles = [handle for handle in self.facts.handles if handle.ledger != ledger_id]
            ledger = self.facts.ledger(ledger_id)
            self.report.situation("an id was used again")
        ledger.metadata = new
        if new is not None:
            ledger.records.append((self._inspector.now(), new))
        if new is None:
            ledger.deleted = True
        else:
            if ledger.digest is None:
                password = new.password or b""
                ledger.digest, ledger.key = Digest(new.digest_type or DigestType.CRC32C, password), master_key(password)
                ledger.writer, ledger.racks = who, self.facts.enforced.get(who, 0)
            if new.state is LedgerState.IN_RECOVERY and (old is None or old.state is not LedgerState.IN_RECOVERY):
                ledger.recovery_fragment = new.last_fragment
            if new.closed and ledger.closed is None:
                ledger.closed = new.last_entry if new.last_entry is not None else -1, new.length or 0
            if old is not None and self.facts.repairing.get((who, ledger_id)):
                self._claim_for_new_members(ledger, old, new)
            if old is not None and old.state is new.state is LedgerState.OPEN and old.fragments != new.fragments:
                self._report_ensemble_change(ledger, old, new)
        for checker in self.checkers:
            checker.metadata_changed(ledger, old, new, who)

    def metadata_restored(self, keys: Mapping[str, KeyValue], *, for_now: bool = False) -> None:
        """Take over the keys of a metadata store that was restored to an older state.

        No client did this, so nothing is checked. `for_now`: the newest state will be restored later, so the facts stay
        those of the newest state.
        """
        found = {self._layout.ledger_of(key): kept for key, kept in keys.items()}
        for ledger_id, ledger in self.facts.ledgers.items():
            ledger.went_back = True
            if not for_now:
                kept = found.get(ledger_id)
                ledger.metadata = parse(kept.value) if kept is not None else None
        self.facts.restores += 1
        self._membership.restored(keys)

    def _claim_for_new_members(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Repair may find that a bookie has an entry that it never acknowledged, which counts if it is durable."""
        before = [(fragment.first_entry, b) for fragment in old.fragments for b in fragment.ensemble]
        after = [(fragment.first_entry, b) for fragment in new.fragments for b in fragment.ensemble]
        for bookie in dict.fromkeys(b for first, b in after if (first, b) not in before):
            unclaimed = [e for e in ledger.pushed if not ledger.claims.get(e, {}).get(bookie)]
            found = self._inspector.entries_on_disk(bookie, ledger.ledger, unclaimed) if unclaimed else None
            for entry in [e for e, held in (found or {}).items() if held]:
                ledger.claims.setdefault(entry, {})[bookie] = True

    def _report_ensemble_change(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata) -> None:
        pairs = zip(old.last_fragment.ensemble, new.last_fragment.ensemble, strict=True)
        if sum(a != b for a, b in pairs) >= 2:
            self.report.situation("two members changed at once")
        handles = [h for h in self.facts.handles if h.ledger == ledger.ledger]
        if new.ensemble_size > new.write_quorum and any("pending" in h.results for h in handles):
            self.report.situation("ensemble change with adds in flight and E > Qw")

    def key_conflict(self, who: str, key: str) -> None:
        ledger_id = self._layout.ledger_of(key)
        if ledger_id is None:
            return
        ledger = self.facts.ledger(ledger_id)
        if self.facts.recovering.get((who, ledger.ledger)):
            self.report.situation("cas conflict in recovery")
        elif any(h.ledger == ledger.ledger and h.client == who and h.closing for h in self.facts.handles):
            self.report.situation("cas conflict in close")
        elif ledger.writer == who:
            self.report.situation("cas conflict in ensemble change")

    def reply_lost(self, who: str, key: str) -> None:
        if self._layout.ledger_of(key) is not None:
            self.report.situation("lost reply of a metadata write")

    def unread_version(self, who: str, key: str, version: int) -> None:
        self.report.check(
            "S11", False, "{} changes {} with the expected version {}, which it never read", who, key, version
        )

    # bookies' stores

    def inserted(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        chunk: Buffer,
        start: int,
        end: int,
        fenced: bool,
        key: bytes | None,
    ) -> None:
        """Check a run of entries that a bookie stores, as frames in chunk[start:end].

        `key` is the master key that it has for the ledger.
        """
        ledger = self.facts.ledgers.get(ledger_id)
        if ledger is None or ledger.key is None:
            return
        view = memoryview(chunk)
        at = start
        while at < end:
            size = 4 + int.from_bytes(view[at : at + 4], "big")
            flags = int.from_bytes(view[at + 6 : at + 8], "big")
            stored = bytes(view[at + 28 : at + size])
            entry = int.from_bytes(stored[8:16], "big", signed=True)
            found = ledger.open(entry, stored)
            insert = Insert(
                bookie,
                entry,
                int.from_bytes(stored[16:24], "big", signed=True),
                found[2] if found else None,
                not flags & 2,
                fenced,
                bytes(view[at + 8 : at + 28]) == ledger.key and key in (None, ledger.key),
            )
            for checker in self.checkers:
                checker.inserted(ledger, insert)
            at += size

    def deleted_by_bookie(
        self, bookie: BookieId, ledger_id: LedgerId, birth: bytes = b"", key: bytes | None = None
    ) -> None:
        """Check a bookie's deletion of a ledger with this birth and master key from its store."""
        ledger = self.facts.ledgers.get(ledger_id)
        if ledger is not None and ledger.key is not None and key not in (None, ledger.key):
            self.report.check("F14", True)
            self.report.situation("a wrong key gave way")
            return
        current = b"" if ledger is None or ledger.metadata is None else birth_of(ledger.metadata)
        if current and birth not in (b"", NO_BIRTH, current):
            self.report.check("I7", True)
            self.report.situation("another ledger of the id gave way")
        elif ledger is not None:
            for checker in self.checkers:
                checker.deleted_by_bookie(ledger, bookie)
            for claims in ledger.claims.values():
                claims.pop(bookie, None)

    def bookie_started(self, bookie: BookieId, holds: HoldsEntry) -> None:
        """Update the claims of a bookie that serves again: unsynced entries may be lost, or are durable now."""
        for ledger in self.facts.ledgers.values():
            for entry, claims in ledger.claims.items():
                if claims.get(bookie) is False:
                    if holds(ledger.ledger, entry):
                        claims[bookie] = True
                    else:
                        del claims[bookie]
        for checker in self.checkers:
            checker.bookie_started(bookie)

    # clients

    def opened_writer(
        self, client: str, ledger_id: LedgerId, *, explicit: bool, deferred: bool, racks: int = 0
    ) -> Handle:
        ledger = self.facts.ledger(ledger_id)
        ledger.explicit, ledger.deferred, ledger.racks = explicit, deferred, racks
        handle = Handle(client, ledger_id, explicit, deferred)
        self.facts.handles.append(handle)
        return handle

    def submit(self, handle: Handle, payloads: Sequence[bytes], ids: Sequence[EntryId | None]) -> int:
        """Record appends before they are called. Return the index of the first of them in the handle's lists."""
        first = len(handle.payloads)
        handle.payloads += payloads
        handle.wanted += ids
        handle.results += ["pending"] * len(payloads)
        handle.ids += [None] * len(payloads)
        return first

    def acked(self, handle: Handle, index: int, entry: EntryId) -> None:
        ledger = self.facts.ledger(handle.ledger)
        handle.results[index], handle.ids[index] = "ok", entry
        handle.acked += 1
        for checker in self.checkers:
            checker.acked(ledger, handle, index, entry)
        ledger.acked[entry] = self._inspector.now()
        ledger.max_acked = max(ledger.max_acked, entry)

    def failed(self, handle: Handle, index: int, error: BaseException) -> None:
        handle.results[index] = "failed"
        ledger = self.facts.ledger(handle.ledger)
        for checker in self.checkers:
            checker.append_failed(ledger, handle, index, error)

    def force_returned(self, handle: Handle, head: EntryId) -> None:
        ledger = self.facts.ledger(handle.ledger)
        ledger.forced = max(ledger.forced, head)
        for checker in self.checkers:
            checker.force_returned(ledger, handle, head)

    def lac_seen(self, ledger_id: LedgerId, who: str, before: EntryId, lac: EntryId) -> None:
        for checker in self.checkers:
            checker.lac_seen(self.facts.ledger(ledger_id), who, before, lac)

    def recovery_started(self, client: str, ledger_id: LedgerId) -> None:
        ledger = self.facts.ledger(ledger_id)
        if any(count and lid == ledger_id and name != client for (name, lid), count in self.facts.recovering.items()):
            self.report.situation("recovery started by a second client")
        ledger.recovery_attempts += 1
        for checker in self.checkers:
            checker.recovery_started(ledger, client)
        self._count(self.facts.recovering, client, ledger_id, 1)

    def watch_writes(self, store: TreeStore, client: str) -> None:
        """Observe when a client sends the change that closes a ledger, which may be long before the change happens."""
        write = store.write_ledger

        async def watched(ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned:
            if metadata.closed:
                for checker in self.checkers:
                    checker.close_requested(self.facts.ledger(ledger_id), client)
            return await write(ledger_id, metadata, version)

        store.write_ledger = watched  # type: ignore[method-assign]  # of this store only

    def recovery_ended(self, client: str, ledger_id: LedgerId, last: EntryId | None, length: int | None) -> None:
        """Note the end of a client's call of recover; `last` is None if it failed."""
        self._count(self.facts.recovering, client, ledger_id, -1)
        if last is not None:
            for checker in self.checkers:
                checker.recovered(self.facts.ledger(ledger_id), client, last, length or 0)

    def repair(self, client: str, ledger_id: LedgerId, begins: bool) -> None:
        self._count(self.facts.repairing, client, ledger_id, 1 if begins else -1)
        self.facts.ledger(ledger_id).repaired = True

    def _count(self, counts: dict[tuple[str, LedgerId], int], client: str, ledger_id: LedgerId, change: int) -> None:
        counts[client, ledger_id] = counts.get((client, ledger_id), 0) + change

    def read_done(self, ledger_id: LedgerId, result: ReadResult) -> None:
        for checker in self.checkers:
            checker.read_done(self.facts.ledger(ledger_id), result)

    def check_settled(self) -> None:
        """Check what must hold long after the faults were healed and the last entry was submitted."""
        self.progress.check_settled()
        self.order.check_settled()

    def life_ended(self) -> None:
        for checker in self.checkers:
            checker.life_ended()


def merge(into: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the counts of `more` to `into`."""
    for key, count in more.items():
        into[key] = into.get(key, 0) + count


def describe(error: BaseException) -> str:
    """Return the class name of an error of Buckram, and any other error with its text."""
    return type(error).__name__ if isinstance(error, BuckramError) else repr(error)
