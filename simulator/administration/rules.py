"""The rules of administration that are judged when something happens: changes of metadata, and deletions by bookies.

They see the metadata store and the disks, never the state inside a command. Not here: what status says (`words.py`),
and the end of a life (`ending.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from buckram.core.cluster.store_history import parse_history
from buckram.core.healing.operator_requests import NOTHING, OperatorRequest, parse_wish
from buckram.core.healing.records import TreePaths, ledger_of
from buckram.core.ledgers.metadata_codec import parse
from buckram.metadata.tree.layout import WISHES
from buckram.types import BookieId, EntryId, KeyValue, LedgerId, LedgerMetadata
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import LedgerFacts, entries_of
from simulator.engine.checkers.replaced import check_replaced
from simulator.engine.copies import Copies
from simulator.engine.healers import REPLICATOR
from simulator.engine.healing_watch import UNDER_WAY_S, Attempts
from simulator.engine.world import World

OPERATOR = "o"
"""First letter of the hosts of administrators."""
ANSWERED_S = 1.0
"""Time between the last look of a command and its answer, seconds."""
FOLLOWED_S = 25.0
"""Time within which everybody has learned of a wish for a bookie, seconds."""
WRITABLE_S = 5.0
"""Time after which clients count with a bookie that came back, seconds."""
TWIN = "twin of "
"""Beginning of the host of a process that has a copy of a bookie's directory."""


@dataclass(slots=True)
class Written:
    """What the clients of one ledger were told."""

    acked: dict[EntryId, bytes] = field(default_factory=dict)
    acked_at: dict[EntryId, float] = field(default_factory=dict)
    writer_lives: bool = True
    delete_asked: bool = False
    deleted: bool = False
    """True if a deletion was acknowledged."""
    deleted_at: float = 0.0
    given_up: dict[EntryId, bytes] = field(default_factory=dict)
    """Entries that a restore gave up."""
    lost: bool = False
    """True if a restore gave the ledger up: the backup does not know it, and it was not salvaged."""


class Rules:
    """Checks the metadata changes of one life; an engine.metadata.MetadataObserver."""

    def __init__(self, world: World) -> None:
        self.world, self.report, self.now = world, world.report, world.loop.time
        self.paths = TreePaths("")
        self.written: dict[LedgerId, Written] = {}
        self.wishes: dict[BookieId, OperatorRequest] = {}
        self.readonly_since: dict[BookieId, float] = {}
        """Bookies that an operator has made read-only, or drains, with the time since which."""
        self.registered: dict[BookieId, float] = {}
        """The bookies that are registered, with the time since which they are."""
        self.registrants: dict[BookieId, str] = {}
        """The process that registered each bookie last."""
        self.cookies: dict[BookieId, float] = {}
        """The bookies that have a cookie, with the time since which."""
        self.named_since: dict[tuple[LedgerId, BookieId], float] = {}
        self.marked: dict[LedgerId, float] = {}
        """The ledgers that are marked, with the time since which."""
        self.told_out: set[BookieId] = set()
        """Bookies that an operator told to be out, ever."""
        self.retired: dict[BookieId, float] = {}
        """Bookies that left the cluster for good, or whose disk was replaced, with the time."""
        self.unaccepted_at: float | None = None
        """Time since which the metadata wait to be accepted; None: they are accepted."""
        self.history_at = 0.0
        """Time of the last change of the history."""
        self.moving = False
        """True while there are two metadata stores, of which one is left."""
        self.auditing = 0
        self._rests: dict[str, tuple[BookieId, float]] = {}
        """The bookie and the end of each maintenance, by its id."""
        self._attempts = Attempts(world)
        self.copies = Copies(world, lambda bookie, ledger: False)
        world.judge.checkers.append(Collected(self))

    @property
    def restorers(self) -> set[str]:
        """Return the processes that put metadata back: their changes are no client's."""
        return self.world.judge.facts.restorers

    # -- as healing_watch.Audits

    def began(self, who: str, ledger: LedgerId) -> None: ...
    def there(self) -> list[LedgerId]:
        return []

    def audited(self, who: str, before: list[LedgerId], seen: int) -> None: ...
    def came_up(self, who: str) -> None: ...
    def process_ended(self, who: str) -> None:
        self._attempts.process_ended(who)

    # -- what is known

    def metadata(self, ledger: LedgerId) -> LedgerMetadata | None:
        facts = self.world.judge.facts.ledgers.get(ledger)
        return None if facts is None else facts.metadata

    def naming(self, bookie: BookieId, for_s: float = 0.0) -> list[LedgerId]:
        """Return the ledgers that name the bookie, and have done so for a while."""
        return [
            ledger for (ledger, one), since in self.named_since.items() if one == bookie and self.now() - since >= for_s
        ]

    def lacking(self, ledger: LedgerId, apart_from: Collection[BookieId] = ()) -> dict[BookieId, list[EntryId]]:
        """Return the members of a closed ledger that lack copies on their disks, or are gone, each with the entries.

        Nothing is said of one in whose place a twin is registered, which writes to another disk.
        """
        metadata = self.metadata(ledger)
        found: dict[BookieId, list[EntryId]] = {}
        if metadata is None or not metadata.closed:
            return found
        placed: dict[BookieId, list[EntryId]] = {}
        for entry, members in entries_of(metadata):
            for bookie in members:
                placed.setdefault(bookie, []).append(entry)
        for bookie, entries in placed.items():
            if bookie in apart_from or self.is_twin_registered(bookie):
                continue
            held = self.copies.on_disk(bookie, ledger, entries) if bookie in self.world.machines else set()
            if missing := [entry for entry in entries if entry not in held]:
                found[bookie] = missing
        return found

    def is_twin_registered(self, bookie: BookieId) -> bool:
        """Return whether a process of another copy of the bookie's directory is registered in its place."""
        host = f"{TWIN}{bookie}"
        twin = self.world.processes.get(host)
        return twin is not None and not twin.dead and self.registrants.get(bookie) == host

    def is_out(self, bookie: BookieId, situation: str) -> None:
        """Check that no ledger names a bookie after a command reported that nothing depends on it."""
        named = self.naming(bookie, ANSWERED_S)
        self.report.check("departure", not named, "{}: ledgers {} name {}, which is out", situation, named, bookie)

    # -- metadata.MetadataObserver

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        layout = self.world.stores.layout
        folder, _, leaf = key.rpartition("/")
        self._check_waits(who, key)
        if folder in (layout.registrations(readonly=False), layout.registrations(readonly=True)):
            self._registration(leaf)
            if new is not None:
                self.registrants[leaf] = who
        elif folder == layout.cookies:
            self._cookie_changed(who, leaf, new)
        elif f"/{WISHES}/" in key:
            self._wish_changed(who, leaf, key, new)
        elif key == layout.history:
            self._history_changed(key, new)
        elif key.startswith(self.paths.marks + "/"):
            self._marked(leaf, new)
        elif (ledger := layout.ledger_of(key)) is not None:
            self._ledger_changed(who, ledger, old, new)

    def key_conflict(self, who: str, key: str) -> None: ...
    def reply_lost(self, who: str, key: str) -> None: ...
    def unread_version(self, who: str, key: str, version: int) -> None: ...

    # -- parts

    def _registration(self, bookie: BookieId) -> None:
        layout, peek = self.world.stores.layout, self.world.metadata.peek
        there = any(peek(f"{layout.registrations(readonly=side)}/{bookie}") is not None for side in (False, True))
        if not there:
            self.registered.pop(bookie, None)
        else:
            self.registered.setdefault(bookie, self.now())

    def is_registered(self, bookie: BookieId) -> bool:
        """Return whether the store lists the bookie now: keys also go with sessions, of which nobody is told."""
        self._registration(bookie)
        return bookie in self.registered

    def _cookie_changed(self, who: str, bookie: BookieId, new: KeyValue | None) -> None:
        if new is not None:
            self.cookies.setdefault(bookie, self.now())
            return
        self.cookies.pop(bookie, None)
        if who in self.restorers:
            return
        self.world.cookie_deleted[bookie] = True
        named = self.naming(bookie, UNDER_WAY_S)
        text = "{} removes the cookie of {}, which ledgers {} name"
        self.report.check("departure", not named, text, who, bookie, named)
        machine = self.world.machines.get(bookie)
        asked = ":" in bookie  # no address is known of one whose id is a name, so nobody can ask it
        serves = asked and machine is not None and self.serves(bookie, 10.0) and bookie not in self.told_out
        self.report.check("answering", not serves, "{} removes the cookie of {}, which serves", who, bookie)
        if machine is not None and machine.process is not None and machine.process.paused:
            self.report.situation("a bookie was forgotten while it hung")

    def serves(self, bookie: BookieId, for_s: float) -> bool:
        """Return whether the bookie's process has run without any disturbance for so long."""
        machine, world = self.world.machines[bookie], self.world
        if not machine.running or not machine.ready or machine.process is None or machine.process.paused:
            return False
        return world.steady(bookie, self.now() - for_s) and world.steady(machine.host, self.now() - for_s)

    def _wish_changed(self, who: str, bookie: BookieId, key: str, new: KeyValue | None) -> None:
        wish = self.wishes[bookie] = parse_wish(key, new.value) if new is not None else NOTHING
        if wish.out:
            self.told_out.add(bookie)
        if wish.readonly or wish.leave:
            self.readonly_since.setdefault(bookie, self.now())
        else:
            self.readonly_since.pop(bookie, None)
        if wish.rest and wish.rest not in self._rests:
            self._rests[wish.rest] = bookie, self.now() + wish.rest_s
            self._check_gets_by(who, bookie)

    def _history_changed(self, key: str, new: KeyValue | None) -> None:
        accepted = new is None or parse_history(key, new.value).accepted
        self.history_at = self.now()
        if accepted:
            self.unaccepted_at = None
        elif self.unaccepted_at is None:
            self.unaccepted_at = self.now()

    def _marked(self, leaf: str, new: KeyValue | None) -> None:
        ledger = ledger_of(leaf)
        if ledger is None:
            return
        if new is None:
            self.marked.pop(ledger, None)
        else:
            self.marked.setdefault(ledger, self.now())

    def _ledger_changed(self, who: str, ledger: LedgerId, old: KeyValue | None, new: KeyValue | None) -> None:
        before = parse(old.value) if old is not None else None
        after = parse(new.value) if new is not None else None
        was = {b for f in before.fragments for b in f.ensemble} if before is not None else set()
        now = {b for f in after.fragments for b in f.ensemble} if after is not None else set()
        for bookie in was - now:
            self.named_since.pop((ledger, bookie), None)
        for bookie in sorted(now - was):
            self.named_since[ledger, bookie] = self.now()
            if who not in self.restorers and not who.startswith("v"):
                self._check_writable(who, ledger, bookie, len(now) if before is None else 0)
        if who in self.restorers or before is None or after is None or before.fragments == after.fragments:
            return
        went_back = any(b in self.world.machines and self.world.machines[b].device.went_back for b in was | now)
        if who.startswith((REPLICATOR, OPERATOR)) and before.closed and after.closed and not went_back:
            check_replaced(self.report, self.copies, who, ledger, before, after)

    def _check_writable(self, who: str, ledger: LedgerId, bookie: BookieId, size: int) -> None:
        """Check that a member may take copies. `size`: of the ensemble of a new ledger, which may begin with members
        that take no entries where too few do (M11).
        """
        world, since = self.world, self.readonly_since.get(bookie)
        if since is None or bookie not in world.machines or self._writable() < size:
            self.report.check("readonly", True)
            return
        asked_at = world.metadata.asked_at
        followed = asked_at - since > FOLLOWED_S and self.serves(bookie, FOLLOWED_S)
        knows = world.steady(who, asked_at - FOLLOWED_S) and world.steady("meta", asked_at - FOLLOWED_S)
        text = "{} puts ledger {} on {}, which an operator made read-only {:.1f} s before"
        wrong = followed and knows
        self.report.check("readonly", not wrong, text, who, ledger, bookie, asked_at - since)

    def _writable(self) -> int:
        """Return how many bookies have taken new entries for a while."""
        layout, peek = self.world.stores.layout, self.world.metadata.peek
        return sum(
            peek(f"{layout.registration(one, readonly=False)}") is not None
            and peek(f"{layout.registration(one, readonly=True)}") is None
            and self.serves(one, WRITABLE_S)
            for one in self.world.machines
        )

    def _check_waits(self, who: str, key: str) -> None:
        """Check that nobody but bookies and the command changes metadata that wait to be accepted."""
        bookies = who in self.world.machines or who.startswith("twin")
        if self.unaccepted_at is None or who in self.restorers or not who:
            return
        late = self.world.metadata.asked_at - self.unaccepted_at >= UNDER_WAY_S
        text = "{} changes {} of metadata that nobody has accepted"
        self.report.check("waiting", bookies or not late, text, who, key)

    def _check_gets_by(self, who: str, bookie: BookieId) -> None:
        """Check that a maintenance leaves each entry Qa copies when it begins.

        A member that was disturbed just now counts as there: whoever asked may have seen it.
        """
        world, now = self.world, self.now()
        steady = [one for one in world.machines.values() if world.steady(one.name, now - 15.0)]
        away = {one.name for one in steady if not one.running or not self.is_registered(one.name)}
        resting = {one for one, wish in self.wishes.items() if wish.rest and one != bookie}
        for ledger in self.naming(bookie, UNDER_WAY_S):
            metadata = self.metadata(ledger)
            if metadata is None or not metadata.closed:
                continue
            for entry, members in entries_of(metadata):
                if bookie not in members:
                    continue
                left = [one for one in members if one != bookie and one not in away and one not in resting]
                text = "{} lets {} rest, and entry {} of ledger {} has {} left of {}"
                enough = len(left) >= metadata.ack_quorum
                self.report.check("maintenance", enough, text, who, bookie, entry, ledger, left, members)

    def check_rests_ended(self) -> None:
        """Check that every maintenance has ended by itself, long after the last command."""
        for bookie, wish in self.wishes.items():
            over = not wish.rest or self._rests[wish.rest][1] > self.now() - FOLLOWED_S or bookie not in self.cookies
            self.report.check("maintenance", over, "{} rests for ever: {}", bookie, wish)

    def went_back(self) -> None:
        """Take over what the store says after a restore or a move."""
        self.named_since = {
            (ledger, bookie): self.now()
            for ledger, facts in self.world.judge.facts.ledgers.items()
            if facts.metadata is not None
            for fragment in facts.metadata.fragments
            for bookie in fragment.ensemble
        }


class Collected(Checker):
    """Judges what bookies delete (F17, as seen by an administrator)."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules.world.judge.facts, rules.report)
        self._rules = rules

    def deleted_by_bookie(self, ledger: LedgerFacts, bookie: BookieId) -> None:
        rules, now = self._rules, self._rules.now()
        waits = rules.unaccepted_at is not None and now - rules.unaccepted_at > UNDER_WAY_S
        text = "{} deletes ledger {} while a restore waits to be accepted"
        self.report.check("collected", not waits, text, bookie, ledger.ledger)
        if ledger.metadata is None:
            return
        since = rules.named_since.get((ledger.ledger, bookie))
        named = since is not None and now - since > UNDER_WAY_S
        text = "{} deletes its copies of ledger {}, which places them there since {:.1f} s"
        self.report.check("collected", not named, text, bookie, ledger.ledger, now - (since or now))
