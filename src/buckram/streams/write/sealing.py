"""The end of a writer's own segment: close its ledger, then seal its row and list the next segment.

A segment whose ledger broke, because its writer failed for want of bookies, is closed by recovery, which finds out what
records it holds. Not here: when a segment ends, and the new one (`write/roll.py`), sending the other records again
(`Appender.replace`), sealing the segment of another writer (`shared/recovery.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.streams.metadata.changes import check_epoch, rolled, swept
from buckram.core.streams.metadata.head import Head, Summary
from buckram.core.streams.records.producers import ProducerTable
from buckram.errors import (
    BuckramError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    NotEnoughBookies,
    QuotaExceeded,
    ReadFailed,
    RecoveryFailed,
    VersionConflict,
    WriterFailed,
    WriterLost,
)
from buckram.runtime.process.retry import Attempt
from buckram.streams.shared.ledgers import discard, let_go, listing_op
from buckram.streams.shared.metadata import head_retries
from buckram.streams.shared.recovery import load_producers, producers_of, recover_segment
from buckram.streams.write.lease import WriterClaim
from buckram.streams.write.segment import SegmentWriter
from buckram.types import LedgerId

WITHIN_S = 60.0
"""Longest wait of a segment's end, once begun, for the metadata store or bookies before the writer fails, seconds."""
_SWEPT_AT_ONCE = 64
T = TypeVar("T")


# -- a whole segment --------------------------------------------------------------------------------------


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


# -- a broken segment -------------------------------------------------------------------------------------

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
