"""Needs of a ledger while some of its bookies are gone: the missing members of its fragments, and the copies left.

Pure, from a ledger's record and a set of bookies. Not here: reading replicas (`client/maintain/repair`), the decision
that a bookie is gone (`core/healing/lost_bookies`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from buckram.core.ledgers.metadata import fragment_end
from buckram.core.ledgers.quorum import Quorum
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, Position


@dataclass(frozen=True, slots=True)
class Missing:
    """A member of a fragment whose bookie is gone."""

    position: Position
    bookie: BookieId
    first: EntryId
    last: EntryId | None
    """Last entry of the fragment; None: it can still grow, so the member may not be replaced yet."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The missing members of one ledger."""

    ledger: LedgerId
    missing: tuple[Missing, ...]
    survivors: int
    """Fewest copies that any entry still has on bookies that are there; Qw if no member is missing."""

    @property
    def healthy(self) -> bool:
        return not self.missing

    @property
    def open_tail(self) -> bool:
        """Return whether the last fragment lacks a member and can still grow: the ledger has to be closed or recovered
        before that member can be replaced."""
        return any(member.last is None for member in self.missing)

    @property
    def closed_part(self) -> tuple[Missing, ...]:
        """Return the missing members that can be replaced now, those of fragments that have an end."""
        return tuple(member for member in self.missing if member.last is not None)


def needs_of(ledger: LedgerId, metadata: LedgerMetadata, gone: Collection[BookieId]) -> Needs:
    """Return what a ledger lacks without the bookies that are `gone`.

    A member of an empty last fragment of a closed ledger counts, too: it has to be replaced, without copying anything.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    missing: list[Missing] = []
    survivors = quorum.write_quorum
    for index, fragment in enumerate(metadata.fragments):
        lost = {position: bookie for position, bookie in enumerate(fragment.ensemble) if bookie in gone}
        if not lost:
            continue
        end = fragment_end(metadata, index)
        missing += [Missing(position, bookie, fragment.first_entry, end) for position, bookie in lost.items()]
        if end is None or end >= fragment.first_entry:
            survivors = min(survivors, _fewest_copies(quorum, lost, fragment.first_entry, end))
    return Needs(ledger, tuple(missing), survivors)


def _fewest_copies(quorum: Quorum, lost: Collection[Position], first: EntryId, end: EntryId | None) -> int:
    """Return the fewest copies left in any write set that has an entry in the fragment."""
    count = quorum.ensemble_size if end is None else min(quorum.ensemble_size, end - first + 1)
    sets = (quorum.write_set(first + offset) for offset in range(count))
    return min(sum(position not in lost for position in members) for members in sets)


def fewest_left(metadata: LedgerMetadata, bookie: BookieId, there: Collection[BookieId]) -> int | None:
    """Return the fewest copies, on bookies that are `there`, of any entry that is, or can still be placed, on `bookie`.

    None if the ledger places no entry on it.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    fewest: list[int] = []
    for index, fragment in enumerate(metadata.fragments):
        end = fragment_end(metadata, index)
        if bookie not in fragment.ensemble or (end is not None and end < fragment.first_entry):
            continue
        position, first = fragment.ensemble.index(bookie), fragment.first_entry
        count = quorum.ensemble_size if end is None else min(quorum.ensemble_size, end - first + 1)
        sets = [members for entry in range(first, first + count) if position in (members := quorum.write_set(entry))]
        fewest += [sum(fragment.ensemble[member] in there for member in members) for members in sets]
    return min(fewest, default=None)


def copied_bytes(metadata: LedgerMetadata, needs: Needs) -> int:
    """Estimate the payload bytes that are to be copied now; 0 for an open ledger, whose size is unknown."""
    if metadata.length is None or metadata.last_entry is None or metadata.last_entry < 0:
        return 0
    entries = sum(max(0, member.last - member.first + 1) for member in needs.closed_part if member.last is not None)
    shares = entries * metadata.write_quorum // metadata.ensemble_size
    return metadata.length * shares // (metadata.last_entry + 1)


def entries_held(metadata: LedgerMetadata, bookie: BookieId) -> int:
    """Return the number of entries that the record places on a bookie, in fragments that have an end."""
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    return sum(
        high - low + 1
        for member in needs_of(0, metadata, (bookie,)).closed_part
        if member.last is not None
        for low, high in quorum.held_ranges(member.position, member.first, member.last)
    )


def places_of(metadata: LedgerMetadata, bookie: BookieId, up_to: EntryId) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield the entries up to `up_to` that the record places on a bookie, as ranges (first, last), ascending.

    In a fragment that can still grow, these are the entries that its writer may have sent there.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    for index, fragment in enumerate(metadata.fragments):
        if bookie in fragment.ensemble:
            end = fragment_end(metadata, index)
            last = up_to if end is None else min(end, up_to)
            yield from quorum.held_ranges(fragment.ensemble.index(bookie), fragment.first_entry, last)


def members_of(metadata: LedgerMetadata) -> list[BookieId]:
    """Return every bookie that the record names, in the order of its fragments."""
    return list(dict.fromkeys(member for fragment in metadata.fragments for member in fragment.ensemble))


def urgency(needs: Needs) -> tuple[int, LedgerId]:
    """Return the key by which workers order ledgers: those with the fewest copies first, then by id."""
    return needs.survivors, needs.ledger
