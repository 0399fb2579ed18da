"""Rules for the number of fault domains with a copy of an entry before it counts as acknowledged (M5).

A function gives the domain of a bookie, because that may change while a writer runs. A bookie whose domain is unknown
counts for none.
Not here: the choice of bookies (`core/placement`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from buckram.core.ledgers.quorum import Quorum
from buckram.types import BookieId, EntryId, Position


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


__all__ = ["SpreadGroups", "SpreadRule"]
