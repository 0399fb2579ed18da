"""The fewest members of an ensemble to change so that it meets its placement or comes as near as can be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Protocol

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Candidate, attainable, drawn_candidates, located, place_of, places_of
from buckram.core.placement.judge import asks, badness
from buckram.core.placement.policy import LevelRule, PlacementPolicy
from buckram.core.placement.search import Chooser, Search
from buckram.core.placement.topology import Topology
from buckram.types import BookieId

_TRIES = 200
"""Maximum number of choices of members to move that are tried, for each number of them."""


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
