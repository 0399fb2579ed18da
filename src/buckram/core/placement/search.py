"""The search that gives seats of an ensemble to bookies so that every write quorum spans what the levels ask for.

Bookies that are in the same domains of all levels in question are alike to it. It is bounded in steps: an ensemble it
does not find then counts as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Protocol

from buckram.types import BookieId

SEARCH_STEPS = 20_000
_RELAXATIONS = 40
Place = tuple[str, ...]
"""The domain at each level of the policy; "" where it is not known, which counts as one common domain."""


class Chooser(Protocol):
    """The part of random.Random that placement uses (the core itself imports no randomness)."""

    def random(self) -> float: ...


class Search:
    """Depth-first search over places, those least used around a seat first.

    `fixed`: places of members that stay; None: a seat to fill. `strict`: by level, whether a member whose domain is
    unknown counts as in none; otherwise all such members are in one common domain.
    """

    def __init__(
        self,
        pool: Sequence[tuple[BookieId, Place]],
        fixed: Sequence[Place | None],
        write_quorum: int,
        needs: Sequence[int],
        strict: Sequence[bool] = (),
    ) -> None:
        self.by_place: dict[Place, list[BookieId]] = {}
        self.turn = {bookie: index for index, (bookie, _) in enumerate(pool)}
        for bookie, place in pool:
            self.by_place.setdefault(place, []).append(bookie)
        self.taken = dict.fromkeys(self.by_place, 0)
        self.where = list(fixed)
        self.write_quorum = write_quorum
        self.needs = [(level, needed) for level, needed in enumerate(needs) if needed > 1]
        self.none: list[str | None] = [
            "" if level < len(strict) and strict[level] else None for level in range(len(needs))
        ]
        self._owners: list[dict[str, int]] = [{} for _ in needs]
        """Number of places in each domain, by level."""
        for place in self.by_place:
            for level, domain in enumerate(place):
                self._owners[level][domain] = self._owners[level].get(domain, 0) + 1
        self.steps = SEARCH_STEPS

    def fill(self, seats: Sequence[int]) -> dict[int, BookieId] | None:
        """Give each seat a bookie so that every window around a filled seat spans enough of each level."""
        if not seats:
            return {}
        if self.steps == 0:
            return None
        seat, rest = seats[0], seats[1:]
        failed: list[tuple[object, ...]] = []
        for place in self._order(seat):
            if self.steps == 0:
                return None
            kind = self._kind(place)
            if kind in failed:
                continue  # what was tried with one of this kind would fail with this one, too
            self.steps -= 1
            members = self.by_place[place]
            index = self.taken[place]
            self.where[seat] = place
            self.taken[place] = index + 1
            if self._possible(seat):
                found = self.fill(rest)
                if found is not None:
                    found[seat] = members[index]
                    return found
            self.taken[place] = index
            self.where[seat] = None
            failed.append(kind)
        return None

    def _kind(self, place: Place) -> tuple[object, ...]:
        """Return a key that is equal for interchangeable places: they have as many free bookies, and are in the same
        domains of the levels that are asked for, or each in a domain that no other place and no member is in."""
        domains: list[str | None] = []
        for level, _ in self.needs:
            domain = place[level]
            lone = self._owners[level][domain] == 1 and domain != self.none[level]
            used = any(other is not None and other[level] == domain for other in self.where)
            domains.append(None if lone and not used else domain)
        return len(self.by_place[place]) - self.taken[place], *domains

    def _order(self, seat: int) -> list[Place]:
        """Return places with a free bookie: the domains of the widest level least used near the seat first, then those
        of the next level, then in the order in which the bookies were drawn."""
        free = [place for place, members in self.by_place.items() if self.taken[place] < len(members)]
        free.sort(key=lambda place: self.turn[self.by_place[place][self.taken[place]]])
        if self.needs:
            size, reach = len(self.where), self.write_quorum - 1
            near = [self.where[(seat + offset) % size] for offset in range(-reach, reach + 1) if offset % size]
            there = [place for place in near if place is not None]

            def crowd(place: Place) -> list[int]:
                return [sum(other[level] == place[level] for other in there) for level, _ in self.needs]

            free.sort(key=crowd)
        return free

    def _possible(self, seat: int) -> bool:
        size = len(self.where)
        for start in range(seat - self.write_quorum + 1, seat + 1):
            window = [self.where[(start + offset) % size] for offset in range(self.write_quorum)]
            open_seats = window.count(None)
            for level, needed in self.needs:
                there: set[str | None] = {place[level] for place in window if place is not None}
                there.discard(self.none[level])
                if len(there) + open_seats < needed:
                    return False
        return True


def relaxations(wanted: Sequence[int], least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield needs by level to try in turn, from `wanted` down to `least`; the narrowest level is given up first."""
    ranges = [range(high, min(high, low) - 1, -1) for high, low in zip(wanted, least, strict=True)]
    every = sorted(product(*ranges), key=lambda needs: (-sum(needs), [-need for need in needs]))
    yield from every[: _RELAXATIONS - 1]
    if len(every) >= _RELAXATIONS:
        yield every[-1]


def drawn(weights: dict[BookieId, float], rng: Chooser) -> list[BookieId]:
    """Return all bookies in a random order; heavier ones come earlier more often. Equal weights: a plain shuffle."""
    # Sorted first, so that the result depends on the generator and not on the caller's order.
    ordered = sorted(weights)
    if len(set(weights.values())) > 1:
        keys = {bookie: max(rng.random(), 1e-12) ** (1.0 / weights[bookie]) for bookie in ordered}
        return sorted(ordered, key=lambda bookie: (-keys[bookie], bookie))
    for index in range(len(ordered) - 1, 0, -1):
        other = int(rng.random() * (index + 1))
        ordered[index], ordered[other] = ordered[other], ordered[index]
    return ordered
