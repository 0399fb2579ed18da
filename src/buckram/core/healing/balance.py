"""Rebalancing: which places of fragments to move from the fullest bookies to the emptiest, to make them equally full.

Pure, from records and disks. The bytes that a bookie holds are computed from the records and not from its disk, where
copies that were moved away stay until they are collected. Not here: the copying (`healing/operations/rebalance`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from buckram.core.ledgers.metadata import fragment_end
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import allowed
from buckram.core.placement.judge import badness
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, Position

_KEPT = 2000
"""Maximum number of places that are kept of each bookie, the largest ones, so that memory does not grow with the
ledgers."""


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """The disk of a bookie. `taker`: True if it may get new entries."""

    free_bytes: int
    total_bytes: int
    taker: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """Move of one place of a fragment from a bookie to another, with an estimate of its bytes."""

    ledger: LedgerId
    first: EntryId
    source: BookieId
    target: BookieId
    bytes: int


@dataclass(frozen=True, slots=True)
class _Fragment:
    ensemble: tuple[BookieId, ...]
    quorum: Quorum
    policy: PlacementPolicy


_Place = tuple[int, LedgerId, EntryId, Position, _Fragment]
"""A place of a fragment: bytes first, so that a heap drops the smallest one first. Fragments are never compared, since
no two places are equal before them."""


class Balance:
    """Planner of moves: `add` every ledger, then call `moves`. Each move makes the fuller one of its two bookies less
    full, so that planning ends."""

    def __init__(self, spaces: Mapping[BookieId, BookieSpace], topology: Topology, within: float) -> None:
        """`within`: distance from the mean, as a share of it, up to which bookies are even enough."""
        self._spaces, self._topology, self._within = dict(spaces), topology, within
        sized = all(space.total_bytes > 0 for space in spaces.values())
        self._size = {bookie: space.total_bytes if sized else 1 for bookie, space in spaces.items()}
        self.held: dict[BookieId, int] = dict.fromkeys(sorted(spaces), 0)
        """Bytes that records place on each bookie, after the moves that were planned."""
        self._places: dict[BookieId, list[_Place]] = {bookie: [] for bookie in spaces}
        self._changed: dict[tuple[LedgerId, EntryId], tuple[BookieId, ...]] = {}
        """Ensembles of fragments after the moves that were planned."""
        self._free = {bookie: space.free_bytes for bookie, space in spaces.items()}

    @property
    def mean(self) -> float:
        """Return the mean of held bytes per byte of disk; per bookie, if the size of any disk is unknown."""
        return sum(self.held.values()) / max(1, sum(self._size.values()))

    @property
    def even(self) -> bool:
        """Return whether no bookie is further from the mean than `within`."""
        return all(abs(self._full(bookie) - self.mean) <= self._within * self.mean for bookie in self.held)

    def add(self, ledger: LedgerId, metadata: LedgerMetadata, policy: PlacementPolicy) -> None:
        """Count a ledger. Open ones are skipped, since their size is unknown."""
        if not metadata.closed or not metadata.length or metadata.last_entry is None:
            return
        quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        for index, fragment in enumerate(metadata.fragments):
            end = fragment_end(metadata, index)
            if end is None or end < fragment.first_entry:
                continue
            entries = (end - fragment.first_entry + 1) * metadata.write_quorum
            size = metadata.length * entries // (metadata.ensemble_size * (metadata.last_entry + 1))
            there = all(bookie in self.held for bookie in fragment.ensemble)
            known = _Fragment(fragment.ensemble, quorum, policy)
            for position, bookie in enumerate(fragment.ensemble):
                if bookie in self.held:
                    self.held[bookie] += size
                if there and size and bookie in self.held:
                    self._keep(bookie, (size, ledger, fragment.first_entry, Position(position), known))

    def _keep(self, bookie: BookieId, place: _Place) -> None:
        places = self._places[bookie]
        if len(places) < _KEPT:
            heapq.heappush(places, place)
        else:
            heapq.heappushpop(places, place)

    def moves(self) -> list[Move]:
        """Plan moves, in order; empty if bookies are even, or no allowed move makes them more even."""
        found: list[Move] = []
        mean = self.mean
        left = {bookie: sorted(places, key=_by_size) for bookie, places in self._places.items() if places}
        while left and not self.even:
            source = max(left, key=lambda bookie: (self._full(bookie), bookie))
            if self._full(source) <= mean:
                break
            move = self._next(source, left[source])
            if move is None:
                del left[source]
            else:
                found.append(move)
        return found

    def _next(self, source: BookieId, places: list[_Place]) -> Move | None:
        # A place that fits nowhere now fits nowhere later: this bookie only becomes emptier, the others fuller.
        takers = [bookie for bookie, space in self._spaces.items() if space.taker and bookie != source]
        while places:
            size, ledger, first, position, fragment = places.pop()
            before = self._changed.get((ledger, first), fragment.ensemble)
            for target in sorted(takers, key=lambda bookie: (self._full(bookie), bookie)):
                if self._full(target) + size / self._size[target] >= self._full(source):
                    break  # the move would win nothing, and the other targets are even fuller
                after = tuple(target if at == position else bookie for at, bookie in enumerate(before))
                if size <= self._free[target] and self._fits(before, after, target, fragment):
                    self._changed[ledger, first] = after
                    self.held[source] -= size
                    self.held[target] += size
                    self._free[target] -= size
                    return Move(ledger, first, source, target, size)
        return None

    def _fits(
        self, before: Sequence[BookieId], after: Sequence[BookieId], target: BookieId, fragment: _Fragment
    ) -> bool:
        """Return whether the target may join the ensemble and makes it no worse for the ledger's placement policy."""
        quorum, policy = fragment.quorum, fragment.policy
        if target in before or not allowed(target, self._topology, policy, quorum.write_quorum):
            return False
        broken = badness(after, quorum, policy, self._topology)
        return not any(broken) or broken <= badness(before, quorum, policy, self._topology)

    def _full(self, bookie: BookieId) -> float:
        return self.held[bookie] / self._size[bookie]


def _by_size(place: _Place) -> tuple[int, LedgerId, EntryId]:
    return place[0], place[1], place[2]
