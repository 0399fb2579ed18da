"""Recovery of a ledger that is not closed: the decisions of R2 to R7 (docs/reference/protocol.md, recovery).

Three machines are used one after the other, the last two side by side: `Fencing` collects the fencing answers,
`ForwardRead` decides entry by entry what is in the ledger, `WriteBack` brings what was found to Qa members of a private
ensemble. `Promises` collects promises of verified headers: all entries up to a LAC were acknowledged, so no ledger ends
below it (F19). A LAC counts if the writer's digest covers it: in the header of any entry (also one above the end that
was found, and one in a late fencing answer) and in a sealed explicit LAC. The presence of an entry promises nothing by
itself: it may never have been acknowledged.

Rules kept here: evidence by windows (F1, F13), reads only to the ensemble of R2 (F7), start clamped to F - 1 (F9), the
LAC of recovery adds frozen (F10), ensemble changes private until the close (F8), the length rule of 3.7 (S13).

Not here: reading entries and LACs, the metadata writes (R1, R7), messages and timers (`client/maintain/recover.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from buckram.core.ledgers.answers import Answer, CoverageTally, Negative, Positive, Unknown, lasting
from buckram.core.ledgers.quorum import Quorum, SpreadRule
from buckram.core.ledgers.reading import Race, Strategy
from buckram.errors import BuckramError, LoginRequired, RecoveryFailed, Unauthorized, check
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerId, LedgerMetadata, Position


def quorum_of(metadata: LedgerMetadata) -> Quorum:
    return Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


class Fencing:
    """R3 and R4: fence the last fragment's ensemble and find where to start reading.

    An answer is Positive (with the bookie's last entry), Negative (fenced, holds nothing) or Unknown. A damaged
    answer counts as fenced with an unknown LAC.
    """

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.ensemble = metadata.last_fragment.ensemble
        self.first = metadata.last_fragment.first_entry
        self._tally = CoverageTally(quorum_of(metadata))
        self._lac = NO_ENTRY
        self._last_error: BuckramError | None = None

    def answered(self, position: Position, answer: Answer[Entry]) -> bool:
        """Take one answer. Returns True once every window is covered.

        Raises Unauthorized, LoginRequired or RecoveryFailed.
        """
        if position in self._tally.answered:
            return self.covered
        self._tally.add(position, answer)
        if isinstance(answer, Positive):
            self._lac = max(self._lac, answer.value.last_add_confirmed)
        elif isinstance(answer, Unknown):
            if isinstance(answer.error, Unauthorized):
                raise answer.error
            self._last_error = lasting(self._last_error, answer.error)
        if not self.covered and self._tally.complete:
            if isinstance(self._last_error, LoginRequired):
                raise self._last_error
            raise RecoveryFailed(
                self.ledger_id,
                f"too few bookies of {', '.join(self.ensemble)} could be fenced ({self._last_error}): "
                "start them and recover again",
            ) from self._last_error
        return self.covered

    @property
    def covered(self) -> bool:
        return self._tally.covered

    @property
    def start(self) -> EntryId:
        """Return the entry up to which everything is committed: the largest LAC found, and at least F - 1 (F9)."""
        return max(self._lac, self.first - 1)


class ForwardRead:
    """R5: reads entries from `start` + 1 on until one is certainly absent.

    Several entries are read ahead, but decided in order: an absent entry makes all after it irrelevant, and an
    undecided one ends the attempt only when all before it are decided. The entry that would end the ledger is first
    `denied`: a copy from a member that has not answered yet still wins, until all have answered or `give_up` (F18).
    """

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata, start: EntryId) -> None:
        self.ledger_id = ledger_id
        self.finished = False
        """True once an absent entry was found: the last entry of the ledger is the one before it."""
        self._quorum = quorum_of(metadata)
        self._ensemble = metadata.last_fragment.ensemble
        self._next_read = start + 1
        self._next_taken = start + 1
        self._outcomes: dict[EntryId, Answer[Entry]] = {}
        self._races: dict[EntryId, Race[Entry]] = {}
        check(start >= metadata.last_fragment.first_entry - 1, "F9", f"start {start} below the last fragment")

    def next_reads(self, ahead: int) -> list[EntryId]:
        """Return the ids to read now, so that `ahead` entries beyond those taken are read or being read."""
        if self.finished:
            return []
        last = self._next_taken + ahead
        reads = list(range(self._next_read, last))
        self._next_read = max(self._next_read, last)
        return reads

    def race(self, entry: EntryId, order: Mapping[BookieId, int]) -> Race[Entry]:
        """Return the read of one entry from its write set in the frozen ensemble (F7); `order` ranks the bookies."""
        members = [self._ensemble[position] for position in self._quorum.write_set(entry)]
        members.sort(key=lambda bookie: order.get(bookie, 0))
        race: Race[Entry] = Race(members, Strategy.WIDENING, enough_negatives=self._quorum.coverage, patient=True)
        self._races[entry] = race
        return race

    def decided(self, entry: EntryId, outcome: Answer[Entry]) -> None:
        """Record how the race of `entry` ended."""
        self._races.pop(entry, None)
        if entry >= self._next_taken and not self.finished and not isinstance(self._outcomes.get(entry), Positive):
            self._outcomes[entry] = outcome

    def shown(self, entry: Entry) -> None:
        """Record a verified copy from a fencing answer, which counts like one that was read."""
        self.decided(entry.entry_id, Positive(entry))

    @property
    def end(self) -> EntryId:
        """Return the last entry that was taken, which is the ledger's last one once `finished`."""
        return self._next_taken - 1

    @property
    def denied(self) -> bool:
        """Return whether enough members deny the next entry to end the ledger, while others have not answered."""
        race = self._races.get(self._next_taken)
        return not self.finished and race is not None and race.denied

    def give_up(self) -> None:
        """Stop waiting for members that have not answered: a denied entry is absent."""
        race = self._races.get(self._next_taken)
        if race is not None:
            race.give_up()
            if race.outcome is not None:
                self.decided(self._next_taken, race.outcome)

    def take(self) -> list[Entry]:
        """Return entries found since the last call, in order and without gaps. RecoveryFailed if one is undecided."""
        found: list[Entry] = []
        while not self.finished and (outcome := self._outcomes.pop(self._next_taken, None)) is not None:
            if isinstance(outcome, Negative):
                self.finished = True
                self._outcomes.clear()
            elif isinstance(outcome, Positive):
                check(outcome.value.entry_id == self._next_taken, "S6", "recovered out of order")
                found.append(outcome.value)
                self._next_taken += 1
            elif isinstance(outcome.error, Unauthorized | LoginRequired):
                raise outcome.error
            elif not found:
                raise RecoveryFailed(
                    self.ledger_id,
                    f"entry {self._next_taken} is neither found nor certainly absent ({outcome.error}): "
                    "start its bookies and recover again",
                ) from outcome.error
            else:
                # Return what is certain first; the next call raises for this one.
                self._outcomes[self._next_taken] = outcome
                break
        return found


@dataclass(slots=True)
class _Pending:
    entry: Entry
    acked: dict[int, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resend:
    """Send these entries, in order, to the bookie at a position."""

    position: Position
    bookie: BookieId
    entries: tuple[Entry, ...]


class WriteBack:
    """R6: writes back what was found, until Qa members of the current private ensemble have it, in id order, in as many
    fault domains as the rules of `spread` require (M5).

    A failed bookie is never written to again in this attempt. Its position gets a replacement (`replaced`) or
    stays absent; an entry that can no longer reach Qa members ends the attempt.
    """

    def __init__(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, start: EntryId, spread: Sequence[SpreadRule] = ()
    ) -> None:
        self.ledger_id = ledger_id
        self._spread = tuple(spread)
        self.quorum = quorum_of(metadata)
        self.ensemble = metadata.last_fragment.ensemble
        self.frozen_lac = start
        """LAC that every recovery add carries (F10); a higher one would promise entries that another recovery may
        exclude.
        """
        self.head = start
        """Entry up to which everything is on Qa members."""
        self.failed: dict[BookieId, None] = {}
        self.absent: dict[Position, BookieId] = {}
        self.last_recovered: Entry | None = None
        self.fragments: dict[EntryId, tuple[BookieId, ...]] = {}
        """Private fragments by first entry, to be applied by the close (F8)."""
        self._pending: dict[EntryId, _Pending] = {}
        self._vain: dict[Position, BookieId] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def add(self, entries: Sequence[Entry]) -> list[Resend]:
        """Accept entries in id order and return what to send. Raises RecoveryFailed like `replaced`."""
        for entry in entries:
            expected = self.head + len(self._pending) + 1
            check(entry.entry_id == expected, "R5", f"entry {entry.entry_id} instead of {expected}")
            self._pending[entry.entry_id] = _Pending(entry)
        if entries:
            self.last_recovered = entries[-1]
            if not self.to_replace:
                self._check_storable()
        sends = []
        for position in range(self.quorum.ensemble_size):
            if position not in self.absent:
                sends += self._send(position, entries)
        return sends

    def acked(self, position: Position, bookie: BookieId, first: EntryId, last: EntryId) -> None:
        """Record that the bookie stored those of first..last that its position holds."""
        if self.ensemble[position] != bookie:
            return
        for entry in range(first, last + 1):
            pending = self._pending.get(entry)
            if pending is not None:
                check(self.quorum.holds(position, entry), "S4", f"entry {entry} is not position {position}'s")
                pending.acked[position] = None
        self._advance()

    def _advance(self) -> None:
        while (pending := self._pending.get(self.head + 1)) is not None:
            if len(pending.acked) < self.quorum.ack_quorum or self._unspread(self.head + 1, pending):
                break
            del self._pending[self.head + 1]
            self.head += 1

    def _unspread(self, entry: EntryId, pending: _Pending) -> bool:
        if not self._spread:
            return False
        copies, able = [self.ensemble[p] for p in pending.acked], self._able(entry, pending)
        return any(rule.lacking(copies, able) > 0 for rule in self._spread)

    def _able(self, entry: EntryId, pending: _Pending) -> list[BookieId]:
        """Return the members of the entry's write set that have it or can still get it."""
        write_set = self.quorum.write_set(entry)
        return [self.ensemble[p] for p in write_set if p in pending.acked or p not in self.absent]

    def add_failed(self, position: Position, bookie: BookieId) -> None:
        """Record that an add at this position failed; its bookie gets no more writes. `to_replace` may have grown."""
        if self.ensemble[position] == bookie:
            self.failed[bookie] = None
            self.absent[position] = bookie

    @property
    def to_replace(self) -> dict[Position, BookieId]:
        """Return failed positions without an attempt to replace them; empty while nothing has to be written."""
        if not self._pending:
            return {}
        return {position: bookie for position, bookie in self.absent.items() if self._vain.get(position) != bookie}

    def replaced(self, choice: Mapping[Position, BookieId]) -> list[Resend]:
        """Use replacements for some of `to_replace`; the others stay absent. Returns what to send.

        First, acknowledgements of the replaced positions are dropped for all pending entries (8.1 row 1). Raises
        RecoveryFailed if fewer than Qa members can store some entry.
        """
        self._vain = dict(self.absent)
        if choice:
            members = list(self.ensemble)
            for position, bookie in choice.items():
                check(position in self.absent, "R6", f"position {position} did not fail")
                check(bookie not in self.failed and bookie not in members, "R6", f"{bookie} cannot replace")
                members[position] = bookie
                del self.absent[position]
            self.ensemble = tuple(members)
            self.fragments[self.head + 1] = self.ensemble
            for pending in self._pending.values():
                for position in choice:
                    pending.acked.pop(position, None)
        self._check_storable()
        self._advance()
        entries = [pending.entry for pending in self._pending.values()]
        return [send for position in sorted(choice) for send in self._send(position, entries)]

    def _send(self, position: Position, entries: Sequence[Entry]) -> list[Resend]:
        own = tuple(entry for entry in entries if self.quorum.holds(position, entry.entry_id))
        return [Resend(position, self.ensemble[position], own)] if own else []

    def _check_storable(self) -> None:
        for entry_id, pending in self._pending.items():
            able = self._able(entry_id, pending)
            names = ", ".join(self.failed)
            if len(able) < self.quorum.ack_quorum:
                raise RecoveryFailed(
                    self.ledger_id,
                    f"entry {entry_id} can be stored on {len(able)} bookies, {self.quorum.ack_quorum} are needed, "
                    f"after {names} failed: start more bookies and recover again",
                )
            for rule in self._spread:
                if rule.lacking(able, able) > 0:
                    raise RecoveryFailed(
                        self.ledger_id,
                        f"entry {entry_id}: {rule.explain(able)}{f', after {names} failed' if names else ''}: start "
                        f"bookies in another {rule.level}, or do not enforce the placement, and recover again",
                    )


# -- promises of verified headers -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """`bookie` showed that everything up to `lac` is confirmed, by the header of `entry` (None: by a sealed LAC)."""

    lac: EntryId
    bookie: BookieId
    entry: EntryId | None

    def __str__(self) -> str:
        proof = "a sealed LAC" if self.entry is None else f"the header of entry {self.entry}"
        return f"{proof} from bookie {self.bookie} proves that everything up to {self.lac} was acknowledged"


class Promises:
    """The highest promise that was found during one recovery. The caller passes only what its digest verifies."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.highest: Promise | None = None

    def entry(self, bookie: BookieId, entry: Entry) -> None:
        """Record the LAC in the header of a verified entry."""
        self._record(Promise(entry.last_add_confirmed, bookie, entry.entry_id))

    def sealed_lac(self, bookie: BookieId, lac: EntryId) -> None:
        """Record a verified explicit LAC."""
        self._record(Promise(lac, bookie, None))

    def _record(self, promise: Promise) -> None:
        if promise.lac > (NO_ENTRY if self.highest is None else self.highest.lac):
            self.highest = promise

    def broken_by(self, end: EntryId) -> bool:
        """Return whether a ledger that ends at `end` would lack acknowledged entries."""
        return self.highest is not None and self.highest.lac > end

    def check_end(self, end: EntryId) -> None:
        """Raise RecoveryFailed if a promise reaches beyond the end that was found."""
        if self.broken_by(end):
            assert self.highest is not None
            raise RecoveryFailed(
                self.ledger_id,
                f"its bookies say that entry {end + 1} does not exist, but {self.highest}: acknowledged entries are "
                f"missing. The ledger is not closed. Start every bookie of {self.highest.lac}'s write set with its "
                f"own data and recover again; `buckram ledger check {self.ledger_id}` says what each of them has",
            )
