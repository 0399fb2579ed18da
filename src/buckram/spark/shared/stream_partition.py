"""The partitions of a read from streams: what Spark sends from the driver to each task.

Not here: planning them (`spark/source/stream_planner.py`) and reading them (`spark/source/partition_reader.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from buckram.core.streams.metadata.head import Segment
from buckram.core.wire.introduction import Peer, expected_of
from buckram.types import BookieId, BookieInfo, EntryId, History, LedgerId, LedgerMetadata


@dataclass(frozen=True, slots=True)
class Slice:
    """The entries of a ledger (`first_entry` to `last_entry`) that hold the wanted offsets (`first` to stop - 1).

    `base` is the offset of the ledger's first record, `times` the bounds of append times (microseconds UTC), and `uid`
    tells the stream from a later one of the same name. `history`: the segment, if it was offloaded.
    """

    stream: str
    uid: str
    ledger: LedgerId
    base: int
    first: int
    stop: int
    first_entry: EntryId
    last_entry: EntryId
    bytes: int
    times: tuple[int, int] | None
    history: Segment | None = None


@dataclass
class StreamPartition(InputPartition):
    """One task's work: slices in order, and what is needed to read them without a metadata store.

    `cluster` is the instance id, `history` the metadata's history. `bookies` have the properties of their identity, so
    that executors read from these bookies only and not from others that have their addresses now.
    """

    slices: list[Slice]
    ledgers: dict[LedgerId, LedgerMetadata]
    bookies: list[BookieInfo]
    cluster: str
    history: History
    identity_required: bool

    def __init__(
        self,
        slices: list[Slice],
        ledgers: dict[LedgerId, LedgerMetadata],
        bookies: list[BookieInfo],
        cluster: str,
        history: History,
        identity_required: bool,
    ) -> None:
        super().__init__(None)
        self.slices, self.ledgers, self.bookies = slices, ledgers, bookies
        self.cluster, self.history, self.identity_required = cluster, history, identity_required

    def peer(self, bookie: BookieId) -> Peer | None:
        """Return a bookie's address and expected identity; None for one that was not registered."""
        info = next((info for info in self.bookies if info.bookie_id == bookie), None)
        if info is None or info.address is None:
            return None
        return Peer(info.address, expected_of(self.cluster, info, required=self.identity_required))
