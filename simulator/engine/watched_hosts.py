"""Observing to which hosts copies go, in lives whose bookies share machines (M6): a second calculation.

Every choice of a client is compared with all choices that it had, by brute force and by where machines are. What may be
avoided (quarantine, slow disks) is taken from the client: that is judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any

from buckram.client.cluster.bookies import BookieWatcher
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Candidate, Chosen, slow_ones
from buckram.types import BookieId
from simulator.engine.planting import patched
from simulator.engine.world import World

_MOST = 8
"""Maximum number of bookies among which all choices are tried."""


@contextmanager
def watch_hosts(world: World, sites: int) -> Iterator[None]:
    """Judge each ensemble and each replacement. `sites`: number of hosts that bookies share; 0: nothing to judge."""
    if not sites:
        yield
        return
    choose, replace = BookieWatcher.choose, BookieWatcher.replace

    def watched_choose(self: BookieWatcher, quorum: Quorum, *args: Any, **options: Any) -> Chosen:
        candidates = self.candidates()
        found = choose(self, quorum, *args, **options)
        _check_new(world, candidates, found.members, quorum)
        return found

    def watched_replace(
        self: BookieWatcher,
        ensemble: Sequence[BookieId],
        failed: Mapping[int, BookieId],
        exclude: Collection[BookieId] = (),
        write_quorum: int = 1,
        **options: Any,
    ) -> dict[int, BookieId]:
        candidates = self.candidates()
        found = replace(self, ensemble, failed, exclude, write_quorum, **options)
        if found and not options.get("only") and all(self.last_info(member) is not None for member in ensemble):
            out = {*exclude, *failed.values(), *ensemble}
            seats = [seat for seat, bookie in failed.items() if ensemble[seat] == bookie]
            usable = [one for one in candidates if one.bookie_id not in out]
            _check_replaced(world, usable, ensemble, seats, found, write_quorum)
        return found

    with patched((BookieWatcher, "choose", watched_choose), (BookieWatcher, "replace", watched_replace)):
        yield


def _check_new(world: World, candidates: Sequence[Candidate], members: Sequence[BookieId], quorum: Quorum) -> None:
    pool = _pool(candidates, quorum.ensemble_size)
    if pool is None:
        return
    size, width = quorum.ensemble_size, quorum.write_quorum
    best = max(_fewest(world, order, width, range(size)) for order in permutations(pool, size))
    found = _fewest(world, members, width, range(size))
    if best > 1:
        world.report.situation("copies kept apart on shared hosts")
    world.report.check(
        "M6", found == best, "of {} a write quorum is on {} hosts, {} could be had of {}", members, found, best, pool
    )


def _check_replaced(
    world: World,
    usable: Sequence[Candidate],
    ensemble: Sequence[BookieId],
    seats: Sequence[int],
    found: Mapping[int, BookieId],
    width: int,
) -> None:
    pool = _pool(usable, len(found))
    if pool is None:
        return

    def reached(change: Mapping[int, BookieId]) -> int:
        after = [change.get(seat, member) for seat, member in enumerate(ensemble)]
        return _fewest(world, after, width, change)

    best = max(
        reached(dict(zip(some, order, strict=True)))
        for some in combinations(seats, len(found))
        for order in permutations(pool, len(found))
    )
    world.report.check(
        "M6",
        reached(found) == best,
        "{} in the places of {}: a write quorum is on {} hosts, {} could be had of {}",
        found,
        ensemble,
        reached(found),
        best,
        pool,
    )


def _pool(candidates: Sequence[Candidate], count: int) -> list[BookieId] | None:
    """Return the bookies among which the client could choose; None if this judge cannot tell."""
    if slow_ones(candidates) or len(candidates) > _MOST:
        return None
    good = [one.bookie_id for one in candidates if not one.avoid]
    return good if len(good) >= count else [one.bookie_id for one in candidates]


def _fewest(world: World, members: Sequence[BookieId], width: int, seats: Collection[int]) -> int:
    """Return the number of hosts of the write quorum on the fewest hosts, among those with one of these seats."""
    sites = [world.machines[member].site for member in members]
    size = len(sites)
    starts = dict.fromkeys((seat - back) % size for seat in seats for back in range(width))
    return min(len({sites[(start + step) % size] for step in range(width)}) for start in starts)


__all__ = ["watch_hosts"]
