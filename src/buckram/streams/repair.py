"""What a segment of ours holds whose ledger broke: its writer gave up for want of bookies, nobody fenced it.

Sending the rest again is appender.replace, the new segment roll.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.core.stream_changes import check_epoch
from buckram.core.stream_head import Summary
from buckram.core.stream_producers import ProducerTable
from buckram.errors import MetadataUnavailable
from buckram.streams.claim import Claim
from buckram.streams.ledgers import discard
from buckram.streams.recovery import load_producers, producers_of, recover_segment
from buckram.streams.segment import SegmentWriter
from buckram.types import LedgerId


@dataclass(frozen=True, slots=True)
class Broken:
    """A segment that broke: `sealed` if it is in the list; how many records it holds, and the producers then."""

    sealed: tuple[LedgerId, Summary] | None
    records: int
    producers: ProducerTable


async def examine(claim: Claim, failed: SegmentWriter) -> Broken:
    """What a broken segment of ours holds; one that was never listed holds nothing that counts, and is discarded."""
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
