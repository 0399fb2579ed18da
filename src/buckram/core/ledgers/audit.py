"""What an audit of replicas reads and how it compares them, pure: pieces of work, sums of blocks, findings.

Every replica is verified against the digests of its own entries; sums of digests then tell replicas apart that are good
each by itself and yet hold different bytes. Reading is client/maintain/audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from buckram.core.ledgers.metadata import birth_of, fragment_end
from buckram.core.ledgers.quorum import Quorum
from buckram.types import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Position

BLOCK_BYTES = 8 * 1024 * 1024
MAX_BLOCK = 1024
NAMED = 100
"""So many bad entries of a piece are named; the rest is counted."""
_MASK = 2**64 - 1
_Birth: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """What one bookie stores of entries first..last of a ledger; a good replica holds all of it.

    Pieces of one ledger have the same borders for all its bookies, whole `block`s long, so that sums can be compared.
    """

    ledger: LedgerId
    bookie: BookieId
    position: Position
    first: EntryId
    last: EntryId
    quorum: tuple[int, int, int]
    digest: DigestType
    password: bytes
    block: int
    bytes: int
    """About how many there are to read."""
    birth: _Birth = b""
    """Which ledger of that id it is."""

    @property
    def ranges(self) -> list[tuple[EntryId, EntryId]]:
        return list(Quorum(*self.quorum).held_ranges(self.position, self.first, self.last))

    @property
    def entries(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class BlockSum:
    """Sum of the digests of a block's entries that share a write set (`share`: entry id modulo ensemble size; 0 for all
    where every bookie holds every entry). Only of blocks that are good."""

    block: int
    share: int
    sum: int


@dataclass(slots=True)
class PieceReport:
    """What one piece was found to be. `error`: the bookie could not be asked, so nothing is known of the rest."""

    piece: Piece
    good: int = 0
    bytes: int = 0
    missing: int = 0
    damaged: int = 0
    bad: list[EntryId] = field(default_factory=list)
    """The first of the missing and damaged entries."""
    error: str = ""
    sums: list[BlockSum] = field(default_factory=list)
    lie: str = ""
    """What the bookie gave that no accident makes (core/cluster/conviction), and `lie_entry` for which entry."""
    lie_entry: EntryId = -1
    unfit: EntryId = -1
    """The first entry that was read whose bytes do not fit its digest; -1: none."""

    @property
    def state(self) -> str:
        if self.lie:
            return "lied"
        if self.error:
            return "unknown"
        return "damaged" if self.damaged else "missing" if self.missing else "good"


def plan_pieces(ledger: LedgerId, metadata: LedgerMetadata, piece_bytes: int) -> list[Piece]:
    """All replicas of a ledger that can no longer grow, cut into pieces of about `piece_bytes`."""
    if metadata.digest_type is None:
        return []
    quorum = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    size = _entry_bytes(metadata)
    block = max(1, min(MAX_BLOCK, BLOCK_BYTES // size))
    step = max(1, piece_bytes // (size * block)) * block
    found: list[Piece] = []
    for index, fragment in enumerate(metadata.fragments):
        end = fragment_end(metadata, index)
        if end is None:
            continue
        for first in range(fragment.first_entry // step * step, end + 1, step):
            low, high = max(first, fragment.first_entry), min(first + step - 1, end)
            for position, bookie in enumerate(fragment.ensemble):
                about = (high - low + 1) * size * metadata.write_quorum // metadata.ensemble_size
                found.append(
                    Piece(
                        ledger,
                        bookie,
                        position,
                        low,
                        high,
                        quorum,
                        metadata.digest_type,
                        metadata.password or b"",
                        block,
                        about,
                        birth_of(metadata),
                    )
                )
    return found


def _entry_bytes(metadata: LedgerMetadata) -> int:
    """Of one entry on average, about; guessed where the ledger is not closed."""
    if metadata.last_entry is None or metadata.length is None or metadata.last_entry < 0:
        return 4096
    return metadata.length // (metadata.last_entry + 1) + 64


class BlockSums:
    """Adds digests up by block and share; a block with a bad entry has no sum."""

    __slots__ = ("_bad", "_block", "_shares", "_sums")

    def __init__(self, piece: Piece) -> None:
        size, width, _ = piece.quorum
        self._block, self._shares = piece.block, 1 if size == width else size
        self._sums: dict[tuple[int, int], int] = {}
        self._bad: dict[int, None] = {}

    def add(self, first: EntryId, digests: Sequence[int]) -> None:
        """Digests of consecutive good entries."""
        for low, high in self._parts(first, first + len(digests)):
            part = digests[low - first : high - first]
            for share in range(self._shares):
                own = part if self._shares == 1 else part[(share - low) % self._shares :: self._shares]
                if own:
                    key = low // self._block, share
                    self._sums[key] = (self._sums.get(key, 0) + sum(own)) & _MASK

    def bad(self, entry: EntryId) -> None:
        self._bad[entry // self._block] = None

    def _parts(self, first: EntryId, stop: EntryId) -> Iterator[tuple[EntryId, EntryId]]:
        while first < stop:
            end = min(stop, (first // self._block + 1) * self._block)
            yield first, end
            first = end

    def result(self) -> list[BlockSum]:
        return [BlockSum(block, share, total) for (block, share), total in self._sums.items() if block not in self._bad]


__all__ = ["BLOCK_BYTES", "NAMED", "BlockSum", "BlockSums", "Piece", "PieceReport", "plan_pieces"]
