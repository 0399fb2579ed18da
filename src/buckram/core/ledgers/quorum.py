"""Quorum arithmetic: which positions store an entry, and what a set of answers proves.

Positions are indexes into an ensemble, 0 to E-1. Everything is defined for all E >= Qw >= Qa >= 1 and for entry ids of
any size (no 32-bit arithmetic: docs/reference/protocol.md, trap 21). A rule may also ask for a number of fault domains
with a copy of an entry before it counts as acknowledged (M5). A function gives the domain of a bookie, because that may
change while a writer runs; a bookie whose domain is unknown counts for none.

Not here: counting answers of one entry (`core/ledgers/answers.py`), the choice of bookies (`core/placement`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from buckram.errors import InvalidArgument
from buckram.types import BookieId, EntryId, Position


@dataclass(frozen=True, slots=True)
class Quorum:
    """The three numbers of a ledger: ensemble size E, write quorum Qw, ack quorum Qa."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidArgument(
                f"ensemble {self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}: needs ensemble size >= write "
                "quorum >= ack quorum >= 1, for example 3/3/2"
            )

    @classmethod
    def parse(cls, value: int | str | Sequence[int]) -> Quorum:
        """Parse E (then Qw = E and Qa the majority), "E/Qw/Qa" or (E, Qw, Qa). Raises InvalidArgument for anything
        else.
        """
        try:
            parts = value.split("/") if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
            numbers = [int(part) for part in parts]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0] // 2 + 1)
        if len(numbers) != 3:
            raise InvalidArgument(f"ensemble {value!r}: needs E or E/Qw/Qa, for example 3 or 3/3/2")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}"

    @property
    def mirrored(self) -> bool:
        """Return whether every bookie holds every entry (E == Qw); otherwise entries are striped."""
        return self.ensemble_size == self.write_quorum

    @property
    def coverage(self) -> int:
        """Return how many explicit negatives of one write set prove that an entry was not acknowledged: Qw - Qa + 1."""
        return self.write_quorum - self.ack_quorum + 1

    def write_set(self, entry: EntryId) -> tuple[Position, ...]:
        """Return the Qw positions that store `entry`, in read order."""
        size = self.ensemble_size
        start = entry % size
        return tuple((start + i) % size for i in range(self.write_quorum))

    def write_sets(self) -> list[tuple[Position, ...]]:
        """Return all write sets, indexed by entry modulo E."""
        return [self.write_set(entry) for entry in range(self.ensemble_size)]

    def holds(self, position: Position, entry: EntryId) -> bool:
        """Return whether `entry` belongs to the bookie at `position`."""
        return (position - entry) % self.ensemble_size < self.write_quorum

    def held_ranges(self, position: Position, first: EntryId, last: EntryId) -> Iterator[tuple[EntryId, EntryId]]:
        """Return the ids of first..last that `position` stores, as maximal ranges of consecutive ids, ascending."""
        if self.mirrored:
            if first <= last:
                yield first, last
            return
        size, width = self.ensemble_size, self.write_quorum
        # The row that contains or follows `first` starts where e mod E == position - Qw + 1.
        start = first - (first - (position - width + 1)) % size
        while start <= last:
            low, high = max(start, first), min(start + width - 1, last)
            if low <= high:
                yield low, high
            start += size

    def windows(self) -> list[tuple[Position, ...]]:
        """Return the distinct write sets as sets of positions: one for E == Qw, else E of them."""
        return [self.write_set(0)] if self.mirrored else self.write_sets()

    def covered(self, known: Collection[Position]) -> bool:
        """Return whether every window is covered (1.3): no write set has Qa members that are all unknown.

        `known`: positions that answered positively or explicitly negatively, nothing else.
        """
        return all(sum(p not in known for p in window) < self.ack_quorum for window in self.windows())

    def writable(self, absent: Collection[Position]) -> bool:
        """Return whether every write set still has Qa members without the positions in `absent`."""
        return all(sum(p not in absent for p in window) >= self.ack_quorum for window in self.windows())


# -- spread over fault domains --------------------------------------------------------------------------------


class DomainLookup(Protocol):
    """Return the fault domain of a bookie at the level of a rule, as of now; None if it is unknown."""

    def __call__(self, bookie: BookieId, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """Copies must be in `needed` domains of `level`; unless `strict`, at most in as many as the usable members."""

    level: str
    needed: int
    strict: bool
    domain: DomainLookup

    def lacking(self, members: Collection[BookieId], available: Collection[BookieId]) -> int:
        """Return how many domains copies on `members` lack, if all of `available` could have copies."""
        return self._needed(available) - len(self._domains(members))

    def explain(self, available: Collection[BookieId]) -> str:
        """Return as a clause for an error why these members are not enough."""
        found = ", ".join(self._domains(available)) or "none that is known"
        return f"copies have to be in {self.needed} of level {self.level}, and usable members are in {found}"

    def _domains(self, members: Collection[BookieId]) -> dict[str, None]:
        return dict.fromkeys(domain for member in members if (domain := self.domain(member)) is not None)

    def _needed(self, available: Collection[BookieId]) -> int:
        return self.needed if self.strict else min(self.needed, len(self._domains(available)))


class SpreadGroups:
    """The rules applied to one ensemble: for each write set and rule, the positions by domain, and the domains needed.

    It is computed anew at each change of the ensemble, the absent positions or the topology, and never per entry: an
    acknowledgement costs a few comparisons, for any number of entries.
    """

    def __init__(
        self,
        rules: Sequence[SpreadRule],
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        absent: Collection[Position],
    ) -> None:
        self.unmet: list[SpreadRule] = []
        """Rules that some write set cannot meet with its present members."""
        self._groups: list[list[tuple[int, list[list[Position]]]]] = []
        for write_set in quorum.windows():
            rows: list[tuple[int, list[list[Position]]]] = []
            for rule in rules:
                places: dict[str, list[Position]] = {}
                for position in write_set:
                    domain = rule.domain(ensemble[position])
                    if domain is not None and position not in absent:
                        places.setdefault(domain, []).append(position)
                needed = rule.needed if rule.strict else min(rule.needed, len(places))
                if needed > len(places) and rule not in self.unmet:
                    self.unmet.append(rule)
                if needed > 1 or needed > len(places):
                    rows.append((needed, list(places.values())))
            self._groups.append(rows)

    def reached(self, window: int, marks: Sequence[EntryId], head: EntryId, reached: EntryId) -> EntryId:
        """Return `reached`, or a lower id if copies up to there are in too few domains; never less than `head`.

        `marks`: for each position, the id up to which it acknowledged all that it stores.
        """
        for needed, groups in self._groups[window]:
            if needed > len(groups):
                return head
            tops = sorted([max([marks[position] for position in group]) for group in groups])
            reached = min(reached, tops[-needed])
        return reached
