"""The checkers of self-healing: changes of ledgers, marks, locks and switches are judged when they happen.

They see the metadata store and the disks, never the state inside a worker. Not here: the rules of marks and locks
(`marks.py`), of ledgers (`changes.py`) and of operators' commands (`asked.py`), and the end of a life (`ending.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from buckram.core.healing.absences import parse_attendance
from buckram.core.healing.records import TreePaths, ledger_of, parse_delay
from buckram.core.healing.status import parse_waiting
from buckram.core.ledgers.metadata_codec import parse
from buckram.metadata.records.incomplete_copies import BEHIND
from buckram.metadata.tree.layout import WISHES
from buckram.types import BookieId, EntryId, KeyValue, LedgerId
from simulator.engine.copies import Copies
from simulator.engine.healers import REPLICATOR
from simulator.engine.healing_watch import UNDER_WAY_S, Attempts
from simulator.engine.world import World
from simulator.healing.asked import Asked
from simulator.healing.changes import Changes
from simulator.healing.domains import Domains
from simulator.healing.marks import OPERATOR, Marks
from simulator.healing.reasons import Reasons

if TYPE_CHECKING:
    from simulator.healing.plan import HealingPlan


@dataclass(slots=True)
class Written:
    """The results that the writer of one ledger got."""

    acked: dict[EntryId, bytes] = field(default_factory=dict)
    """Entries that must survive: the acknowledged ones; with deferred sync, only the forced ones."""
    last_append_at: float = 0.0
    """Time of the writer's last action."""
    writer_lives: bool = True
    deferred: bool = False
    pending: dict[EntryId, bytes] = field(default_factory=dict)
    """All acknowledged entries, forced or not; for ledgers with deferred sync."""
    lease: str = ""
    """The key of the lease of the stream that the ledger belongs to."""


class Rules:
    """Checks the metadata changes of one life; an engine.metadata.MetadataObserver."""

    def __init__(self, world: World, plan: HealingPlan) -> None:
        self.world, self.report, self.now = world, world.report, world.loop.time
        self.paths = TreePaths("")
        self.written: dict[LedgerId, Written] = {}
        self.lost: dict[BookieId, float] = {}
        """Bookies that are lost for good, with the time of the loss."""
        self.began_at: dict[tuple[str, LedgerId], float] = {}
        self.up_since: dict[str, float] = {}
        """Time at which the present process of each host with a worker began to look at bookies."""
        self.disabled_at: float | None = None
        self.brake_at: float | None = None
        self.gone: dict[LedgerId, float] = {}
        """Ledgers of which every bookie denies all entries, with the time since which they do."""
        self.auditing = 0
        """Number of audits that are reading the ledgers now."""
        self.hidden: dict[BookieId, float] = {}
        """Bookies that no replicator can reach, with the time since which it is so."""
        self.born_at: dict[LedgerId, float] = {}
        self.steady: set[BookieId] = set()
        """Lost bookies that had been undisturbed for some time before."""
        self.delays: list[tuple[float, float]] = [(-1e9, plan.config.lost_bookie_delay_s)]
        """The delays for lost bookies, each with the time since which it holds."""
        self.audit_asked_at = -1e9
        """Time at which the delay was last written with the same value, which ends the wait for lost bookies."""
        self._attempts = Attempts(world)
        self.copies = Copies(world, lambda bookie, ledger: bookie in self.lost or ledger in self.gone)
        self.marks = Marks(self)
        self.changes = Changes(self, plan.config.open_ledger_grace_s)
        self.asked = Asked(self)
        self.domains = Domains(self, plan.cluster)
        self.reasons = Reasons(self)
        world.judge.facts.unplaced = self._unplaced

    # -- what a life tells

    def began(self, who: str, ledger: LedgerId) -> None:
        """Note that a replicator begins to look at a ledger."""
        self.began_at[who, ledger] = self.now()

    def _unplaced(self, who: str, bookie: BookieId) -> bool:
        gone_at = self.lost.get(bookie)
        return gone_at is not None and gone_at < self.up_since.get(who, self.now())

    def came_up(self, who: str) -> None:
        """Note that the process of a host with a worker begins to look at bookies."""
        self.up_since[who] = self.now()

    def process_ended(self, who: str) -> None:
        """End the attempts of a dead process, a moment later."""
        self._attempts.process_ended(who)

    def session_ends(self, who: str) -> None:
        """Note that the store ended a worker's session, and with it its locks; the worker learns of it later."""
        for ledger in self.world.judge.facts.ledgers:
            if self.marks.holds(who, ledger):
                self.marks.lock_gone_at[ledger, who] = self.now()

    def bookie_lost(self, bookie: BookieId, steady: bool) -> None:
        self.lost[bookie] = self.now()
        if steady:
            self.steady.add(bookie)

    def there(self) -> list[LedgerId]:
        """Return the ledgers that have existed for a while."""
        facts = self.world.judge.facts.ledgers
        return [
            one
            for one, at in self.born_at.items()
            if self.now() - at > UNDER_WAY_S and one in facts and facts[one].metadata is not None
        ]

    def audited(self, who: str, before: list[LedgerId], seen: int) -> None:
        """Check that a finished audit has seen every ledger that existed all the time (H10)."""
        stayed = [one for one in before if self.world.judge.facts.ledger(one).metadata is not None]
        self.report.check("H10", seen >= len(stayed), "{} audited {} of {} ledgers", who, seen, len(stayed))

    def is_marked(self, ledger: LedgerId) -> bool:
        return self.world.metadata.peek(self.paths.mark(ledger)) is not None

    def has_entries(self, ledger: LedgerId) -> bool:
        metadata = self.world.judge.facts.ledger(ledger).metadata
        return metadata is not None and metadata.last_entry is not None and metadata.last_entry >= 0

    def naming(self, bookie: BookieId) -> list[LedgerId]:
        """Return the ledgers whose metadata names the bookie now."""
        return [
            ledger
            for ledger, facts in self.world.judge.facts.ledgers.items()
            if facts.metadata is not None and any(bookie in f.ensemble for f in facts.metadata.fragments)
        ]

    # -- metadata.MetadataObserver

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        leaf = key.rpartition("/")[2]
        if key.startswith(self.paths.locks + "/"):
            self.marks.lock_changed(who, ledger_of(leaf), old, new)
        elif key.startswith(self.paths.marks + "/"):
            self.marks.mark_changed(who, ledger_of(leaf), old, new)
        elif key == self.paths.disabled:
            self.disabled_at = None if new is None else self.now()
        elif key.endswith("/healing/brake"):
            on = new is not None and new.value not in (b"", b"{}")
            if on:
                self.report.situation("the brake was on")
            self.brake_at = self.now() if on else None
        elif key.endswith("/healing/proceed"):
            self.domains.proceeds(new)
        elif "/healing/waiting/" in key:
            if new is not None:
                waiting = parse_waiting(key, int(leaf), new.value)
                self.marks.check_losses(waiting)
                self.reasons.said(waiting)
        elif f"/{BEHIND}/" in key:
            if new is not None:
                self.report.situation("a client noted a ledger")
            elif old is not None:
                self.report.situation("a note was taken back")
        elif key.endswith("/healing/attendance"):
            if new is not None and parse_attendance(key, new.value).unverified:
                self.report.situation("a bookie was away and is looked at")
        elif key == self.paths.delay and new is not None:
            if old is not None and old.value == new.value:
                self.audit_asked_at = self.now()
            self.delays.append((self.now(), parse_delay(key, new.value)))
        elif f"/{WISHES}/" in key:
            self.asked.wish_changed(who, leaf, key, new)
        elif (ledger := self.world.stores.layout.ledger_of(key)) is not None:
            if old is None:
                self.born_at[ledger] = self.now()
            elif new is not None and who.startswith((REPLICATOR, OPERATOR)):
                self.changes.ledger_changed(who, ledger, parse(old.value), parse(new.value))
        else:
            self.domains.key_changed(key, new)

    def key_conflict(self, who: str, key: str) -> None: ...
    def reply_lost(self, who: str, key: str) -> None: ...
    def unread_version(self, who: str, key: str, version: int) -> None: ...
