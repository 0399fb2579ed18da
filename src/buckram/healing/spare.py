"""Who takes the place of a member that is lost or leaves: the bookie that an operator wants there, else any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buckram.client.shared.bookies import BookieWatcher
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import breaches
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
    """Replacements by position, as many as there are. `wanted`: by the member that gives way, whom to take instead.

    Where the placement is worse with the one that is wanted than with whom it would choose itself, it chooses.
    """
    found = bookies.replace(ensemble, failed, write_quorum=quorum.write_quorum, policy=policy)

    def broken(members: Mapping[Position, BookieId]) -> int:
        after = [members.get(position, member) for position, member in enumerate(ensemble)]
        return len(breaches(after, quorum, policy, bookies.topology))

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
