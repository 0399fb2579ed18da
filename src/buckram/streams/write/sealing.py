"""The end of a writer's own segment: close its ledger, then seal its row and list the next segment.

Not here: when a segment ends (`write/roll.py`), what a broken one holds (`write/repair.py`), and sealing the segment
of another writer (`shared/recovery.py`).
"""

from __future__ import annotations

from contextlib import suppress

from buckram.core.streams.metadata.changes import rolled, swept
from buckram.core.streams.metadata.head import Head, Summary
from buckram.errors import (
    BuckramError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    QuotaExceeded,
    RecoveryFailed,
    VersionConflict,
    WriterFailed,
    WriterLost,
)
from buckram.streams.shared.ledgers import let_go, listing_op
from buckram.streams.shared.metadata import head_retries
from buckram.streams.write.claim import WriterClaim
from buckram.streams.write.segment import SegmentWriter

WITHIN_S = 60.0
"""Longest wait of a segment's end, once begun, for the metadata store or bookies before the writer fails, seconds."""
_SWEPT_AT_ONCE = 64


async def finish(segment: SegmentWriter) -> Summary:
    """Wait until every entry is acknowledged and readable, then close the ledger; returns what it holds."""
    segment.rest()  # The marks below do what idle marks do.
    segment.mark()
    await segment.flush()
    # The first mark follows all records. The second one carries a LAC that covers the first, so tailing readers see
    # the end of the segment now, and not only when the ledger's metadata says that it is closed.
    segment.mark()
    await segment.flush()
    retries = head_retries(WITHIN_S)
    while True:
        try:
            return await segment.close()
        except MetadataUnavailable as error:
            await retries.wait(error)


async def list_segment(claim: WriterClaim, old: tuple[int, Summary] | None, fresh: SegmentWriter) -> None:
    """Seal `old`, list the new ledger and delete its intent, in one compare-and-set of the head.

    Raises WriterLost if another writer has the stream, and WriterFailed if the new ledger's intent is gone.
    """
    name, ledger, base = str(claim.name), fresh.ledger.ledger_id, fresh.progress.base
    try:
        await claim.streams.change(
            claim.name,
            lambda head: rolled(name, head, claim.epoch, old, ledger, base, claim.now()),
            uid=claim.uid,
            extra=lambda _: [listing_op(claim.streams, claim.uid, fresh.intent)],
            within_s=WITHIN_S,
        )
    except (VersionConflict, NoSuchKey) as error:
        raise WriterFailed(
            name, f"its prepared ledger {ledger} was discarded by a janitor, which took this writer for dead ({error})"
        ) from error


async def sweep_garbage(claim: WriterClaim, head: Head) -> None:
    """Delete ledgers that left the list without records. What fails is left to the next writer or the janitor."""
    done = head.garbage[:_SWEPT_AT_ONCE]
    with suppress(MetadataUnavailable, RecoveryFailed):
        for ledger in done:
            await let_go(claim.client, claim.streams, claim.uid, ledger)
        await claim.streams.change(claim.name, lambda head: swept(head, done), uid=claim.uid)


def as_writer_error(stream: str, error: BuckramError) -> BuckramError:
    """Turn the error that ended a writer into the WriterLost, WriterFailed or QuotaExceeded that its callers get."""
    if isinstance(error, WriterLost | WriterFailed | QuotaExceeded):
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
