"""Where the copies of an entry must be before it counts as acknowledged: so many fault domains of some level (M5).

Which domains there are is asked of a function, because that may change while a writer runs. A bookie whose domain is
not known counts for none. The choice of bookies is core/placement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from buckram.core.ledgers.quorum import Quorum
from buckram.types import BookieId, EntryId, Position


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """Copies in `needed` domains of `level`; where not `strict`, in as many as the members at hand are in."""

    level: str
    needed: int
    strict: bool
    domain: Callable[[BookieId], str | None]

    def lacking(self, members: Collection[BookieId], available: Collection[BookieId]) -> int:
        """How many domains are missing for copies on `members`, where `available` could have copies, too."""
        return self._needed(available) - len(self._domains(members))

    def explain(self, available: Collection[BookieId]) -> str:
        """Why these members are not enough, in half a sentence."""
        found = ", ".join(self._domains(available)) or "none that is known"
        return f"copies have to be in {self.needed} of level {self.level}, and usable members are in {found}"

    def _domains(self, members: Collection[BookieId]) -> dict[str, None]:
        return dict.fromkeys(domain for member in members if (domain := self.domain(member)) is not None)

    def _needed(self, available: Collection[BookieId]) -> int:
        return self.needed if self.strict else min(self.needed, len(self._domains(available)))


class SpreadGroups:
    """The rules applied to one ensemble: for each write set and rule, positions by domain, and how many domains.

    Made anew at each change of the ensemble, of the absent ones or of the topology, so that nothing of this is done
    for an entry: each look at an acknowledgement costs a few comparisons, however many entries it is for.
    """

    def __init__(
        self,
        rules: Sequence[SpreadRule],
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        absent: Collection[Position],
    ) -> None:
        self.unmet: list[SpreadRule] = []
        """Rules that some write set cannot meet with the members that are there."""
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
        """`reached`, or less where copies up to there are in too few domains. `marks`: per position, up to where it
        acknowledged all it stores; `head` holds already."""
        for needed, groups in self._groups[window]:
            if needed > len(groups):
                return head
            tops = sorted([max([marks[position] for position in group]) for group in groups])
            reached = min(reached, tops[-needed])
        return reached


__all__ = ["SpreadGroups", "SpreadRule"]
