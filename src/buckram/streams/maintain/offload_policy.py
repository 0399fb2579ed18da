"""Offloading a stream by its policy, and checking that the files of its history are complete.

Not here: offloading itself (`maintain/offload.py`), deleting history, which is truncation (`maintain/truncate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.external.history import due_segments, whole
from buckram.core.streams.metadata.changes import check_usable, is_dead
from buckram.core.streams.metadata.head import HISTORY, Head, Segment
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.batch import Batch
from buckram.errors import BuckramError, CorruptEntry, ForeignLedger, MetadataError, NoSuchLedger
from buckram.metadata.records.foreign_references import forget_foreign_notes
from buckram.streams.maintain.offload import OffloadReport, offload_stream
from buckram.streams.read.history_reader import SegmentFiles
from buckram.streams.read.locate import decode_entry
from buckram.streams.shared.locations import in_thread
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.ownership import check_own
from buckram.types import Entry, LedgerId

AT_ONCE = 16
"""The most segments of a stream that one pass of the janitor offloads, so that other streams have their turn."""


def asks_for_offload(head: Head, policy: Policy) -> bool:
    """Return whether the policy has segments of this stream offloaded at all; a machine's log stays on bookies."""
    reason = policy.offload_after_s is not None or policy.offload_bytes is not None
    return bool(policy.offload_to) and reason and head.snapshots is None


async def offload_by_policy(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> OffloadReport | None:
    """Offload what the policy wants offloaded now, AT_ONCE segments at most; None if that is nothing.

    `now` is in microseconds UTC, or None while the time is in doubt: then nothing is offloaded by age. Errors are those
    of offload_stream.
    """
    if not asks_for_offload(head, policy):
        return None
    rows = [row async for row in streams.segments(head)]
    if not _due(head, rows, policy, now=now):
        return None
    # To the place of the policy that was checked, even if the policy has changed since.
    return await offload_stream(client, streams, name, to=policy.offload_to, wanted=partial(_due, now=now))


def _due(head: Head, rows: Sequence[Segment], policy: Policy, *, now: int | None) -> list[Segment]:
    due = due_segments(head, rows, now=now, after_s=policy.offload_after_s, keep_bytes=policy.offload_bytes)
    return due[:AT_ONCE]


@dataclass(slots=True)
class StreamCheck:
    """Result of a check of a stream's segments."""

    stream: str
    segments: int = 0
    history: int = 0
    """The number of segments that are history."""
    records: int = 0
    """The records that were read from history."""
    bytes: int = 0
    """The bytes of files that were read."""
    problems: list[str] = field(default_factory=list)
    adopted: list[LedgerId] = field(default_factory=list)
    """The ledgers that were marked as the stream's own before the check."""


async def check_stream(client: LedgerClient, streams: StreamStore, name: StreamName) -> StreamCheck:
    """Check that each segment's ledger exists and is its own, and read all files of history: bytes, records, offsets.

    The copies of ledgers on bookies are not read: `buckram ledger check` does that. Raises NoSuchStream.
    """
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    found, stream = StreamCheck(str(name)), StreamId(name, head.uid)
    due: int | None = None
    foreign = False
    async for row in streams.segments(head):
        if is_dead(head, row):
            continue
        found.segments += 1
        if due is not None and row.base != due:
            found.problems.append(f"segment {row.number} begins at offset {row.base}, offset {due} is expected")
        due = row.end
        try:
            if row.kind == HISTORY:
                found.history += 1
                files = SegmentFiles(stream, row)
                records, size = await in_thread(row.ledger, files.location, partial(_check_files, name, row, files))
                found.records, found.bytes = found.records + records, found.bytes + size
            else:
                record = await retry_metadata(partial(client.services.store.read_ledger, row.ledger))
                await check_own(client, stream, row.ledger, record.metadata)
        except NoSuchLedger:
            if not is_dead((await streams.read(name)).head, row):
                found.problems.append(f"segment {row.number}: its ledger {row.ledger} does not exist")
        except BuckramError as error:
            foreign = foreign or isinstance(error, ForeignLedger)
            found.problems.append(f"segment {row.number}: {error}")
    if not foreign:
        with suppress(MetadataError):  # A check by an administrator withdraws the notes; others may not.
            await forget_foreign_notes(client.services.store, head.uid)
    return found


def _check_files(name: StreamName, row: Segment, files: SegmentFiles) -> tuple[int, int]:
    """Read all of an offloaded segment; returns its records and the bytes of its files. CorruptEntry, ReadFailed."""
    manifest, records = files.manifest(), 0
    for chunk in files.chunks(0, manifest.summary.last_entry):
        for entry, payload in chunk:
            batch = decode_entry(name, row, Entry(row.ledger, entry, payload, entry, -1))
            if not isinstance(batch, Batch):
                continue
            if batch.first_offset != row.base + records:
                why = f"begins at offset {batch.first_offset}, offset {row.base + records} is expected"
                raise CorruptEntry(str(name), row.ledger, entry, why)
            records += len(batch)
    return records, whole(manifest.parts)
