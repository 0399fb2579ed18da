"""Insertion of bulk steps by a writer: it ends its segment, lists their ledgers behind it, and goes on behind these.

A step asks by a key of the stream (`streams/write/insertion_request.py`). The ledgers, the end of the writer's segment
and the step's transaction are one compare-and-set, in which the key goes, too; so it happens once, and not after the
step has given up. Appends wait for these milliseconds and get offsets behind the inserted records. Not here: the
moment, without any roll and without appends under way (`Roller.interrupt`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from buckram.core.streams.metadata.changes import check_epoch, insertable, inserted
from buckram.core.streams.metadata.head import Head, Summary
from buckram.core.streams.metadata.insertions import Insertion, decode_insertion
from buckram.errors import (
    InvalidArgument,
    MalformedRecord,
    MetadataError,
    NoSuchKey,
    NoSuchStream,
    ValueTooLarge,
    VersionConflict,
    WriterLost,
)
from buckram.streams.shared.ledgers import listing_op, read_intent
from buckram.streams.write.lease import WriterClaim
from buckram.streams.write.roll import Roller
from buckram.streams.write.sealing import WITHIN_S, finish
from buckram.streams.write.segment import SegmentWriter
from buckram.types import Delete, KeyOp, LedgerId

_READ_AT_ONCE = 32
_PAUSE_S = 0.5
"""Pause before another attempt, seconds, if the metadata store is away or the writer could not do it now."""


async def answer_insertions(claim: WriterClaim, roller: Roller) -> None:
    """List the ledgers of bulk steps that ask for it, one step after the other, until the writer ends."""
    key, keys = claim.streams.layout.insertion(claim.uid), claim.streams.keys
    while True:
        changed = asyncio.Event()
        try:
            found = await keys.get(key, changed.set)
            if not await _answer(claim, roller, key, found.value, found.version):
                await asyncio.sleep(_PAUSE_S)
        except NoSuchKey:
            await changed.wait()
        except (WriterLost, NoSuchStream):
            return  # The next append, or the lease, reports it to the users of the writer.
        except MetadataError:
            await asyncio.sleep(_PAUSE_S)


async def _answer(claim: WriterClaim, roller: Roller, key: str, value: bytes, version: int) -> bool:
    """Insert what the key asks for, or delete it if that is never possible. False: not now."""
    try:
        wanted = decode_insertion(key, value)
    except MalformedRecord:
        await claim.streams.keys.delete(key, version)
        return True
    head = (await claim.streams.read(claim.name)).head
    check_epoch(str(claim.name), head, claim.epoch)
    if not insertable(str(claim.name), head, wanted.step, claim.now()):
        await claim.streams.keys.delete(key, version)
        return True
    intents = await _intents(claim, wanted)
    if intents is None:
        await claim.streams.keys.delete(key, version)
        return True
    if not await roller.interrupt(partial(_insert, claim, roller, wanted, [Delete(key, version), *intents])):
        return False
    with suppress(VersionConflict, NoSuchKey):
        await claim.streams.keys.delete(key, version)  # It is there if the step could not be published.
    return True


async def _intents(claim: WriterClaim, wanted: Insertion) -> list[Delete] | None:
    """Return the deletions of the ledgers' intents for the listing; None if one is not, or no longer, the step's."""
    found: list[Delete] = []
    for begin in range(0, len(wanted.ledgers), _READ_AT_ONCE):
        part = wanted.ledgers[begin : begin + _READ_AT_ONCE]
        read = (read_intent(claim.streams, claim.uid, one.ledger) for one in part)
        for intent in await asyncio.gather(*read):
            if intent is None or intent.discard or intent.step != wanted.step[:2]:
                return None
            found.append(listing_op(claim.streams, claim.uid, intent))
    return found


async def _insert(
    claim: WriterClaim,
    roller: Roller,
    wanted: Insertion,
    ops: Sequence[KeyOp],
    current: SegmentWriter,
    fresh: SegmentWriter,
) -> SegmentWriter:
    """End the present segment, list the ledgers, and begin the next segment behind them (`roll.py:Interruption`)."""
    old: tuple[LedgerId, Summary] | None = None
    if current.progress.listed:
        old = current.ledger.ledger_id, await finish(current)
    else:
        await current.flush()  # It may have a snapshot of the producers.
    try:
        head = await _listed(claim, old, wanted, ops)
    except (VersionConflict, NoSuchKey, InvalidArgument, ValueTooLarge):
        # The step has given up, its ledgers were discarded, or it is too much for the store.
        head = await _listed(claim, old, None, [])
    follower = current if old is None else fresh
    roller.follow(follower, head.end, head.last_append)
    return follower


async def _listed(
    claim: WriterClaim, old: tuple[LedgerId, Summary] | None, wanted: Insertion | None, ops: Sequence[KeyOp]
) -> Head:
    """Make the change of the head, without the step if there is none `wanted` or it cannot be published any more."""
    name, now = str(claim.name), claim.now()
    step = None if wanted is None else wanted.step
    rows = [] if wanted is None else [(one.ledger, one.summary) for one in wanted.ledgers]
    return await claim.streams.change(
        claim.name,
        lambda head: inserted(name, head, claim.epoch, old, rows, step, now),
        uid=claim.uid,
        extra=lambda head: ops if step is not None and insertable(name, head, step, now) else (),
        within_s=WITHIN_S,
    )
