"""Finding out which records a segment holds whose ledger broke, that is, whose writer failed for want of bookies.

Not here: sending the other records again (`Appender.replace`), the new segment (`write/roll.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.streams.metadata.changes import check_epoch
from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.records.producers import ProducerTable
from buckram.errors import MetadataUnavailable, NotEnoughBookies, ReadFailed, RecoveryFailed
from buckram.runtime.process.retry import Attempt
from buckram.streams.shared.ledgers import discard
from buckram.streams.shared.metadata import head_retries
from buckram.streams.shared.recovery import load_producers, producers_of, recover_segment
from buckram.streams.write.claim import WriterClaim
from buckram.streams.write.sealing import WITHIN_S
from buckram.streams.write.segment import SegmentWriter
from buckram.types import LedgerId

T = TypeVar("T")
TroubleReport = Callable[[str], None]
"""Called with the reason whenever an attempt fails and will be repeated."""
_TRANSIENT = (MetadataUnavailable, NotEnoughBookies, ReadFailed, RecoveryFailed)


@dataclass(frozen=True, slots=True)
class Broken:
    """Contents of a broken segment. `sealed` is its ledger and contents, or None if the segment was never listed.

    `records` counts the records that it holds; `producers` is the table of producers after the last of them.
    """

    sealed: tuple[LedgerId, Summary] | None
    records: int
    producers: ProducerTable


async def retry_transient(attempt: Attempt[T], on_error: TroubleReport) -> T:
    """Repeat `attempt` for at most a minute while bookies or the metadata store are unavailable."""
    retries = head_retries(WITHIN_S)
    while True:
        try:
            return await attempt()
        except _TRANSIENT as error:
            on_error(str(error))
            await retries.wait(error)


async def recover_broken(claim: WriterClaim, failed: SegmentWriter, on_error: TroubleReport) -> Broken:
    """Close a broken segment's ledger by recovery and return what it holds.

    Raises WriterLost if another writer has the stream, otherwise the error that prevented recovery for a minute.
    """
    failed.rest()
    await failed.ledger.abandon()
    return await retry_transient(lambda: _examine(claim, failed), on_error)


async def _examine(claim: WriterClaim, failed: SegmentWriter) -> Broken:
    """Recover the segment if it is listed. Otherwise none of its records was acknowledged, and it is discarded."""
    ledger = failed.ledger.ledger_id
    at = await claim.streams.read(claim.name)
    check_epoch(str(claim.name), at.head, claim.epoch)
    row = at.head.open_segment
    if row is None or row.ledger != ledger:
        if not await discard(claim.client, claim.streams, claim.uid, failed.intent):
            raise MetadataUnavailable(f"ledger {ledger} was listed or discarded a moment ago; look again")
        return Broken(None, 0, await load_producers(claim.client, claim.streams, claim.name, at.head))
    summary = await recover_segment(claim.client, claim.name, claim.uid, ledger)
    producers = await producers_of(claim.client, claim.name, claim.uid, row, summary)
    return Broken((ledger, summary), summary.records, producers)
