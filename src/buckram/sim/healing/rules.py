"""The checkers of self-healing: changes of ledgers, marks, locks and switches are judged when they happen.

They see the metadata store and the disks, never the state inside a worker. Not here: the end of a life (`ending.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from buckram.core.healing.records import TreePaths, ledger_of, parse_holder
from buckram.core.healing.status import Waiting, parse_waiting
from buckram.core.ledgers.metadata_codec import parse
from buckram.seams import KeyValue
from buckram.sim.engine.checkers.facts import fragment_of, members_of
from buckram.sim.engine.world import World
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

    def __init__(self, world: World, grace_s: float) -> None:
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

    def began(self, who: str, ledger: LedgerId) -> None:
        """A replicator begins to look at a ledger."""
        self.began_at[who, ledger] = self._now()

    def session_ends(self, who: str) -> None:
        """The store ends the session of a worker; it learns of that a little later."""
        for ledger in self.world.judge.facts.ledgers:
            if self.holds(who, ledger):
                self.lock_gone_at[ledger, who] = self._now()

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
                self._check_losses(parse_waiting(key, int(leaf), new.value))
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
            return
        self.report.situation("a mark was taken back")
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
        if bookie in self.lost or not entries:
            return set()
        found = self.world.judge._inspector.entries_on_disk(bookie, ledger, entries) or {}
        return {entry for entry, there in found.items() if there}

    def copies(self, ledger: LedgerId, entry: EntryId, members: tuple[BookieId, ...]) -> int:
        """How many of these have the entry."""
        return sum(bool(self.held(bookie, ledger, [entry])) for bookie in members)
