"""Audit of replicas: the entries of each bookie, pieces of work, sums of blocks for comparison, findings. Pure.

Every replica is verified against the digests of its own entries. Sums of digests then reveal replicas that are each
valid and yet hold different bytes.

Not here: reading the replicas (`client/maintain/replica_audit.py`), asking a bookie what it has
(`client/maintain/entry_lists.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from buckram.core.ledgers.metadata import birth_of, fragment_end
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.types import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Position

BLOCK_BYTES = 8 * 1024 * 1024

MAX_BLOCK = 1024

NAMED = 100
"""The most bad entries of a piece that are listed; the others are only counted."""

_MASK = 2**64 - 1

_Birth: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries of first..last of a ledger that one bookie stores; a good replica holds all of them.

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
    """An estimate of the bytes to read."""
    birth: _Birth = b""
    """The birth of the ledger, which distinguishes it from others that had the id."""

    @property
    def ranges(self) -> list[tuple[EntryId, EntryId]]:
        return list(Quorum(*self.quorum).held_ranges(self.position, self.first, self.last))

    @property
    def entries(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class BlockSum:
    """The sum of the digests of those entries of a block that have the same write set. Only good blocks have one.

    `share` is the entry id modulo the ensemble size, or 0 if every bookie holds every entry.
    """

    block: int
    share: int
    sum: int


@dataclass(slots=True)
class PieceReport:
    """The findings of one piece. `error`: the bookie could not be read, so the rest of the piece is unknown."""

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
    """Description of an answer that no accident explains (core/cluster/conviction), about entry `lie_entry`; empty:
    none.
    """
    lie_entry: EntryId = -1
    unfit: EntryId = -1
    """The first entry that was read whose bytes do not match its digest; -1 for none."""

    @property
    def state(self) -> str:
        if self.lie:
            return "lied"
        if self.error:
            return "unknown"
        return "damaged" if self.damaged else "missing" if self.missing else "good"


def plan_pieces(ledger: LedgerId, metadata: LedgerMetadata, piece_bytes: int) -> list[Piece]:
    """Return all replicas of a ledger that can no longer grow, cut into pieces of about `piece_bytes`."""
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
    """Return an estimate of the stored bytes of an entry; a constant if the ledger is not closed."""
    if metadata.last_entry is None or metadata.length is None or metadata.last_entry < 0:
        return 4096
    return metadata.length // (metadata.last_entry + 1) + 64


class BlockSums:
    """Adds up digests by block and share; a block with a bad entry gets no sum."""

    __slots__ = ("_bad", "_block", "_shares", "_sums")

    def __init__(self, piece: Piece) -> None:
        size, width, _ = piece.quorum
        self._block, self._shares = piece.block, 1 if size == width else size
        self._sums: dict[tuple[int, int], int] = {}
        self._bad: dict[int, None] = {}

    def add(self, first: EntryId, digests: Sequence[int]) -> None:
        """Add the digests of consecutive good entries."""
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


# -- entries that a ledger's record places on a bookie --------------------------------------------------------

Row = tuple[EntryId, EntryId]
"""First and last of consecutive ids."""


def held_rows(metadata: LedgerMetadata, bookie: BookieId, end: EntryId | None = None) -> Iterator[Row]:
    """Yield the ids that the bookie must hold, ascending. Those of the fragment that can still grow end at `end`; None:
    it is left out.
    """
    quorum = quorum_of(metadata)
    for index, fragment in enumerate(metadata.fragments):
        if bookie not in fragment.ensemble:
            continue
        last = fragment_end(metadata, index)
        last = end if last is None else last
        if last is not None:
            yield from quorum.held_ranges(fragment.ensemble.index(bookie), fragment.first_entry, last)


def without(wanted: Iterable[Row], runs: Iterable[tuple[EntryId, int]]) -> Iterator[Row]:
    """Yield the parts of `wanted` that no run (first id, count) covers; both ascending."""
    held = iter(runs)
    run = next(held, None)
    for first, last in wanted:
        at = first
        while at <= last:
            while run is not None and run[0] + run[1] <= at:
                run = next(held, None)
            if run is None or run[0] > last:
                yield at, last
                break
            if run[0] > at:
                yield at, run[0] - 1
            at = run[0] + run[1]
