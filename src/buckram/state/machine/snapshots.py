"""Snapshots of a machine: writing one beside the commands, publishing it, and loading the newest good one.

Rules R7 to R9 of docs/explanation/machines-design.md. Not here: when one is taken (`state/machine/snapshotter.py`),
its entries (`core/machine/snapshot_format.py`), its row in the head (`core/streams/metadata/snapshots.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.backoff import MACHINE
from buckram.core.machine.snapshot_format import BadSnapshot, SnapshotDecoder, SnapshotEncoder, SnapshotHeader
from buckram.core.streams.metadata.changes import HeadStep, check_epoch
from buckram.core.streams.metadata.head import Head, SnapshotRow
from buckram.core.streams.metadata.snapshots import published
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import BuckramError, MetadataUnavailable, ReadFailed, SnapshotDamaged, StateLost
from buckram.runtime.process.retry import retry
from buckram.streams.maintain.truncate import trim
from buckram.streams.shared.ledgers import SNAPSHOT, discard, make_ledger, present_op, read_intent
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.ownership import opened
from buckram.types import LedgerId

_log = logging.getLogger("buckram.machine")
_READ_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class LogHandle:
    """The log of one machine, as the parts that read and change its head need it."""

    client: LedgerClient
    streams: StreamStore
    name: StreamName
    uid: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified snapshot."""

    row: SnapshotRow
    header: SnapshotHeader
    sessions: bytes
    chunks: list[bytes]


async def write_snapshot(
    place: LogHandle,
    policy: Policy,
    epoch: int,
    header: SnapshotHeader,
    sessions: bytes,
    chunks: Iterable[bytes],
    keep: int,
) -> SnapshotRow:
    """Write a snapshot and publish it, as the leader of this epoch. WriterLost, NotEnoughBookies, WriteFailed."""
    client, streams, name = place.client, place.streams, place.name
    writer, intent = await make_ledger(client, streams, name, place.uid, policy, epoch=epoch, purpose=SNAPSHOT)
    encoder = SnapshotEncoder(header, sessions, chunks)
    async with writer:
        for payload in encoder:
            await writer.append(payload)
            await asyncio.sleep(0)  # Commands go on between the chunks.
    row = SnapshotRow(
        header.offset,
        writer.ledger_id,
        encoder.entries - 1,
        encoder.bytes,
        encoder.digest,
        client.services.clocks.now(),
    )

    def change(head: Head) -> HeadStep | None:
        check_epoch(str(name), head, epoch)
        after = published(str(name), head, row, keep)
        return None if after is None else HeadStep(after)

    await streams.change(name, change, uid=place.uid, extra=lambda head: [present_op(streams, place.uid, intent)])
    return row


async def free_space(place: LogHandle, left: Iterable[LedgerId]) -> None:
    """Delete the log's dead segments, and the ledgers of snapshots that are no longer published.

    A ledger that left the head is best deleted one snapshot later, when no reader uses it any more.
    """
    await trim(place.client, place.streams, place.name)
    for ledger in left:
        intent = await read_intent(place.streams, place.uid, ledger)
        if intent is not None:
            await discard(place.client, place.streams, place.uid, intent)


async def load_newest(
    place: LogHandle, head: Head, fault: Callable[[Sequence[bytes]], str], at_most: int | None = None
) -> tuple[Loaded | None, list[SnapshotDamaged]]:
    """Read the newest snapshot that verifies, and say which were damaged. None: begin with the log's first record.

    `fault` is that of the state (`Replicated`). `at_most`: only snapshots of states up to this offset.

    Raises StateLost if none is good and the log does not begin at offset 0, or ReadFailed or MetadataUnavailable if
    another attempt may find one.
    """
    damaged: list[SnapshotDamaged] = []
    unread: BuckramError | None = None
    for row in reversed(head.snapshots or ()):
        if at_most is not None and row.offset > at_most:
            continue
        try:
            attempt = partial(_read, place, row, fault)
            return await retry(attempt, (ReadFailed, MetadataUnavailable), MACHINE, within_s=_READ_WITHIN_S), damaged
        except SnapshotDamaged as error:
            damaged.append(error)
        except (ReadFailed, MetadataUnavailable) as error:
            unread = error
            damaged.append(SnapshotDamaged(str(place.name), row.offset, row.ledger, str(error)))
        fresh = (await place.streams.read(place.name)).head
        if row not in (fresh.snapshots or ()):
            return await load_newest(
                place, fresh, fault, at_most
            )  # It was not damaged: newer ones have replaced it meanwhile.
        _log.error("%s; the one before is tried", damaged[-1])
    if head.earliest == 0:
        return None, damaged
    if unread is not None:
        raise unread
    raise StateLost(
        str(place.name),
        f"the log begins at offset {head.earliest} and no snapshot can be read: "
        + ("; ".join(map(str, damaged)) or "none is published"),
    )


async def _read(place: LogHandle, row: SnapshotRow, fault: Callable[[Sequence[bytes]], str]) -> Loaded:
    """Read and verify a snapshot. Raises SnapshotDamaged, or ReadFailed, MetadataUnavailable (try again)."""
    decoder = SnapshotDecoder()
    try:
        async with opened(place.client, StreamId(place.name, place.uid), row.ledger) as reader:
            if reader.last_confirmed != row.last_entry or not reader.metadata.closed:
                raise BadSnapshot(f"its ledger ends at entry {reader.last_confirmed}, not at {row.last_entry}")
            async for chunk in reader.payload_chunks():
                for payload in chunk:
                    decoder.feed(payload)
        loaded = Loaded(row, *decoder.finish(row.offset, row.digest))
        why = await asyncio.get_running_loop().run_in_executor(None, fault, loaded.chunks)
        if why:
            raise BadSnapshot(why)
        return loaded
    except (ReadFailed, MetadataUnavailable):
        raise
    except (BadSnapshot, BuckramError, TypeError) as error:
        raise SnapshotDamaged(str(place.name), row.offset, row.ledger, str(error)) from error
