"""The append window of one writer: ids, lengths, acknowledgements, LAC, and how an ensemble change affects them.

It keeps runs (consecutive entries that travel together), never single entries. Each position has a watermark, up to
which its present bookie has acknowledged everything that it stores, and a sparse list of acknowledged runs beyond that.
The head moves when Qa watermarks of every write set have passed.

A **slot** names one assignment of a bookie to a position: slot % E is the position. Answers carry the slot they were
sent under, so one that belongs to an earlier assignment is recognised without comparing names, even if the same bookie
comes back to the position.
Not here: sending, futures, metadata and the choice of replacements (`client/write`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence

from buckram.core.ledgers.quorum import Quorum, SpreadGroups, SpreadRule
from buckram.core.ledgers.runs import Run, Send
from buckram.errors import DuplicateEntry, check, invariant_failed
from buckram.types import NO_ENTRY, BookieId, EntryId, LedgerId, Position, Slot

__all__ = ["AppendWindow", "Run", "Send"]


class AppendWindow:
    """State of one writer (2.1). Every method is one atomic step: callers do not await between a check and an action.

    `ensemble` must always be the ensemble that durable metadata records for the next entry (S4).
    `spread`: an entry counts as acknowledged only when its present members that acknowledged it meet these rules (M5).
    `absent`: positions whose bookie is away from the start.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        *,
        deferred_sync: bool = False,
        explicit_ids: bool = False,
        spread: Sequence[SpreadRule] = (),
        absent: Collection[Position] = (),
    ) -> None:
        size = quorum.ensemble_size
        self.ledger_id, self.quorum = ledger_id, quorum
        self.ensemble = tuple(ensemble)
        self.deferred_sync, self.explicit_ids = deferred_sync, explicit_ids
        self.next_entry: EntryId = 0
        """One above the highest id given out (LAP + 1)."""
        self.pending_head: EntryId = NO_ENTRY
        """Highest id acknowledged in order; equals `lac` except under DEFERRED_SYNC."""
        self.lac: EntryId = NO_ENTRY
        self.length = 0
        """Payload bytes of everything enqueued and not failed."""
        self.pending_bytes = 0
        self.pending_entries = 0
        self.changing = False
        self.closed = False
        check(quorum.writable(absent), "M11", f"{len(absent)} of {quorum} members are away, some write set lacks Qa")
        self.absent: dict[Position, BookieId] = {position: self.ensemble[position] for position in absent}
        """Positions whose bookie failed and is not written to, with that bookie."""
        self.slots = [Slot(position) for position in range(size)]
        self._size, self._qa, self._mirrored = size, quorum.ack_quorum, quorum.mirrored
        self._kth = size - quorum.ack_quorum
        self._write_sets = quorum.write_sets()
        self._marks = [NO_ENTRY] * size
        self._beyond: list[list[tuple[EntryId, EntryId]]] = [[] for _ in range(size)]
        self._scattered = 0
        self._runs: list[Run] = []
        self._ids: set[EntryId] = set()
        self._forced_length = 0
        self._spread = tuple(spread)
        self._spread_groups: SpreadGroups | None = None
        self._regroup()

    # -- adding -------------------------------------------------------------------------------------------

    def enqueue(self, count: int, size: int) -> EntryId:
        """Give out the next `count` ids for `size` payload bytes; returns the first id."""
        first = self.next_entry
        self.next_entry = first + count
        self.length += size
        self.pending_bytes += size
        self.pending_entries += count
        return first

    def enqueue_at(self, entry: EntryId, size: int) -> None:
        """Take a caller's id. Raises DuplicateEntry if it is confirmed or pending.

        The id is compared with the head, because under DEFERRED_SYNC the LAC lags behind it (M1, trap 25).
        """
        if entry <= self.pending_head or entry in self._ids:
            raise DuplicateEntry(self.ledger_id, entry)
        self._ids.add(entry)
        self.next_entry = max(self.next_entry, entry + 1)
        self.length += size
        self.pending_bytes += size
        self.pending_entries += 1

    def start(self, run: Run) -> None:
        """Record a run that is sealed with the present `lac` and sent to `live()` in the same step."""
        if self.explicit_ids:
            insort(self._runs, run, key=_first_of)
        else:
            self._runs.append(run)

    def live(self) -> list[tuple[Position, Slot]]:
        """Return (position, slot) of the bookies to send to."""
        if not self.absent:
            return list(enumerate(self.slots))
        return [(p, slot) for p, slot in enumerate(self.slots) if p not in self.absent]

    @property
    def reachable(self) -> EntryId:
        """Return the highest id that can be acknowledged without another append; with explicit ids, the one before a
        gap.
        """
        if not self.explicit_ids:
            return self.next_entry - 1
        last = self.pending_head
        while last + 1 in self._ids:
            last += 1
        return last

    # -- answers ------------------------------------------------------------------------------------------

    def acked(self, slot: Slot, first: EntryId, last: EntryId) -> bool:
        """Record that the bookie of `slot` stored its share of first..last. Returns True if the head moved."""
        position = slot % self._size
        if self.slots[position] != slot or self.closed:
            return False  # 2.3 rule 1: the position holds another bookie now, or the window is closed
        mark, head = self._marks[position], self.pending_head
        if mark < head:
            mark = head  # nothing below the head is pending, whether this bookie acknowledged it or not
        if first > mark + 1 and not self._adjacent(position, mark, first):
            insort(self._beyond[position], (first, last))
            self._scattered += 1
            return False
        if last <= mark:
            return False  # all of it is below the head, or acknowledged before
        if last >= self.next_entry:
            invariant_failed("S9", f"ledger {self.ledger_id}: {last} acknowledged, {self.next_entry} never sent")
        marks = self._marks
        marks[position] = last
        if self._scattered:
            self._absorb(position)
        if self.changing:
            return False
        # Most acknowledgements do not complete the entry after the head, so check that first.
        if self._mirrored:
            if sorted(marks)[self._kth] <= head:
                return False
        elif sum(marks[p] > head for p in self._write_sets[(head + 1) % self._size]) < self._qa:
            return False
        return self._drain()

    def failed(self, slot: Slot) -> Position | None:
        """Make the position of `slot` absent and void its acknowledgements of pending entries, after a failure.

        Returns the position, or None for a stale answer. The caller starts an ensemble change (`freeze`), unless one is
        running: that one examines `absent` again before it ends.
        """
        position = slot % self._size
        if self.slots[position] != slot or self.closed or position in self.absent:
            return None
        self.absent[position] = self.ensemble[position]
        self._reassign(position)
        self._regroup()
        return position

    # -- change of ensemble (2.6, 2.7) --------------------------------------------------------------------

    def freeze(self) -> EntryId:
        """Stop acknowledging, and return the first id of the new fragment, LAC + 1.

        It is one step, so that no entry can be acknowledged between reading the LAC and stopping (trap 7).
        """
        check(not self.changing, "2.6", "two ensemble changes at the same time")
        check(not self.deferred_sync, "M3", "ensemble change under DEFERRED_SYNC")
        self.changing = True
        return self.lac + 1

    def resume(self, ensemble: Sequence[BookieId]) -> tuple[list[Send], bool]:
        """Continue with the ensemble that durable metadata now records; returns what to send, and if the head moved.

        First every acknowledgement of a replaced bookie is dropped for all pending entries, then the resends are
        computed, and only then the head is drained, once (trap 1). A position gets resends if it was reassigned, even
        if its first and last bookie are the same (trap 28). A position that still has its failed bookie stays absent.
        """
        check(self.changing, "2.6", "resume without freeze")
        touched = []
        for position, bookie in enumerate(ensemble):
            if position in self.absent:
                if self.absent[position] == bookie:
                    continue
                del self.absent[position]
            elif self.ensemble[position] == bookie:
                continue
            self._reassign(position)
            touched.append(position)
        self.ensemble = tuple(ensemble)
        self.changing = False
        self._regroup()
        sends = self._sends(touched)
        return sends, self._drain()

    def readmit(self, positions: Sequence[Position]) -> list[Send]:
        """Write again to recorded members that were absent; they count only for what they acknowledge from now on."""
        for position in positions:
            del self.absent[position]
            self._reassign(position)
        self._regroup()
        return self._sends(positions)

    def survives(self) -> bool:
        """Return whether every write set still has Qa recorded members that are written to, in enough fault domains."""
        if not self.absent:
            return True
        return self.quorum.writable(self.absent) and not self.unmet(self.ensemble, self.absent)

    def unmet(self, ensemble: Sequence[BookieId], absent: Collection[Position]) -> list[SpreadRule]:
        """Return rules that some write set of such an ensemble cannot meet: none of its entries could be acknowledged
        (M5).
        """
        return SpreadGroups(self._spread, self.quorum, ensemble, absent).unmet if self._spread else []

    def relocated(self) -> bool:
        """Account for bookies that changed their places: acknowledged entries stay so. Return whether the head
        moved.
        """
        if not self._spread or self.closed:
            return False
        self._regroup()
        return not self.changing and self._drain()

    # -- force (2.11) and the end (2.9, 2.10) -------------------------------------------------------------

    def force_point(self) -> tuple[EntryId, int]:
        """Return the head and the length up to it, to be passed to `forced` when all E bookies have forced (M2)."""
        return self.pending_head, self._acked_length()

    def forced(self, point: tuple[EntryId, int]) -> None:
        """Move the LAC to a force point that all bookies have made durable."""
        if point[0] > self.lac:
            self.lac, self._forced_length = point

    def close(self) -> tuple[EntryId, int]:
        """Drop pending entries and later acknowledgements. Returns last entry and length of the ledger (S13)."""
        if not self.closed:
            self.length = self._forced_length if self.deferred_sync else self._acked_length()
            self.closed = True
            self.changing = False
            self._runs.clear()
            self._ids.clear()
            self.pending_bytes = self.pending_entries = 0
        return self.lac, self.length

    # -- inside -------------------------------------------------------------------------------------------

    def _regroup(self) -> None:
        if self._spread:
            self._spread_groups = SpreadGroups(self._spread, self.quorum, self.ensemble, self.absent)

    def _reassign(self, position: Position) -> None:
        self.slots[position] = Slot(self.slots[position] + self._size)
        self._marks[position] = NO_ENTRY
        self._scattered -= len(self._beyond[position])
        self._beyond[position].clear()

    def _adjacent(self, position: Position, mark: EntryId, first: EntryId) -> bool:
        """Return whether, under striping, the position stores nothing between mark and first."""
        if self._mirrored or first - mark > self._size:
            return False
        return not any(self.quorum.holds(position, entry) for entry in range(mark + 1, first))

    def _absorb(self, position: Position) -> bool:
        rows = self._beyond[position]
        mark = max(self._marks[position], self.pending_head)
        taken = 0
        for first, last in rows:
            if first > mark + 1 and not self._adjacent(position, mark, first):
                break
            mark = max(mark, last)
            taken += 1
        if taken:
            del rows[:taken]
            self._scattered -= taken
            self._marks[position] = max(self._marks[position], mark)
        return taken > 0

    def _drain(self) -> bool:
        """Move the head, in id order and without gaps (S8). No other method acknowledges entries."""
        before, groups = self.pending_head, self._spread_groups
        while True:
            if not self._mirrored:
                head = self._striped_head(groups)
            else:
                head = sorted(self._marks)[self._kth]
                if groups is not None:
                    head = groups.reached(0, self._marks, self.pending_head, head)
            if head <= self.pending_head:
                break
            self.pending_head = head
            if not self._scattered:
                break
            for position in range(self._size):
                self._absorb(position)
        head = self.pending_head
        if head == before:
            return False
        if not self.deferred_sync:
            self.lac = head
        done = 0
        for run in self._runs:
            if run.last > head:
                break
            self.pending_bytes -= run.size
            self.pending_entries -= run.last - run.first + 1
            done += 1
        del self._runs[:done]
        if self._ids:
            self._ids.difference_update(range(before + 1, head + 1))
        return True

    def _striped_head(self, groups: SpreadGroups | None) -> EntryId:
        """Return the head under striping: the id before the first one that fewer than Qa marks have passed."""
        size, head, marks = self._size, self.pending_head, self._marks
        hole: EntryId | None = None
        skip = self.quorum.write_quorum - self._qa
        for residue in range(size):
            reached = sorted([marks[p] for p in self._write_sets[residue]])[skip]
            if groups is not None:
                reached = groups.reached(residue, marks, head, reached)
            base = max(head, reached) + 1
            first = base + (residue - base) % size
            if hole is None or first < hole:
                hole = first
        return head if hole is None else hole - 1

    def _acked_length(self) -> int:
        length = self.length - self.pending_bytes
        if self._runs and self._runs[0].first <= self.pending_head:
            length += self._runs[0].size_through(self.pending_head)
        return length

    def _sends(self, positions: Sequence[Position]) -> list[Send]:
        """Return everything pending, cut to what each position stores, without entries that are acknowledged."""
        sends = []
        for position in positions:
            slot = self.slots[position]
            for run in self._runs:
                rows = tuple(self.quorum.held_ranges(position, max(run.first, self.pending_head + 1), run.last))
                if rows:
                    sends.append(Send(position, slot, *run.cut(rows), rows))
        return sends

    def stripe(self, run: Run) -> list[Send]:
        """Return the run, cut for every live position (E > Qw)."""
        sends = []
        for position, slot in self.live():
            rows = tuple(self.quorum.held_ranges(position, run.first, run.last))
            if rows:
                sends.append(Send(position, slot, *run.cut(rows), rows))
        return sends


def _first_of(run: Run) -> EntryId:
    return run.first
