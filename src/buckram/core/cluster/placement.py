"""Which bookies store a ledger: choosing an ensemble and replacing members, over a rack map.

Pure functions of (candidates, what must hold, a generator passed in). Who is alive, quarantined or
failed is the business of client/shared/bookies; here they arrive as candidates and as things to avoid.

A bookie without a known rack counts as living in one common default rack. The rule (M6): every window
of `write_quorum` consecutive positions spans at least min(write_quorum, min_racks) racks. It is met
where it can be; `enforce` makes it a condition and then never takes a bookie of unknown rack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Protocol

from buckram.core.ledgers.quorum import Quorum, domains_needed, spans_domains
from buckram.errors import InvalidArgument, NotEnoughBookies
from buckram.types import BookieId

DEFAULT_RACK = "/default-rack"
_SEARCH_STEPS = 20_000
_TRIES = 200
"""So many choices of absent members are looked at."""


class Chooser(Protocol):
    """The part of random.Random that placement uses (the core itself imports no randomness)."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RackRule:
    """`min_racks` per write quorum; with `enforce` a placement that breaks the rule is an error."""

    min_racks: int = 2
    enforce: bool = False

    def racks_needed(self, write_quorum: int) -> int:
        return max(1, min(write_quorum, self.min_racks))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One bookie that may be chosen. `avoid`: only where there is no other choice (quarantine, L9)."""

    bookie_id: BookieId
    rack: str | None = None
    avoid: bool = False


def check_shape(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise InvalidArgument unless E >= Qw >= Qa >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgument(
            f"ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}: "
            "needs ensemble >= write quorum >= ack quorum >= 1"
        )


def choose_ensemble(
    candidates: Sequence[Candidate],
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    rng: Chooser,
    *,
    rule: RackRule = RackRule(),
    exclude: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """A new ensemble of distinct bookies, in order. NotEnoughBookies when there are too few."""
    check_shape(ensemble_size, write_quorum, ack_quorum)
    usable = [c for c in _shuffled(candidates, rng) if c.bookie_id not in exclude and _located(c, rule)]
    if len(usable) < ensemble_size:
        raise NotEnoughBookies(ensemble_size, len(usable))
    seats = list(range(ensemble_size))
    wanted = rule.racks_needed(write_quorum)
    for pool in _pools(usable):
        if len(pool) < ensemble_size:
            continue
        for racks in _levels(wanted, rule):
            found = _Search(pool, [None] * ensemble_size, write_quorum, racks).fill(seats)
            if found is not None:
                return tuple(found[seat] for seat in seats)
    raise NotEnoughBookies(
        ensemble_size,
        len(usable),
        f"{len(usable)} bookies are usable but cannot span {wanted} racks in every {write_quorum} neighbours: "
        "start bookies in another rack or do not enforce the rule",
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A new ensemble, and the positions of those members that are away."""

    members: tuple[BookieId, ...]
    absent: tuple[int, ...] = ()


def choose_with_absent(
    candidates: Sequence[Candidate],
    away: Sequence[Candidate],
    quorum: Quorum,
    rng: Chooser,
    *,
    rule: RackRule = RackRule(),
) -> Chosen:
    """A new ensemble where there are too few live bookies: all of those, and of `away` as many as are missing (M11).

    Never more than Qw - Qa, so that every write set has Qa live members; with an enforced rule these span its racks,
    too, or nothing could be acknowledged. Earlier ones in `away` are preferred. NotEnoughBookies.
    """
    size = quorum.ensemble_size
    live = [c for c in _shuffled(candidates, rng) if _located(c, rule)]
    known = [c for c in away if _located(c, rule) and all(c.bookie_id != other.bookie_id for other in live)]
    missing = size - len(live)
    if not 0 < missing <= min(quorum.write_quorum - quorum.ack_quorum, len(known)):
        raise NotEnoughBookies(size, len(live))
    racks = {c.bookie_id: c.rack for c in live if c.rack is not None}
    needed = domains_needed(quorum.write_quorum, rule.min_racks) if rule.enforce else 0
    for level in _levels(rule.racks_needed(quorum.write_quorum), rule):
        for absentees in islice(combinations(known, missing), _TRIES):
            found = _Search([*live, *absentees], [None] * size, quorum.write_quorum, level).fill(list(range(size)))
            if found is None:
                continue
            members = tuple(found[seat] for seat in range(size))
            absent = tuple(seat for seat, member in enumerate(members) if any(member == a.bookie_id for a in absentees))
            writers = [[members[p] for p in window if p not in absent] for window in quorum.windows()]
            if quorum.writable(absent) and all(spans_domains(there, racks, needed) for there in writers):
                return Chosen(members, absent)
    raise NotEnoughBookies(size, len(live))


def replace_members(
    candidates: Sequence[Candidate],
    ensemble: Sequence[BookieId],
    failed: Collection[int],
    write_quorum: int,
    rng: Chooser,
    *,
    racks: Mapping[BookieId, str],
    rule: RackRule = RackRule(),
    exclude: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """New bookies for the failed positions, for as many of them as possible (maybe none: empty).

    Never one of the present ensemble, failed members included (no A-B-A), and none of `exclude`.
    `racks` says where the members that stay are.
    """
    usable = [
        c
        for c in _shuffled(candidates, rng)
        if c.bookie_id not in exclude and c.bookie_id not in ensemble and _located(c, rule)
    ]
    seats = sorted(set(failed))
    if any(not 0 <= seat < len(ensemble) for seat in seats):
        raise InvalidArgument(f"positions {seats} are outside an ensemble of {len(ensemble)}")
    where = [racks.get(member, DEFAULT_RACK) for member in ensemble]
    wanted = rule.racks_needed(write_quorum)
    most = min(len(seats), len(usable))
    # More replaced members count for more than racks (unless enforced), racks for more than quarantine's return.
    for count in range(most, 0, -1):
        for pool in _pools(usable):
            if len(pool) < count:
                continue
            for level in _levels(wanted, rule):
                for subset in combinations(seats, count):
                    # Failed ones that are not replaced stay in the record, so they count as well (M6).
                    staying = [None if position in subset else rack for position, rack in enumerate(where)]
                    found = _Search(pool, staying, write_quorum, level).fill(list(subset))
                    if found is not None:
                        return found
    return {}


def _located(candidate: Candidate, rule: RackRule) -> bool:
    return not rule.enforce or candidate.rack not in (None, DEFAULT_RACK)


def _levels(wanted: int, rule: RackRule) -> Sequence[int]:
    return (wanted,) if rule.enforce else range(wanted, 0, -1)


def _pools(usable: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    healthy = [c for c in usable if not c.avoid]
    yield healthy
    if len(healthy) < len(usable):
        yield healthy + [c for c in usable if c.avoid]


def _shuffled(candidates: Sequence[Candidate], rng: Chooser) -> list[Candidate]:
    # Sorted first, so that the result depends on the generator and not on the caller's order.
    ordered = sorted(candidates, key=lambda c: c.bookie_id)
    for index in range(len(ordered) - 1, 0, -1):
        other = int(rng.random() * (index + 1))
        ordered[index], ordered[other] = ordered[other], ordered[index]
    return ordered


class _Search:
    """Depth-first search over racks (bookies of one rack are alike), bounded in steps."""

    def __init__(
        self, pool: Sequence[Candidate], fixed: Sequence[str | None], write_quorum: int, racks_needed: int
    ) -> None:
        self.by_rack: dict[str, list[BookieId]] = {}
        self.turn = {candidate.bookie_id: index for index, candidate in enumerate(pool)}
        for candidate in pool:
            self.by_rack.setdefault(candidate.rack or DEFAULT_RACK, []).append(candidate.bookie_id)
        self.taken = dict.fromkeys(self.by_rack, 0)
        self.where = list(fixed)
        self.write_quorum = write_quorum
        self.racks_needed = racks_needed
        self.steps = _SEARCH_STEPS

    def fill(self, seats: list[int]) -> dict[int, BookieId] | None:
        """Give each seat a bookie so that every window around a filled seat can span enough racks."""
        if not seats:
            return {}
        if self.steps == 0:
            return None
        seat, rest = seats[0], seats[1:]
        for rack in self._order(seat):
            if self.steps == 0:
                return None
            self.steps -= 1
            members = self.by_rack[rack]
            index = self.taken[rack]
            self.where[seat] = rack
            self.taken[rack] = index + 1
            if self._possible(seat):
                found = self.fill(rest)
                if found is not None:
                    found[seat] = members[index]
                    return found
            self.taken[rack] = index
            self.where[seat] = None
        return None

    def _order(self, seat: int) -> list[str]:
        """Racks with a free bookie, those least used around the seat first, then as the bookies were shuffled."""
        free = [rack for rack, members in self.by_rack.items() if self.taken[rack] < len(members)]
        free.sort(key=lambda rack: self.turn[self.by_rack[rack][self.taken[rack]]])
        if self.racks_needed > 1:
            size, reach = len(self.where), self.write_quorum - 1
            near = [self.where[(seat + offset) % size] for offset in range(-reach, reach + 1) if offset % size]
            free.sort(key=near.count)
        return free

    def _possible(self, seat: int) -> bool:
        size = len(self.where)
        for start in range(seat - self.write_quorum + 1, seat + 1):
            window = [self.where[(start + offset) % size] for offset in range(self.write_quorum)]
            if len({rack for rack in window if rack is not None}) + window.count(None) < self.racks_needed:
                return False
        return True
