"""Choosing bookies: a new ensemble, one with members that are away, replacements, and the fewest moves that mend one.

Pure functions of (candidates, what must hold, a generator passed in). Who is alive, quarantined or failed is the
business of client/cluster/bookies; here they arrive as candidates and as things to avoid.

The rule (M6): every write quorum, that is every window of Qw consecutive positions, spans at least min(Qw, k) domains
of each level. It is met where it can be; where it is enforced it is a condition, and a bookie whose place is not known
is never taken. Where it cannot be met, the write quorum that spans the fewest domains spans as many as it can; so with
hosts for Qw copies and an ensemble of Qw, each copy is on a host of its own. A wider ensemble may need more hosts than
Qw, because its write quorums overlap: five bookies with write quorums of three need five.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Protocol

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import Breach, ack_rules, asks, badness, breaches
from buckram.core.placement.policy import ANYWHERE, LevelRule, PlacementPolicy
from buckram.core.placement.search import Chooser, Place, Search, drawn, relaxations
from buckram.core.placement.topology import Topology
from buckram.errors import InvalidArgument, NotEnoughBookies
from buckram.types import BookieId, Position

NO_TOPOLOGY = Topology()
_TRIES = 200
"""Maximum number of choices of absent members that are tried, for each set of needs."""
_SLOW_TIMES, _SLOW_S, _LEAST_TIMED = 4.0, 0.02, 2
"""Limits of a slow bookie: its adds take more than `_SLOW_TIMES` times the median of at least `_LEAST_TIMED` others,
and at least `_SLOW_S` seconds."""
_HEAVIEST = 3.0
"""Largest weight of a bookie, as a multiple of the median; the smallest is the inverse of it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One bookie that may be chosen.

    `avoid`: choose it only if there is no other choice (quarantine, L9). `free_bytes`: its weight if the policy has
    `weights`; 0: unknown, which counts as the least that is known. `latency_s`: average of its recent adds, in seconds;
    None: unknown. A bookie that is slow compared with the others is avoided, too.
    """

    bookie_id: BookieId
    avoid: bool = False
    free_bytes: int = 0
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A new ensemble, the positions of those members that are away, and where it falls short of the policy."""

    members: tuple[BookieId, ...]
    absent: tuple[Position, ...] = ()
    short: tuple[Breach, ...] = ()


def choose_ensemble(
    candidates: Sequence[Candidate],
    quorum: Quorum,
    rng: Chooser,
    *,
    topology: Topology = NO_TOPOLOGY,
    policy: PlacementPolicy = ANYWHERE,
    exclude: Collection[BookieId] = (),
) -> Chosen:
    """Return a new ensemble of distinct bookies, in order.

    Raises NotEnoughBookies if there are too few bookies, or enough in the wrong places.
    """
    size, width = quorum.ensemble_size, quorum.write_quorum
    every = [c for c in drawn_candidates(candidates, topology, policy, width, rng) if c.bookie_id not in exclude]
    usable = [c for c in every if allowed(c.bookie_id, topology, policy, width)]
    if len(every) < size:
        raise NotEnoughBookies(size, len(every))
    for pool in _pools(usable, topology, policy):
        if len(pool) < size:
            continue
        places = places_of(pool, topology, policy)
        for needs in _needs(policy, width, [place for _, place in places], size):
            found = Search(places, [None] * size, width, needs, policy.strict).fill(range(size))
            if found is not None:
                members = tuple(found[seat] for seat in range(size))
                return Chosen(members, short=tuple(breaches(members, quorum, policy, topology)))
    # There are enough of them, in the wrong places: a smaller ensemble is no cure.
    raise NotEnoughBookies(size, len(every), cannot_meet(every, quorum, policy, topology))


def attainable(
    candidates: Sequence[Candidate], quorum: Quorum, policy: PlacementPolicy, topology: Topology
) -> Mapping[str, int]:
    """Return by level how many domains every write quorum of a new ensemble can span, if no candidate is avoided.

    At most as many as the policy asks for; 1 for each level if no such ensemble is possible at all.
    """
    size, width = quorum.ensemble_size, quorum.write_quorum
    usable = [c for c in candidates if allowed(c.bookie_id, topology, policy, width)]
    usable.sort(key=lambda c: c.bookie_id)
    places = places_of(usable, topology, policy)
    levels = [rule.level for rule in policy.rules]
    if len(places) >= size:
        for needs in _needs(policy, width, [place for _, place in places], size):
            if Search(places, [None] * size, width, needs, policy.strict).fill(range(size)) is not None:
                return dict(zip(levels, needs, strict=True))
    return dict.fromkeys(levels, 1)


def choose_with_absent(
    candidates: Sequence[Candidate],
    away: Sequence[BookieId],
    quorum: Quorum,
    rng: Chooser,
    *,
    topology: Topology = NO_TOPOLOGY,
    policy: PlacementPolicy = ANYWHERE,
) -> Chosen:
    """Return a new ensemble of all live bookies, which are too few, and as many of `away` as are missing (M11).

    At most Qw - Qa members are absent, so that every write set has Qa live members. If a rule is enforced, these span
    the domains that an acknowledgement needs, or nothing could be acknowledged. Earlier ones in `away` are preferred.
    Raises NotEnoughBookies if there is no such ensemble.
    """
    size, width = quorum.ensemble_size, quorum.write_quorum
    drawn_ones = drawn_candidates(candidates, topology, policy, width, rng)
    live = [c for c in drawn_ones if allowed(c.bookie_id, topology, policy, width)]
    here = dict.fromkeys(c.bookie_id for c in live)
    known = [Candidate(b) for b in away if b not in here and allowed(b, topology, policy, width)]
    missing = size - len(live)
    if not 0 < missing <= min(width - quorum.ack_quorum, len(known)):
        raise NotEnoughBookies(size, len(live))
    strict = [rule for rule in ack_rules(policy, topology.domain, width) if rule.strict]
    everywhere = [place for _, place in places_of([*live, *known], topology, policy)]
    for needs in _needs(policy, width, everywhere):
        for absentees in islice(combinations(known, missing), _TRIES):
            places = places_of([*live, *absentees], topology, policy)
            found = Search(places, [None] * size, width, needs, policy.strict).fill(range(size))
            if found is None:
                continue
            members = tuple(found[seat] for seat in range(size))
            absent = tuple(Position(seat) for seat, member in enumerate(members) if member not in here)
            writers = [[members[p] for p in window if p not in absent] for window in quorum.windows()]
            spread = all(rule.lacking(there, there) <= 0 for rule in strict for there in writers)
            if quorum.writable(absent) and spread:
                return Chosen(members, absent, tuple(breaches(members, quorum, policy, topology)))
    raise NotEnoughBookies(size, len(live))


def replace_members(
    candidates: Sequence[Candidate],
    ensemble: Sequence[BookieId],
    failed: Collection[int],
    write_quorum: int,
    rng: Chooser,
    *,
    topology: Topology = NO_TOPOLOGY,
    policy: PlacementPolicy = ANYWHERE,
    exclude: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """Return new bookies by position, for as many of the failed positions as possible; empty if there is none.

    A bookie of the present ensemble is never chosen, failed members included (no A-B-A), and none of `exclude`.
    Raises InvalidArgument for a position outside the ensemble.
    """
    usable = [
        c
        for c in drawn_candidates(candidates, topology, policy, write_quorum, rng)
        if c.bookie_id not in exclude
        and c.bookie_id not in ensemble
        and allowed(c.bookie_id, topology, policy, write_quorum)
    ]
    seats = sorted(set(failed))
    if any(not 0 <= seat < len(ensemble) for seat in seats):
        raise InvalidArgument(f"positions {seats} are outside an ensemble of {len(ensemble)}")
    where = [place_of(member, topology, policy) for member in ensemble]
    # Replace as many members as possible first, then avoid those to avoid, then spread as far as unenforced rules ask.
    for count in range(min(len(seats), len(usable)), 0, -1):
        for pool in _pools(usable, topology, policy):
            if len(pool) < count:
                continue
            places = places_of(pool, topology, policy)
            for needs in _needs(policy, write_quorum, [*where, *(place for _, place in places)]):
                for subset in combinations(seats, count):
                    # Failed ones that are not replaced stay in the record, so they count as well (M6).
                    staying = [None if seat in subset else place for seat, place in enumerate(where)]
                    found = Search(places, staying, write_quorum, needs, policy.strict).fill(subset)
                    if found is not None:
                        return found
    return {}


# -- who may be taken -------------------------------------------------------------------------------------------------


def located(bookie: BookieId, topology: Topology, policy: PlacementPolicy, write_quorum: int) -> bool:
    """Return whether the place of a bookie is known at the level of each rule that applies, but for rules of `all`."""
    return all(
        topology.domain(bookie, rule.level) is not None
        for rule in policy.rules
        if rule.needed(write_quorum) > 1 and not rule.as_there_are and asks(rule, topology)
    )


def allowed(bookie: BookieId, topology: Topology, policy: PlacementPolicy, write_quorum: int) -> bool:
    """Return whether a bookie may be taken at all: its place is known at each level whose rule is enforced, and it has
    the label of the policy, or, if that is not enforced, at least no other one."""
    if policy.enforce_label and not policy.label_fits(bookie, topology):
        return False
    if policy.label and not policy.label_fits(bookie, topology) and topology.labelled(bookie):
        return False  # it is reserved for another label
    return all(
        topology.domain(bookie, rule.level) is not None
        for rule in policy.rules
        if rule.enforce and rule.needed(write_quorum) > 1
    )


def cannot_meet(every: Sequence[Candidate], quorum: Quorum, policy: PlacementPolicy, topology: Topology) -> str:
    """Return why there is no ensemble although there are enough bookies: the level, its rule, the bookies that there
    are in each domain, and the cure."""
    labelled = [c for c in every if policy.label_fits(c.bookie_id, topology) or not topology.labelled(c.bookie_id)]
    if policy.enforce_label:
        labelled = [c for c in labelled if policy.label_fits(c.bookie_id, topology)]
    if policy.label and len(labelled) < quorum.ensemble_size:
        return (
            f"placement `{policy}`: {len(labelled)} of {len(every)} usable bookies may be taken for label "
            f"{policy.label}, {quorum.ensemble_size} are needed: label more with `buckram placement topology set "
            f"BOOKIE PATH --label {policy.label}`, or take the label out of the placement"
        )
    for rule in policy.rules:
        there: dict[str, int] = {}
        for c in labelled:
            domain = topology.domain(c.bookie_id, rule.level)
            there[domain or ""] = there.get(domain or "", 0) + 1
        nowhere = there.pop("", 0)
        needed = rule.needed(quorum.write_quorum)
        if rule.enforce and (len(there) < needed or sum(there.values()) < quorum.ensemble_size):
            break
    else:
        rule = next((rule for rule in policy.rules if rule.enforce), policy.rules[0])
    counts = ", ".join(f"{count} in {name}" for name, count in sorted(there.items())) or "none with a place"
    unknown = f", {nowhere} without a known {rule.level}" if nowhere else ""
    return (
        f"level {rule.level}: placement `{policy}` asks each {quorum.write_quorum} copies to be in {needed} of them "
        f"and is enforced, but of {len(labelled)} usable bookies there are {counts}{unknown}: say where bookies are "
        f"with `buckram placement topology set`, start some in another {rule.level}, or do not enforce the rule"
    )


def place_of(bookie: BookieId, topology: Topology, policy: PlacementPolicy) -> Place:
    return tuple(topology.domain(bookie, rule.level) or "" for rule in policy.rules)


def places_of(pool: Sequence[Candidate], topology: Topology, policy: PlacementPolicy) -> list[tuple[BookieId, Place]]:
    return [(c.bookie_id, place_of(c.bookie_id, topology, policy)) for c in pool]


def _needs(
    policy: PlacementPolicy, write_quorum: int, places: Sequence[Place], seats: int = 0
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of domains to ask of the levels, in the order in which they are tried.

    A level is asked for no more domains than there are, unless its rule is enforced. `seats`: size of an ensemble whose
    members are all to be found among `places`; 0: some members are given.
    """
    wanted, least = [], []
    for index, rule in enumerate(policy.rules):
        there = Counter(place[index] for place in places)
        floor = rule.needed(write_quorum) if rule.enforce else 1
        most = min(len(there), rule.wanted(write_quorum))
        # If no write quorum may have a domain twice, a domain can have at most every Qw-th seat.
        if 1 < most == write_quorum and sum(min(n, seats // write_quorum) for n in there.values()) < seats:
            most -= 1
        wanted.append(max(floor, most))
        least.append(floor)
    return relaxations(wanted, least)


def _pools(usable: Sequence[Candidate], topology: Topology, policy: PlacementPolicy) -> Iterator[list[Candidate]]:
    """Yield growing pools: bookies of the policy's label without those to avoid, then with them, then other bookies."""
    meant = [c for c in usable if policy.label_fits(c.bookie_id, topology)]
    others = [c for c in usable if not policy.label_fits(c.bookie_id, topology)]
    pool: list[Candidate] = []
    for group in (meant, others):
        for avoid in (False, True):
            more = [c for c in group if c.avoid is avoid]
            if more or not pool:
                pool = pool + more
                yield pool


def drawn_candidates(
    candidates: Sequence[Candidate], topology: Topology, policy: PlacementPolicy, write_quorum: int, rng: Chooser
) -> list[Candidate]:
    by_id = {c.bookie_id: c for c in _avoiding_slow(candidates, topology, policy, write_quorum)}
    return [by_id[bookie] for bookie in drawn(_weights(candidates, policy), rng)]


def _avoiding_slow(
    candidates: Sequence[Candidate], topology: Topology, policy: PlacementPolicy, write_quorum: int
) -> Sequence[Candidate]:
    """Return the candidates with slow ones marked as to be avoided; unchanged if the others are in too few domains for
    a rule, since the spread of copies comes before speed."""
    slow = slow_ones(candidates)
    if not slow:
        return candidates
    good = [c.bookie_id for c in candidates if not c.avoid]
    quick = [bookie for bookie in good if bookie not in slow]
    for rule in policy.rules:
        there, left = ({topology.domain(b, rule.level) or "" for b in group} for group in (good, quick))
        if len(left) < min(len(there), rule.wanted(write_quorum)):
            return candidates
    return [replace(c, avoid=True) if c.bookie_id in slow else c for c in candidates]


def _weights(candidates: Sequence[Candidate], policy: PlacementPolicy) -> dict[BookieId, float]:
    weights = dict.fromkeys((c.bookie_id for c in candidates), 1.0)
    if policy.weights and any(c.free_bytes > 0 for c in candidates):
        known = sorted(c.free_bytes for c in candidates if c.free_bytes > 0)
        middle = known[len(known) // 2]
        for c in candidates:
            weights[c.bookie_id] = _bounded((c.free_bytes if c.free_bytes > 0 else known[0]) / middle)
    return weights


def slow_ones(candidates: Sequence[Candidate]) -> dict[BookieId, str]:
    """Return the bookies whose adds take several times the median of the others, each with a sentence that says so."""
    timed = {c.bookie_id: c.latency_s for c in candidates if c.latency_s is not None}
    found: dict[BookieId, str] = {}
    for bookie, latency_s in timed.items():
        others = sorted(other_s for other, other_s in timed.items() if other != bookie)
        if len(others) < _LEAST_TIMED or latency_s < _SLOW_S:
            continue
        middle_s = others[len(others) // 2]
        if latency_s > _SLOW_TIMES * middle_s:
            found[bookie] = f"its adds took {latency_s * 1000:.0f} ms lately, those of others {middle_s * 1000:.0f} ms"
    return found


def _bounded(weight: float) -> float:
    return max(1 / _HEAVIEST, min(_HEAVIEST, weight))


def fewest_moves(
    candidates: Sequence[Candidate],
    ensemble: Sequence[BookieId],
    quorum: Quorum,
    rng: Chooser,
    *,
    topology: Topology,
    policy: PlacementPolicy,
) -> dict[int, BookieId] | None:
    """Return the fewest new members, by position, with which the ensemble meets the rules.

    Empty if it meets them already; None if no change helps. A rule of `all` is met as far as possible; rules that
    cannot be met are left no further from it than they are.
    """
    width = quorum.write_quorum
    limits = attainable(candidates, quorum, policy, topology)
    now = badness(ensemble, quorum, policy, topology, limits)
    if not any(now):
        return {}
    drawn_ones = drawn_candidates(candidates, topology, policy, width, rng)
    pool = [c for c in drawn_ones if c.bookie_id not in ensemble and policy.label_fits(c.bookie_id, topology)]
    pool.sort(key=lambda c: c.avoid)
    where = [place_of(member, topology, policy) for member in ensemble]
    strict = [not rule.as_there_are for rule in policy.rules]
    for needs, good, places_matter in _aims(policy, topology, width, limits, now):
        usable = [c for c in pool if not places_matter or located(c.bookie_id, topology, policy, width)]
        places = places_of(usable, topology, policy)
        for count in range(1, min(len(ensemble), len(usable)) + 1):
            for subset in islice(combinations(range(len(ensemble)), count), _TRIES):
                staying = [None if seat in subset else place for seat, place in enumerate(where)]
                found = Search(places, staying, width, needs, strict).fill(subset)
                if found is None:
                    continue
                after = [found.get(seat, member) for seat, member in enumerate(ensemble)]
                if good(badness(after, quorum, policy, topology, limits)):
                    return dict(sorted(found.items()))
    return None


class _GoodEnough(Protocol):
    def __call__(self, after: tuple[int, ...], /) -> bool:
        """Return whether an ensemble with this badness is good enough."""
        ...


def _aims(
    policy: PlacementPolicy, topology: Topology, write_quorum: int, limits: Mapping[str, int], now: tuple[int, ...]
) -> Iterator[tuple[list[int], _GoodEnough, bool]]:
    """Yield aims in the order in which they are tried: the number of domains to ask of each level, which badness is
    good enough, and whether only bookies with known places may be taken.

    First everything is asked for, then less and less of rules of `all`. If other rules cannot be met, anything better
    will do at last that makes none of them worse.
    """
    modest = [index for index, rule in enumerate(policy.rules) if rule.as_there_are]
    firm = [0, *(index + 1 for index, rule in enumerate(policy.rules) if not rule.as_there_are)]
    full = [_aim(rule, write_quorum, limits) if asks(rule, topology) else 1 for rule in policy.rules]
    most = max((full[index] for index in modest), default=1)
    for asked in range(most, 0, -1):
        needs = [min(need, asked) if index in modest else need for index, need in enumerate(full)]
        best = asked == most

        def met(after: tuple[int, ...], best: bool = best) -> bool:
            return not any(after[part] for part in firm) and (not any(after) if best else after < now)

        yield needs, met, True
    if not any(now[part] for part in firm):
        return
    for asked in range(most, 1, -1):
        needs = [min(need, asked) if index in modest else 1 for index, need in enumerate(full)]

        def better(after: tuple[int, ...]) -> bool:
            return all(after[part] <= now[part] for part in firm) and after < now

        yield needs, better, False


def _aim(rule: LevelRule, write_quorum: int, limits: Mapping[str, int]) -> int:
    needed = rule.needed(write_quorum)
    return min(needed, limits.get(rule.level, needed)) if rule.as_there_are else needed
