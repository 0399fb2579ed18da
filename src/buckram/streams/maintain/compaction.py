"""Compaction of streams: a run of small segments is copied into one ledger, which replaces the run in the list.

    work = await plan_compaction(...)
    for run in work.runs:
        copied = await copy_run(...)        in any process, many at once
        await replace_run(..., copied)      one compare-and-set

The new ledger gets its intent, then its metadata with the owner mark, then its entries, and is closed; then one multi
puts it in the place of the run and gives each old ledger an intent. So a crash leaves only a ledger with an intent, and
readers of an old ledger go on until the janitor deletes it (JanitorSettings.retired_s). Writers are not disturbed, as
only sealed segments are replaced.

A writer joins small segments when it opens (`join_before_writing`), because short-lived writers leave one each:

    seq 5 | buckram stream write numbers        again and again

A ledger has one writer, and a take-over closes it, so a writer cannot go on in the ledger of the one before. Joined
ledgers are deleted at the next join, so that their number stays small without a janitor, too. The work is optional:
after a failure everything is left as it was. Not here: which segments may be replaced (`core/streams/compaction.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.compaction import (
    CompactionRun,
    EntryRewriter,
    RunChanged,
    compacted,
    compacted_page,
    longest_span,
    plan_runs,
    replacement,
    small_runs,
)
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Head, Segment, encode_page
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.errors import (
    BuckramError,
    ConfigError,
    CorruptEntry,
    InvalidArgument,
    InvariantViolation,
    MalformedBatch,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    ReadFailed,
    VersionConflict,
    WriteFailed,
)
from buckram.runtime.net.pace import Pace
from buckram.streams.shared.ledgers import (
    COMPACT,
    JOINED,
    RETIRED,
    Intent,
    discard,
    discard_after_error,
    drop_files,
    list_intents,
    listing_op,
    make_ledger,
    read_intent,
    retiring_op,
)
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.shared.ownership import opened
from buckram.streams.shared.recovery import summarise
from buckram.types import Entry, KeyOp, LedgerId, SetValue

__all__ = [
    "Compactable",
    "CompactionReport",
    "Copied",
    "RunChanged",
    "compact_stream",
    "copy_run",
    "entries_of",
    "join",
    "join_before_writing",
    "plan_compaction",
    "replace_run",
]

MIN_TARGET_BYTES = 4096

ProgressCallback = Callable[[int], None]
"""Called with the number of payload bytes that were copied since the last call."""


@dataclass(frozen=True, slots=True)
class Compactable:
    """The runs of a stream that are worth compacting, at one moment. It can be pickled for the processes that copy."""

    name: StreamName
    uid: str
    epoch: int
    policy: Policy
    runs: tuple[CompactionRun, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """A closed ledger, or files of history, with a run's records, and the row that can replace the run."""

    run: CompactionRun
    row: Segment
    intent: Intent


@dataclass(slots=True)
class CompactionReport:
    """Report of a compaction of one stream."""

    stream: str
    segments: int = 0
    """The number of segments that were replaced."""
    made: int = 0
    """The number of segments that replaced them."""
    bytes: int = 0
    put_off: int = 0
    """The number of runs that changed meanwhile; the next compaction may copy them."""


async def plan_compaction(streams: StreamStore, name: StreamName, *, target_bytes: int | None = None) -> Compactable:
    """Return the runs worth compacting now.

    `target_bytes` is the most that a new segment holds, default the policy's roll_bytes. Raises NoSuchStream,
    MachineLog, and InvalidArgument for a target below MIN_TARGET_BYTES.
    """
    if target_bytes is not None and target_bytes < MIN_TARGET_BYTES:
        raise InvalidArgument(f"target of {target_bytes} bytes for a segment: needs at least {MIN_TARGET_BYTES}")
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    check_act(str(name), head, Act.COMPACT)
    space = await Namespaces(streams).get(name.namespace)
    policy = merged(space.policy, head.policy)
    rows = [row async for row in streams.segments(head)]
    runs = plan_runs(head, rows, target_bytes=target_bytes or policy.roll_bytes, span_us=longest_span(policy))
    return Compactable(name, head.uid, head.epoch, policy, tuple(runs))


async def copy_run(
    client: LedgerClient,
    streams: StreamStore,
    work: Compactable,
    run: CompactionRun,
    *,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
    entries: Sequence[list[bytes]] | None = None,
) -> Copied:
    """Copy the run's records into a new ledger. A failure leaves nothing, a crash leaves a ledger with an intent.

    `entries` is what `entries_of` gives, if it was read before.

    Raises CorruptEntry, NotEnoughBookies, ReadFailed, WriteFailed, MetadataUnavailable; NoSuchLedger or NoSuchEntry if
    the run was truncated meanwhile.
    """
    writer, intent = await make_ledger(
        client, streams, work.name, work.uid, work.policy, epoch=work.epoch, purpose=COMPACT
    )
    try:
        try:
            chunks = entries_of(client, work.name, work.uid, run) if entries is None else _held(entries)
            await _write_entries(chunks, writer, pace or Pace(None), progress)
            await writer.close()
        except BaseException:
            await writer.abandon()
            raise
        async with opened(client, StreamId(work.name, work.uid), writer.ledger_id) as reader:
            summary = await summarise(work.name, reader)
        return Copied(run, replacement(str(work.name), run, writer.ledger_id, summary), intent)
    except BuckramError:
        await discard_after_error(client, streams, work.uid, intent)
        raise


async def _write_entries(
    chunks: AsyncGenerator[list[bytes], None], writer: LedgerAppender, pace: Pace, progress: ProgressCallback
) -> None:
    async with aclosing(chunks):
        async for entries in chunks:
            size = sum(map(len, entries))
            await pace.take(size)
            if entries:
                await writer.append_many(entries)
            progress(size)


async def _held(entries: Sequence[list[bytes]]) -> AsyncGenerator[list[bytes], None]:
    for chunk in entries:
        yield chunk


async def entries_of(
    client: LedgerClient, name: StreamName, uid: str, run: CompactionRun
) -> AsyncGenerator[list[bytes], None]:
    """Yield the entries of a copy of the run, some at a time. Raises CorruptEntry and the errors of reading."""
    rewriter = EntryRewriter()
    for row in run.rows:
        assert row.summary is not None
        rewriter.segment(row)
        async with opened(client, StreamId(name, uid), row.ledger) as reader:
            async for chunk in reader.chunks(0, row.summary.last_entry):
                yield [made for entry in chunk if (made := _rewrite_entry(name, rewriter, entry)) is not None]


def _rewrite_entry(name: StreamName, rewriter: EntryRewriter, entry: Entry) -> bytes | None:
    try:
        return rewriter.rewrite(entry.payload)
    except MalformedBatch as error:
        raise CorruptEntry(str(name), entry.ledger_id, entry.entry_id, str(error)) from None


async def replace_run(
    client: LedgerClient, streams: StreamStore, work: Compactable, copied: Copied, *, purpose: str = RETIRED
) -> bool:
    """List the copy in the place of the run, in one step. False: the run had changed, and the copy was discarded.

    `purpose` is that of the old ledgers' intents, and says when they go. After an error it may or may not have
    happened; call it again, it happens once.
    """
    try:
        await _replace(client, streams, work, copied, purpose)
        return True
    except (RunChanged, NoSuchStream):
        intent = await read_intent(streams, work.uid, copied.row.ledger)
        taken = intent is None
        if intent is not None and intent.purpose == copied.intent.purpose:
            taken = not await discard(client, streams, work.uid, intent)
        if taken:
            await _drop_late_files(client, streams, work, copied.row)
        return False


async def _drop_late_files(client: LedgerClient, streams: StreamStore, work: Compactable, row: Segment) -> None:
    """Delete files whose intent another process took: it looked for them maybe before the last ones were there."""
    if row.offloaded is None:
        return
    await retry_metadata(streams.keys.sync)  # A server of ZooKeeper that is behind may not show that they are listed.
    try:
        if await _is_listed(streams, work, row.ledger):
            return
    except NoSuchStream:
        pass
    with suppress(ConfigError, ReadFailed, WriteFailed):
        await drop_files(client, work.uid, row.offloaded.location, row.ledger)


async def _replace(client: LedgerClient, streams: StreamStore, work: Compactable, copied: Copied, purpose: str) -> None:
    run, row, name = copied.run, copied.row, str(work.name)
    clocks, retries = client.services.clocks, head_retries()
    while True:
        head = (await streams.read(work.name)).head
        paged = run.rows[0].number < head.paged
        ops: list[KeyOp] = [listing_op(streams, work.uid, copied.intent)]
        ops += [retiring_op(streams, work.uid, old.ledger, head.epoch, clocks.now(), purpose) for old in run.rows]
        try:
            if paged:
                write = await _page_write(streams, work, copied)
                if write is None:
                    return
                ops.insert(0, write)
            step = partial(compacted, name, run=run, row=row, paged=paged)
            await streams.change(work.name, step, uid=work.uid, extra=partial(_return_ops, ops))
            return
        except RunChanged as error:
            if paged == (run.rows[0].number < (await streams.read(work.name)).head.paged):
                raise
            await retries.wait(error)  # The run has moved from the head to a page, so replace it there.
        except (NoSuchKey, VersionConflict) as error:
            if await _is_listed(streams, work, row.ledger):
                return
            if await read_intent(streams, work.uid, row.ledger) != copied.intent:
                raise RunChanged(name, f"ledger {row.ledger} was discarded before it was listed ({error})") from error
            await retries.wait(error)  # The page has changed since it was read.


async def _page_write(streams: StreamStore, work: Compactable, copied: Copied) -> SetValue | None:
    """Return the operation that puts the copy into the run's page; None if the page has it already. RunChanged."""
    run, name = copied.run, str(work.name)
    try:
        page, version = await streams.page_at(work.uid, run.page)
    except NoSuchKey:
        raise RunChanged(name, f"segments from offset {run.base} on were truncated") from None
    changed = compacted_page(name, page, run, copied.row)
    if changed is None:
        return None
    return SetValue(streams.layout.page(work.uid, run.page), encode_page(changed), version)


async def _is_listed(streams: StreamStore, work: Compactable, ledger: LedgerId) -> bool:
    head = (await streams.read(work.name)).head
    if head.uid != work.uid:
        return False
    async for row in streams.segments(head):
        if row.ledger == ledger:
            return True
    return False


def _return_ops(ops: list[KeyOp], _: Head) -> list[KeyOp]:
    return ops


async def compact_stream(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    *,
    target_bytes: int | None = None,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> CompactionReport:
    """Compact one stream, run after run. It may be stopped and repeated at any point. Raises NoSuchStream."""
    work = await plan_compaction(streams, name, target_bytes=target_bytes)
    report = CompactionReport(str(name))
    for run in work.runs:
        try:
            copied = await copy_run(client, streams, work, run, pace=pace, progress=progress)
        except (NoSuchLedger, NoSuchEntry):
            report.put_off += 1  # The run was truncated meanwhile.
            continue
        if await replace_run(client, streams, work, copied):
            report.segments += len(run.rows)
            report.made += 1
            report.bytes += run.bytes
        else:
            report.put_off += 1
    return report


# -- joining, when a writer opens -------------------------------------------------------------------------

KEPT_US = 2_000_000
"""Time that a joined ledger is kept, microseconds, so that readers that have just opened it can finish."""
_READ_WITHIN_S = 1.0
_DELETED_AT_ONCE = 64


async def join_before_writing(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy
) -> None:
    """Join small segments if enough of them ([client] join_segments) can be read now. Only bugs raise."""
    runs = small_runs(head, policy, at_least=client.services.config.join_segments)
    if not runs:
        return
    try:
        await join(client, streams, name, head, policy, runs, purpose=JOINED)
        await _delete_joined(client, streams, head.uid)
    except InvariantViolation:
        raise
    except (BuckramError, TimeoutError):
        return


async def join(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    head: Head,
    policy: Policy,
    runs: list[CompactionRun],
    *,
    purpose: str = RETIRED,
) -> int:
    """Put one segment in the place of each run; returns how many segments were replaced.

    Nothing is made before all of a run has been read. Errors of a compaction, and TimeoutError: reading takes long.
    """
    work = Compactable(name, head.uid, head.epoch, policy, tuple(runs))
    done = 0
    for run in runs:
        async with asyncio.timeout(_READ_WITHIN_S):
            entries = [chunk async for chunk in entries_of(client, name, head.uid, run)]
        copied = await copy_run(client, streams, work, run, entries=entries)
        if await replace_run(client, streams, work, copied, purpose=purpose):
            done += len(run.rows)
    return done


async def _delete_joined(client: LedgerClient, streams: StreamStore, uid: str) -> None:
    clocks = client.services.clocks
    for intent in await list_intents(streams, uid, limit=_DELETED_AT_ONCE):
        if intent.purpose == JOINED and clocks.ended(intent.time + KEPT_US):
            with suppress(BuckramError):
                await discard(client, streams, uid, intent)
