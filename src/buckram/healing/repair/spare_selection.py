"""Choice of a replacement for a member that is lost or leaves: the bookie that an operator wants there, else any."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from buckram.client.cluster.bookies import BookieWatcher
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import badness
from buckram.core.placement.policy import PlacementPolicy
from buckram.types import BookieId, Position


def spare_members(
    bookies: BookieWatcher,
    ensemble: Sequence[BookieId],
    failed: Mapping[Position, BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    wanted: Mapping[BookieId, BookieId],
) -> dict[Position, BookieId]:
    """Return replacements by position, as many as there are. `wanted`: by the member that gives way, whom to take
    instead.

    Where the placement is worse with the wanted bookie than with the policy's own choice, the policy chooses.
    """
    found = bookies.replace(ensemble, failed, write_quorum=quorum.write_quorum, policy=policy)
    broken = partial(_broken, bookies, ensemble, quorum, policy)
    for position, member in failed.items():
        target = wanted.get(member, "")
        if not target or target in ensemble or target in found.values():
            continue
        alone = bookies.replace(
            ensemble, {position: member}, write_quorum=quorum.write_quorum, policy=policy, only=(target,)
        )
        if alone and (position not in found or broken(found | alone) <= broken(found)):
            found |= alone
    return dict(sorted(found.items()))


def next_spare(
    bookies: BookieWatcher,
    ensemble: Sequence[BookieId],
    failed: Mapping[Position, BookieId],
    left: Collection[Position],
    quorum: Quorum,
    policy: PlacementPolicy,
    wanted: Mapping[BookieId, BookieId],
) -> tuple[Position, BookieId | None]:
    """Return which of `left`, some of the failed, to replace first, and by whom; None if no bookie can take its place.

    The other failed members stay in the record, for now or because their entries cannot be had, so they count for the
    placement of this one (M6), as far as their place is known.
    """
    together = spare_members(bookies, ensemble, failed, quorum, policy, wanted)
    broken = partial(_broken, bookies, ensemble, quorum, policy)
    now = broken({})
    options = [(position, together[position]) for position in left if position in together]
    options = [one for one in options if broken(dict([one])) <= now]
    # `now` includes members whose place is unknown: an option that is no worse may still be worse than necessary.
    if not options or any(broken(dict(options[:1]))):
        for position in left:
            alone = spare_members(bookies, ensemble, {position: failed[position]}, quorum, policy, wanted)
            options += [(position, alone[position])] if alone else []
    if options:
        return min(options, key=lambda one: broken(dict([one])))
    some = next(iter(left))
    return some, None if policy.enforces else together.get(some)


def _broken(
    bookies: BookieWatcher,
    ensemble: Sequence[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    members: Mapping[Position, BookieId],
) -> tuple[int, ...]:
    """Return how far an ensemble is from its placement with `members` in the places of others."""
    after = [members.get(position, member) for position, member in enumerate(ensemble)]
    return badness(after, quorum, policy, bookies.topology)
