"""The checkers of self-healing: changes of ledgers, marks, locks and switches are judged when they happen.

They see the metadata store and the disks, never the state inside a worker. Not here: the end of a life (`ending.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from buckram.core.healing.records import EVERY_MEMBER, TreePaths, ledger_of, parse_delay, parse_holder, parse_mark
from buckram.core.healing.status import Waiting, parse_waiting
from buckram.core.ledgers.metadata_codec import parse
from buckram.errors import MalformedRecord
from buckram.seams import KeyValue
from buckram.sim.engine.checkers.facts import fragment_of, members_of
from buckram.sim.engine.inspection import WorldInspector
from buckram.sim.engine.world import World
from buckram.sim.healing.reasons import Reasons, entries_of
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState

REPLICATOR = "h"
AUDITOR = "a"
"""What the names of their hosts begin with."""
UNDER_WAY_S = 5.0
"""A request that was sent before something changed may be carried out so much later."""

STOPPED_S = 1.0
"""So long after the end of its session a worker may still change something."""


@dataclass(slots=True)
class Written:
    """What writers were told of one ledger."""

    acked: dict[EntryId, bytes] = field(default_factory=dict)
    last_append_at: float = 0.0
    """When its writer last did anything."""
    writer_lives: bool = True


class Rules:
    """An engine.metadata.MetadataObserver."""

    def __init__(self, world: World, grace_s: float, delay_s: float) -> None:
        self.world, self.report, self._now = world, world.report, world.loop.time
        self.paths, self._grace_s = TreePaths(""), grace_s
        self.written: dict[LedgerId, Written] = {}
        self.lost: dict[BookieId, float] = {}
        """Bookies that are lost for good, since when."""
        self.lock_gone_at: dict[tuple[LedgerId, str], float] = {}
        self.marked_at: dict[LedgerId, float] = {}
        self.began_at: dict[tuple[str, LedgerId], float] = {}
        self.disabled_at: float | None = None
        self.brake_at: float | None = None
        self.gone: dict[LedgerId, float] = {}
        """Ledgers of which every bookie denies all entries, since when."""
        self.auditing = 0
        """How many audits read the ledgers now."""
        self.hidden: dict[BookieId, float] = {}
        """Bookies that no replicator can reach, since when."""
        self.born_at: dict[LedgerId, float] = {}
        self.steady: set[BookieId] = set()
        """Lost bookies that had been there without a break for long."""
        self.delays: list[tuple[float, float]] = [(-1e9, delay_s)]
        """Since when which delay holds."""
        self.audit_asked_at = -1e9
        """When the delay was written anew with the value that it had: lost bookies are waited for no longer."""
        self.leaving: set[BookieId] = set()
        """Bookies that an operator takes out, or ever took."""
        self.unreadable: dict[LedgerId, tuple[float, float]] = {}
        """Since when, and until when, nobody could read a mark."""
        self.reasons = Reasons(self)
        self._inspector = WorldInspector(world)
        self._disks: dict[tuple[BookieId, LedgerId], list[tuple[EntryId, int]]] = {}
        self._disks_at = -1

    def began(self, who: str, ledger: LedgerId) -> None:
        """A replicator begins to look at a ledger."""
        self.began_at[who, ledger] = self._now()

    def session_ends(self, who: str) -> None:
        """The store ends the session of a worker; it learns of that a little later."""
        for ledger in self.world.judge.facts.ledgers:
            if self.holds(who, ledger):
                self.lock_gone_at[ledger, who] = self._now()

    # -- what a life tells

    def bookie_lost(self, bookie: BookieId, steady: bool) -> None:
        self.lost[bookie] = self._now()
        if steady:
            self.steady.add(bookie)

    def decommissioned(self, bookie: BookieId) -> None:
        """The operator's command says that nothing depends on the bookie any more."""
        self.report.situation("a bookie was decommissioned")
        for ledger, facts in self.world.judge.facts.ledgers.items():
            named = facts.metadata is not None and any(bookie in f.ensemble for f in facts.metadata.fragments)
            self.report.check("decommission", not named, "ledger {} names {}, which is out", ledger, bookie)

    def there(self) -> list[LedgerId]:
        """Ledgers that have been there for a while."""
        facts = self.world.judge.facts.ledgers
        return [
            one
            for one, at in self.born_at.items()
            if self._now() - at > UNDER_WAY_S and one in facts and facts[one].metadata is not None
        ]

    def audited(self, who: str, before: list[LedgerId], seen: int) -> None:
        """An audit came to its end: it must have seen every ledger that was there all the time."""
        stayed = [one for one in before if self.world.judge.facts.ledger(one).metadata is not None]
        self.report.check("H10", seen >= len(stayed), "{} audited {} of {} ledgers", who, seen, len(stayed))

    def is_marked(self, ledger: LedgerId) -> bool:
        return self.world.metadata.peek(self.paths.mark(ledger)) is not None

    def has_entries(self, ledger: LedgerId) -> bool:
        metadata = self.world.judge.facts.ledger(ledger).metadata
        return metadata is not None and metadata.last_entry is not None and metadata.last_entry >= 0

    # -- metadata.MetadataObserver

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        leaf = key.rpartition("/")[2]
        if key.startswith(self.paths.locks + "/"):
            self._lock_changed(who, ledger_of(leaf), old, new)
        elif key.startswith(self.paths.marks + "/"):
            self._mark_changed(who, ledger_of(leaf), old, new)
        elif key == self.paths.disabled:
            self.disabled_at = None if new is None else self._now()
        elif key.endswith("/healing/brake"):
            on = new is not None and new.value not in (b"", b"{}")
            if on:
                self.report.situation("the brake was on")
            self.brake_at = self._now() if on else None
        elif "/healing/waiting/" in key:
            if new is not None:
                waiting = parse_waiting(key, int(leaf), new.value)
                self._check_losses(waiting)
                self.reasons.said(waiting)
        elif key == self.paths.delay and new is not None:
            if old is not None and old.value == new.value:
                self.audit_asked_at = self._now()
            self.delays.append((self._now(), parse_delay(key, new.value)))
        elif key.endswith("/healing/leaving") and new is not None:
            self.leaving |= set(json.loads(new.value)["bookies"])
        elif old is None and new is not None and (born := self.world.stores.layout.ledger_of(key)) is not None:
            self.born_at[born] = self._now()
        elif who.startswith(REPLICATOR) and old is not None and new is not None:
            ledger = self.world.stores.layout.ledger_of(key)
            if ledger is not None:
                self._ledger_changed(who, ledger, parse(old.value), parse(new.value))

    def key_conflict(self, who: str, key: str) -> None: ...
    def reply_lost(self, who: str, key: str) -> None: ...
    def unread_version(self, who: str, key: str, version: int) -> None: ...

    # -- marks and locks

    def _lock_changed(self, who: str, ledger: LedgerId | None, old: KeyValue | None, new: KeyValue | None) -> None:
        if ledger is None:
            return
        if new is None:
            if old is not None:
                self.lock_gone_at[ledger, parse_holder(old.value)] = self._now()
            return
        now = self._now()
        for name, since in (("H9", self.disabled_at), ("brake", self.brake_at)):
            self.report.check(
                name,
                since is None or now - since < UNDER_WAY_S,
                "{} takes ledger {} although that was forbidden {:.1f} s ago",
                who,
                ledger,
                now - (since or 0.0),
            )

    def _mark_changed(self, who: str, ledger: LedgerId | None, old: KeyValue | None, new: KeyValue | None) -> None:
        if ledger is None:
            return
        if new is not None:
            if old is not None:
                self.report.situation("a mark was made anew")
            self.marked_at[ledger] = self._now()
            self._note_unreadable(ledger, new)
            if who.startswith(AUDITOR):
                self._check_delay(who, ledger, old, new)
            return
        if ledger in self.unreadable:
            self.unreadable[ledger] = self.unreadable[ledger][0], min(self._now(), self.unreadable[ledger][1])
        if not who.startswith(REPLICATOR):
            return  # an operator deletes one that nobody can read
        self.report.situation("a mark was taken back")
        if old is not None:
            self._check_unmarked(who, ledger, old)
        began, marked = self.began_at.get((who, ledger), -1.0), self.marked_at.get(ledger, 0.0)
        self.report.check(
            "H6",
            marked <= began,
            "{} deletes the mark of {} of {:.3f}, it looked at {:.3f}",
            who,
            ledger,
            marked,
            began,
        )

    def _note_unreadable(self, ledger: LedgerId, mark: KeyValue) -> None:
        try:
            parse_mark(self.paths.mark(ledger), ledger, mark.value, 0)
        except MalformedRecord:
            self.unreadable[ledger] = self._now(), 1e9

    def _check_delay(self, who: str, ledger: LedgerId, old: KeyValue | None, new: KeyValue) -> None:
        """A bookie that had been there is waited for as long as the delay says, unless an operator takes it out."""
        key, now = self.paths.mark(ledger), self._now()
        before = parse_mark(key, ledger, old.value, 0).replicas if old is not None else ()
        since = [at for at, _ in self.delays if at < now - UNDER_WAY_S][-1]
        least_s = min(delay for at, delay in self.delays if at >= since)
        for bookie in parse_mark(key, ledger, new.value, 0).replicas:
            if bookie in before or bookie not in self.steady or bookie in self.leaving:
                continue
            if self.audit_asked_at >= self.lost[bookie]:
                continue
            away_s = now - self.lost[bookie]
            text = "{} marks ledger {} for {} after {:.1f} s, the delay is {}"
            self.report.check("delay", away_s >= least_s, text, who, ledger, bookie, away_s, least_s)

    def _check_unmarked(self, who: str, ledger: LedgerId, old: KeyValue) -> None:
        """L12: whoever takes a mark back leaves nothing undone that it asked for."""
        key, metadata = self.paths.mark(ledger), self.world.judge.facts.ledger(ledger).metadata
        try:
            mark = parse_mark(key, ledger, old.value, 0)
        except MalformedRecord:
            self.report.check("H6", False, "{} deletes the mark of {} that it cannot read", who, ledger)
            return
        if metadata is None:
            return
        named = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        left = sorted(bookie for bookie in mark.replicas if bookie in named and bookie in self.lost)
        self.report.check("L12", not left, "{} deletes the mark of {}, which still names {}", who, ledger, left)
        began = self.began_at.get((who, ledger), -1.0)
        if (mark.replicas and EVERY_MEMBER not in mark.replicas) or not metadata.closed:
            return
        silent = [b for b in sorted(named) if not self._answered_since(b, began) and b not in self.lost]
        text = "{} says that the copies of ledger {} are good, and {} did not answer"
        self.report.check("H7", not silent or not self.has_entries(ledger), text, who, ledger, silent)
        gone = self.gone.get(ledger, began) < began and ledger not in self.unreadable
        self.report.check("H7", not gone, text, who, ledger, "any member")

    def _answered_since(self, bookie: BookieId, began: float) -> bool:
        machine = self.world.machines[bookie]
        if self.world._files is not None:
            return True  # workers may have read its files without asking it
        if self.hidden.get(bookie, began) < began:
            return False
        return machine.running or not self.world.steady(bookie, began)

    def _check_end(self, who: str, ledger: LedgerId, new: LedgerMetadata) -> None:
        """H8: an end is not below what the last fragment says, and what lies below it has Qa copies on disks."""
        last = new.last_entry if new.last_entry is not None else -1
        first = new.last_fragment.first_entry
        self.report.check("H8", last >= first - 1, "{} ends ledger {} at {}, below {}", who, ledger, last, first)
        written = self.written.get(ledger)
        acked = max(written.acked, default=-1) if written is not None else -1
        self.report.check("H8", last >= acked, "{} ends ledger {} at {}, acknowledged: {}", who, ledger, last, acked)
        for entry, members in entries_of(new):
            copies = sum(bool(self._on_disk(bookie, ledger, [entry])) for bookie in members)
            text = "{} ends ledger {} while entry {} has {} copies on {}"
            holds = copies >= new.ack_quorum or any(bookie in self.lost for bookie in members)
            self.report.check("H8", holds, text, who, ledger, entry, copies, members)

    def _check_losses(self, waiting: Waiting) -> None:
        """H7: an entry is called lost only if no member that may come back has it."""
        metadata = self.world.judge.facts.ledger(waiting.ledger).metadata
        if metadata is None or not metadata.closed:
            return
        for first, last in waiting.lost:
            for entry in range(first, last + 1):
                left = self.copies(waiting.ledger, entry, members_of(fragment_of(metadata, entry), metadata, entry))
                text = "{} says that entry {} of ledger {} is lost; there are {} copies"
                self.report.check("H7", not left, text, waiting.worker, entry, waiting.ledger, left)

    # -- ledgers

    def holds(self, who: str, ledger: LedgerId) -> bool:
        """Whether the worker has the ledger's lock now."""
        found = self.world.metadata.peek(self.paths.lock(ledger))
        return found is not None and parse_holder(found.value) == who

    def _holds_lock(self, who: str, ledger: LedgerId) -> bool:
        if self.holds(who, ledger):
            return True
        gone = self.lock_gone_at.get((ledger, who))
        return gone is not None and self._now() - gone < STOPPED_S

    def _ledger_changed(self, who: str, ledger: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.state is not LedgerState.CLOSED and new.state is LedgerState.CLOSED:
            self._check_end(who, ledger, new)
        self.report.check("H5", self._holds_lock(who, ledger), "{} changes ledger {} without its lock", who, ledger)
        for fragment in new.fragments:
            twice = len(set(fragment.ensemble)) < len(fragment.ensemble)
            self.report.check("H4", not twice, "{} made {} of ledger {}", who, fragment.ensemble, ledger)
        if old.state is LedgerState.OPEN and new.state is not LedgerState.OPEN:
            self.report.situation("a ledger was recovered by healing")
            written = self.written.get(ledger)
            if written is not None and written.writer_lives:
                still_s = self._now() - written.last_append_at
                self.report.check(
                    "H2", still_s >= self._grace_s, "{} ends ledger {} after {:.1f} s", who, ledger, still_s
                )
        if old.state is not new.state or not old.closed:
            if old.state is new.state is LedgerState.OPEN:
                grows = old.last_fragment != new.last_fragment
                self.report.check("H2", not grows, "{} changes the open fragment of ledger {}", who, ledger)
                self._check_replaced(who, ledger, old, new)
            return
        self._check_replaced(who, ledger, old, new)

    def _check_replaced(self, who: str, ledger: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        self.report.situation("a member was replaced")
        same = (
            [f.first_entry for f in old.fragments] == [f.first_entry for f in new.fragments]
            and (old.ensemble_size, old.write_quorum, old.ack_quorum, old.state, old.password, old.digest_type)
            == (new.ensemble_size, new.write_quorum, new.ack_quorum, new.state, new.password, new.digest_type)
            and (old.last_entry, old.length, old.custom_metadata) == (new.last_entry, new.length, new.custom_metadata)
        )
        self.report.check("H3", same, "{} changes more than members of ledger {}: {} to {}", who, ledger, old, new)
        ends = [f.first_entry - 1 for f in new.fragments[1:]] + [-1 if new.last_entry is None else new.last_entry]
        for fragment, end in zip(new.fragments, ends, strict=True):
            before = fragment_of(old, fragment.first_entry)
            if before == fragment:
                continue
            entries = range(fragment.first_entry, end + 1)
            for bookie in [b for b in fragment.ensemble if b not in before.ensemble]:
                needed = [e for e in entries if bookie in members_of(fragment, new, e)]
                held = self.held(bookie, ledger, needed)
                missing = [e for e in needed if e not in held]
                for name in ("H1", "M7"):
                    text = "{} put {} into ledger {} although a loss of power would leave it without {}"
                    self.report.check(name, not missing, text, who, bookie, ledger, missing)
            for entry in entries:
                was = self.copies(ledger, entry, members_of(before, old, entry))
                now = self.copies(ledger, entry, members_of(fragment, new, entry))
                self.report.check(
                    "M7", now >= was, "{} left entry {} of ledger {} with {} of {} copies", who, entry, ledger, now, was
                )

    def held(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId]) -> set[EntryId]:
        """Which of these the bookie would have after a loss of power; none if it is lost for good."""
        if bookie in self.lost or ledger in self.gone or not entries:
            return set()
        return self._on_disk(bookie, ledger, entries)

    def _on_disk(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId]) -> set[EntryId]:
        """A disk is opened once for each step of the life, whatever is asked of it: nothing changes within a step."""
        if self._disks_at != self.world.loop.steps:
            self._disks_at = self.world.loop.steps
            self._disks.clear()
        if (bookie, ledger) not in self._disks:
            self._disks[bookie, ledger] = self._inspector.runs_on_disk(bookie, ledger)
        runs = self._disks[bookie, ledger]
        return {entry for entry in entries if any(first <= entry < first + count for first, count in runs)}

    def copies(self, ledger: LedgerId, entry: EntryId, members: tuple[BookieId, ...]) -> int:
        """How many of these have the entry."""
        return sum(bool(self.held(bookie, ledger, [entry])) for bookie in members)
