"""What a ledger lacks while some of its bookies are gone: which members of which fragments, and how endangered it is.

Pure, from a ledger's record and a set of bookies. Not here: reading replicas (`client/maintain/repair`), when a bookie
counts as gone (`core/healing/losses`).
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
    """The end of the fragment; None: it can still grow, so nobody may replace the member yet."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one ledger lacks."""

    ledger: LedgerId
    missing: tuple[Missing, ...]
    survivors: int
    """The fewest copies that any entry still has on bookies that are there; Qw where nothing is missing."""

    @property
    def healthy(self) -> bool:
        return not self.missing

    @property
    def open_tail(self) -> bool:
        """Its last fragment lacks a member and can still grow: it has to be closed or recovered before."""
        return any(member.last is None for member in self.missing)

    @property
    def closed_part(self) -> tuple[Missing, ...]:
        """What can be copied now."""
        return tuple(member for member in self.missing if member.last is not None)


def needs_of(ledger: LedgerId, metadata: LedgerMetadata, gone: Collection[BookieId]) -> Needs:
    """An empty last fragment of a closed ledger counts, too: its member has to be replaced without copying anything."""
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
    """Among the write sets that have an entry in the fragment."""
    count = quorum.ensemble_size if end is None else min(quorum.ensemble_size, end - first + 1)
    sets = (quorum.write_set(first + offset) for offset in range(count))
    return min(sum(position not in lost for position in members) for members in sets)


def fewest_left(metadata: LedgerMetadata, bookie: BookieId, there: Collection[BookieId]) -> int | None:
    """The fewest copies on bookies that are `there` of any entry that is, or can come to be, on `bookie` as well.

    None where nothing is placed on it.
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
    """About how many payload bytes are to be copied now; of an open ledger nobody knows."""
    if metadata.length is None or metadata.last_entry is None or metadata.last_entry < 0:
        return 0
    entries = sum(max(0, member.last - member.first + 1) for member in needs.closed_part if member.last is not None)
    shares = entries * metadata.write_quorum // metadata.ensemble_size
    return metadata.length * shares // (metadata.last_entry + 1)


def entries_held(metadata: LedgerMetadata, bookie: BookieId) -> int:
    """How many entries the record places on a bookie, as far as fragments have an end."""
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    return sum(
        high - low + 1
        for member in needs_of(0, metadata, (bookie,)).closed_part
        if member.last is not None
        for low, high in quorum.held_ranges(member.position, member.first, member.last)
    )


def places_of(metadata: LedgerMetadata, bookie: BookieId, up_to: EntryId) -> Iterator[tuple[EntryId, EntryId]]:
    """The entries up to `up_to` that the record places on a bookie: (first, last), ascending.

    Of a fragment that can still grow these are the ones that its writer may have sent there.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    for index, fragment in enumerate(metadata.fragments):
        if bookie in fragment.ensemble:
            end = fragment_end(metadata, index)
            last = up_to if end is None else min(end, up_to)
            yield from quorum.held_ranges(fragment.ensemble.index(bookie), fragment.first_entry, last)


def members_of(metadata: LedgerMetadata) -> list[BookieId]:
    """Every bookie that the record names, in the order of its fragments."""
    return list(dict.fromkeys(member for fragment in metadata.fragments for member in fragment.ensemble))


def urgency(needs: Needs) -> tuple[int, LedgerId]:
    """The order in which workers take ledgers: those with the fewest copies first, then by id."""
    return needs.survivors, needs.ledger
