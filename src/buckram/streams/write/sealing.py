"""The end of a writer's segment: everything acknowledged and readable, ledger closed, row sealed, the next one listed.

When a segment ends is roll's business; what a broken one holds is repair's.
"""

from __future__ import annotations

from contextlib import suppress

from buckram.core.streams.changes import rolled, swept
from buckram.core.streams.head import Head, Summary
from buckram.errors import (
    BuckramError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    RecoveryFailed,
    VersionConflict,
    WriterFailed,
    WriterLost,
)
from buckram.streams.shared.claim import Claim
from buckram.streams.shared.ledgers import drop_ledger, listing
from buckram.streams.shared.metadata import head_retries
from buckram.streams.write.segment import SegmentWriter

WITHIN_S = 60.0
"""How long the end of a segment that has begun waits for the metadata store or for bookies."""
_SWEPT_AT_ONCE = 64


async def finish(segment: SegmentWriter) -> Summary:
    """Let everything be acknowledged and readable, then close the ledger."""
    segment.rest()  # the marks do it
    segment.mark()
    await segment.flush()
    # The mark before stands behind all records; this one carries the LAC over both, so tailing readers see the end
    # of the segment now and not when they hear of the closed ledger.
    segment.mark()
    await segment.flush()
    retries = head_retries(WITHIN_S)
    while True:
        try:
            return await segment.close()
        except MetadataUnavailable as error:
            await retries.wait(error)


async def list_segment(claim: Claim, old: tuple[int, Summary] | None, fresh: SegmentWriter) -> None:
    """One compare-and-set: `old` sealed, the new ledger listed, its intent gone. WriterLost."""
    name, ledger, base = str(claim.name), fresh.ledger.ledger_id, fresh.progress.base
    try:
        await claim.streams.change(
            claim.name,
            lambda head: rolled(name, head, claim.epoch, old, ledger, base, claim.now()),
            uid=claim.uid,
            extra=lambda _: [listing(claim.streams, claim.uid, fresh.intent)],
            within_s=WITHIN_S,
        )
    except (VersionConflict, NoSuchKey) as error:
        raise WriterFailed(
            name, f"its prepared ledger {ledger} was discarded by a janitor, which took this writer for dead ({error})"
        ) from error


async def sweep_garbage(claim: Claim, head: Head) -> None:
    """Delete what left the list without records. Best effort: the next writer or the janitor does the rest."""
    done = head.garbage[:_SWEPT_AT_ONCE]
    with suppress(MetadataUnavailable, RecoveryFailed):
        for ledger in done:
            await drop_ledger(claim.client, ledger)
        await claim.streams.change(claim.name, lambda head: swept(head, done), uid=claim.uid)


def ended(stream: str, error: BuckramError) -> BuckramError:
    """What a writer's end is told as."""
    if isinstance(error, WriterLost | WriterFailed):
        return error
    if isinstance(error, LedgerFenced):
        lost: BuckramError = WriterLost(stream, f"fenced: another writer or a bulk step took it over ({error})")
    elif isinstance(error, NoSuchStream):
        lost = WriterLost(stream, f"it was deleted ({error})")
    elif isinstance(error, MetadataUnavailable):
        lost = WriterFailed(stream, f"the metadata store was away for too long during a roll: {error}")
    else:
        lost = WriterFailed(stream, str(error))
    lost.__cause__ = error
    return lost
