"""Insertion of bulk steps: a process asks the writer that has a stream to list the step's ledgers, and the writer does
so.

The question is an ephemeral key of the stream: it goes with the process that asks. The writer ends its segment, lists
the ledgers behind it, and goes on behind these. The ledgers, the end of the writer's segment and the step's transaction
are one compare-and-set, in which the key goes, too; so it happens once, and not after the step has given up. Whatever
happens, what counts is the transaction in the head. Appends wait for these milliseconds and get offsets behind the
inserted records. Not here: the moment, without any roll and without appends under way (`Roller.interrupt`), publishing
by oneself (`write/bulk.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from buckram.core.streams.metadata.changes import check_epoch, insertable, inserted
from buckram.core.streams.metadata.head import Head, Summary, Transaction
from buckram.core.streams.metadata.insertions import Insertion, decode_insertion, encode_insertion
from buckram.core.streams.names import StreamName
from buckram.errors import (
    InvalidArgument,
    KeyExists,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchStream,
    ValueTooLarge,
    VersionConflict,
    WriterLost,
)
from buckram.streams.shared.ledgers import listing_op, read_intent
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.streams.write.lease import WriterClaim
from buckram.streams.write.roll import Roller
from buckram.streams.write.sealing import WITHIN_S, finish
from buckram.streams.write.segment import SegmentWriter
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerId

ANSWER_S = 30.0
"""Time that a bulk step waits for the writer, seconds."""
_ASK_AGAIN_S = 0.2

Published = Callable[[], Awaitable[Transaction | None]]
"""Returns what the step was published as, or None."""


async def ask_writer(
    streams: StreamStore, name: StreamName, uid: str, wanted: Insertion, published: Published, *, within_s: float
) -> Transaction | None:
    """Ask the writer, and return the transaction of the published step; None if it was not published.

    Then no answer came within `within_s` seconds, or the writer is gone or refused; another attempt to publish gets the
    reason.

    Raises NoSuchStream, MetadataUnavailable, and InvalidArgument for too many ledgers.
    """
    key, value = streams.layout.insertion(uid), encode_insertion(str(name), wanted)
    try:
        async with asyncio.timeout(within_s):
            await _asked(streams, name, uid, key, value)
            await _gone(streams, key, value)
    except TimeoutError:
        pass
    finally:
        # The key must not be there when another writer comes; a writer that is about to publish fails, or was first.
        await asyncio.shield(_withdrawn(streams, key, value))
    return await published()


async def _asked(streams: StreamStore, name: StreamName, uid: str, key: str, value: bytes) -> None:
    """Create the key, after waiting for that of another step. NoSuchStream if the stream is gone."""
    retries = head_retries()
    while True:
        try:
            at = await streams.read(name)
            if at.head.uid != uid:
                raise NoSuchStream(str(name), "was deleted and created anew")
            await streams.keys.multi(
                [CheckVersion(streams.layout.head(name), at.version), Create(key, value, ephemeral=True)]
            )
            return
        except VersionConflict as error:
            await retries.wait(error)  # The head has changed meanwhile.
        except MetadataUnavailable as error:
            await retries.wait(error)  # It may have been created all the same.
        except KeyExists:
            changed = asyncio.Event()
            with suppress(NoSuchKey):
                found = await streams.keys.get(key, changed.set)
                if found.value == value:
                    return
                await changed.wait()
            retries = head_retries()


async def _gone(streams: StreamStore, key: str, value: bytes) -> None:
    """Wait until the key is not there any more, or is that of another step."""
    while True:
        changed = asyncio.Event()
        try:
            if (await streams.keys.get(key, changed.set)).value != value:
                return
        except NoSuchKey:
            return
        except MetadataUnavailable:
            changed.set()
            await asyncio.sleep(_ASK_AGAIN_S)
        await changed.wait()


async def _withdrawn(streams: StreamStore, key: str, value: bytes) -> None:
    """Delete the key if it is ours."""
    retries = head_retries()
    while True:
        try:
            found = await streams.keys.get(key)
            if found.value == value:
                await streams.keys.delete(key, found.version)
            return
        except NoSuchKey:
            return
        except VersionConflict as error:
            await retries.wait(error)
        except MetadataUnavailable as error:
            await retries.wait(error)


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
