"""What a segment of ours holds whose ledger broke: its writer gave up for want of bookies, nobody fenced it.

Sending the rest again is appender.replace, the new segment roll.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.streams.changes import check_epoch
from buckram.core.streams.head import Summary
from buckram.core.streams.producers import ProducerTable
from buckram.errors import MetadataUnavailable, NotEnoughBookies, ReadFailed, RecoveryFailed
from buckram.streams.shared.claim import Claim
from buckram.streams.shared.ledgers import discard
from buckram.streams.shared.metadata import head_retries
from buckram.streams.shared.recovery import load_producers, producers_of, recover_segment
from buckram.streams.write.sealing import WITHIN_S
from buckram.streams.write.segment import SegmentWriter
from buckram.types import LedgerId

T = TypeVar("T")
_PASSING = (MetadataUnavailable, NotEnoughBookies, ReadFailed, RecoveryFailed)


@dataclass(frozen=True, slots=True)
class Broken:
    """A segment that broke: `sealed` if it is in the list; how many records it holds, and the producers then."""

    sealed: tuple[LedgerId, Summary] | None
    records: int
    producers: ProducerTable


async def retry_transient(attempt: Callable[[], Awaitable[T]], on_error: Callable[[str], None]) -> T:
    """Again and again while bookies or the metadata store are away, at most a minute; `on_error` gets the reason."""
    retries = head_retries(WITHIN_S)
    while True:
        try:
            return await attempt()
        except _PASSING as error:
            on_error(str(error))
            await retries.wait(error)


async def settle(claim: Claim, failed: SegmentWriter, on_error: Callable[[str], None]) -> Broken:
    """Close a broken segment and find out what it holds. Errors: WriterLost; what keeps it from being recovered."""
    failed.rest()
    await failed.ledger.abandon()
    return await retry_transient(lambda: _examine(claim, failed), on_error)


async def _examine(claim: Claim, failed: SegmentWriter) -> Broken:
    """One that was never listed holds nothing that counts, and is discarded."""
    ledger = failed.ledger.ledger_id
    at = await claim.streams.read(claim.name)
    check_epoch(str(claim.name), at.head, claim.epoch)
    row = at.head.open_segment
    if row is None or row.ledger != ledger:
        if not await discard(claim.client, claim.streams, claim.uid, failed.intent):
            raise MetadataUnavailable(f"ledger {ledger} was listed or discarded a moment ago; look again")
        return Broken(None, 0, await load_producers(claim.client, claim.streams, claim.name, at.head))
    summary = await recover_segment(claim.client, claim.name, ledger)
    producers = await producers_of(claim.client, claim.name, row, summary)
    return Broken((ledger, summary), summary.records, producers)
