"""Quorum arithmetic: which positions store an entry, and what a set of answers proves.

Positions are indexes into an ensemble, 0 to E-1. Everything is defined for all E >= Qw >= Qa >= 1 and for
entry ids of any size (no 32-bit arithmetic: docs/reference/protocol.md, trap 21). Counting answers of one entry is
core/ledgers/answers; which bookies to choose is core/placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from buckram.errors import InvalidArgument
from buckram.types import EntryId, Position


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
