"""Offload: sealed segments are copied to files outside the cluster, which take their places in the segment list.

    work = await plan_offload(...)
    for row in work.rows:
        await offload_segment(...)          or, in many processes: copy_segment, then replace_run

An id for the files gets its intent, then each part is written, read back and compared entry by entry, then the manifest
likewise; then one compare-and-set puts the files in the ledger's place and gives the ledger an intent. So a crash
leaves a ledger in the list, or files in the list, and what is in no list has an intent, by which the janitor finds it.
Readers of the ledger go on until the janitor deletes it (JanitorSettings.retired_s). Not here: the format of the files
(`core/streams/history.py`, `shared/history_parts.py`), when a policy wants it (`maintain/history.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from buckram.client.client import Client
from buckram.client.read.reader import Reader
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.security.encryption import key_id_of
from buckram.core.streams.changes import check_usable
from buckram.core.streams.compaction import Run
from buckram.core.streams.head import Head, Offloaded, Segment, Summary
from buckram.core.streams.history import (
    PART_BYTES,
    PART_ENTRIES,
    Manifest,
    Part,
    check_location,
    decode_manifest,
    digest_of,
    directory_of,
    encode_manifest,
    manifest_file,
    may_offload,
    offloaded_row,
    part_file,
)
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.errors import (
    BuckramError,
    ConfigError,
    CorruptEntry,
    InvalidArgument,
    MachineLog,
    MalformedBatch,
    NoSuchEntry,
    NoSuchLedger,
    StreamError,
    WriteFailed,
)
from buckram.net.pace import Pace
from buckram.streams.maintain.compaction import Compactable, Copied, Progress, replace_run
from buckram.streams.shared.ledgers import discard, make_history_id
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.shared.places import WITHIN_S, Place, answer_of
from buckram.types import EntryId, LedgerId

Wanted = Callable[[Head, Sequence[Segment], Policy], list[Segment]]
"""Returns those of a stream's segments that are to be offloaded, the oldest first."""


@dataclass(frozen=True, slots=True)
class Offloadable:
    """The segments of a stream that are to be offloaded, at one moment, and where to."""

    name: StreamName
    uid: str
    epoch: int
    policy: Policy
    directory: str
    rows: tuple[Segment, ...]
    put_aside: int
    """The number of segments that were wanted and stay: theirs is the producers' table."""

    @property
    def bytes(self) -> int:
        """The payload of all segments."""
        return sum(row.summary.bytes for row in self.rows if row.summary is not None)


@dataclass(slots=True)
class OffloadReport:
    """What an offload did to one stream."""

    stream: str
    location: str = ""
    segments: int = 0
    """The number of segments that are history now."""
    records: int = 0
    bytes: int = 0
    """The payload of these segments; their ledgers are deleted later, by the janitor."""
    file_bytes: int = 0
    kept: int = 0
    """The number of segments that stay on bookies, because the producers' table is in them."""
    put_off: int = 0
    """The number of segments that changed meanwhile; the next offload may take them."""


async def plan_offload(
    streams: StreamStore, name: StreamName, *, to: str | None = None, wanted: Wanted | None = None
) -> Offloadable:
    """Return what is to be offloaded: what `wanted` names, or all that may be.

    `to` is a location, default the policy's offload_to. Raises NoSuchStream, MachineLog, and InvalidArgument without a
    location.
    """
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    if head.snapshots is not None:
        raise MachineLog(str(name))
    policy = merged((await Namespaces(streams).get(name.namespace)).policy, head.policy)
    location = check_location(to) if to is not None else policy.offload_to
    if not location:
        raise InvalidArgument(
            f"stream {name}: has no place for its history; give one (--to URL), or set the policy offload_to"
        )
    rows = [row async for row in streams.segments(head)]
    chosen = rows if wanted is None else wanted(head, rows, policy)
    ready = tuple(row for row in chosen if may_offload(head, row))
    aside = sum(row.sealed and row.number == head.producers for row in chosen)
    return Offloadable(name, head.uid, head.epoch, policy, directory_of(location, name, head.uid), ready, aside)


async def offload_segment(
    client: Client,
    streams: StreamStore,
    work: Offloadable,
    row: Segment,
    report: OffloadReport,
    *,
    pace: Pace | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Offload one segment and add it to the report. It may be stopped and repeated at any point.

    Raises WriteFailed or ReadFailed if the location or the bookies cannot be reached, CorruptEntry if the files do not
    give back what was written, StreamError for encrypted entries.
    """
    try:
        copied, size = await copy_segment(client, streams, work, row, pace=pace, progress=progress)
    except (NoSuchLedger, NoSuchEntry):
        report.put_off += 1  # The segment was truncated or replaced meanwhile.
        return
    run = Compactable(work.name, work.uid, work.epoch, work.policy, (copied.run,))
    if not await replace_run(client, streams, run, copied):
        report.put_off += 1
        return
    assert row.summary is not None
    report.segments += 1
    report.records += row.summary.records
    report.bytes += row.summary.bytes
    report.file_bytes += size


async def copy_segment(
    client: Client,
    streams: StreamStore,
    work: Offloadable,
    row: Segment,
    *,
    pace: Pace | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Copied, int]:
    """Write a segment's files, read them back and compare; returns the row that can take its place, and their bytes.

    A failure leaves nothing, a crash leaves files with an intent. Errors as of offload_segment, and NoSuchLedger or
    NoSuchEntry if the segment was truncated meanwhile.
    """
    _check_software()
    intent = await make_history_id(client, streams, work.uid, work.directory, epoch=work.epoch)
    copy = _Copy(work.name, work.uid, row, intent.ledger, work.directory)
    try:
        async with client.open(row.ledger) as reader:
            digest = await copy.write(reader, pace or Pace(None), progress)
    except BuckramError:
        if await copy.has_ended():  # The janitor deletes it otherwise; the first error is the one to report.
            with suppress(BuckramError):
                await discard(client, streams, work.uid, intent)
        raise
    place = Offloaded(work.directory, digest)
    return Copied(Run((row,)), offloaded_row(row, intent.ledger, place), intent), copy.file_bytes


@dataclass(slots=True)
class _Copy:
    """One attempt at the files of one segment."""

    name: StreamName
    uid: str
    row: Segment
    copy: LedgerId
    directory: str
    parts: list[Part] = field(default_factory=list)
    file_bytes: int = 0
    call: asyncio.Future[Any] | None = None
    """What a thread does, or has done last."""

    async def has_ended(self) -> bool:
        """Wait for the thread, since whoever deletes the files must find all of them. False if it hangs."""
        if self.call is None:
            return True
        done, _ = await asyncio.wait([self.call], timeout=WITHIN_S)
        if done and not self.call.cancelled():
            self.call.exception()  # It was reported, or another error was.
        return bool(done)

    async def write(self, reader: Reader, pace: Pace, progress: Progress) -> str:
        """Write and verify all files, the manifest last; returns its digest."""
        if key_id_of(reader.metadata.custom_metadata):
            raise StreamError(
                str(self.name),
                f"the entries of ledger {self.row.ledger} are encrypted, and its history would not be; take offload_to "
                "out of its policy, or keep its history on bookies",
            )
        await self._write_parts(reader, pace, progress)
        assert self.row.summary is not None
        manifest = Manifest(
            str(self.name),
            self.uid,
            self.copy,
            self.row.ledger,
            reader.metadata.custom_metadata.get(BIRTH, b"").hex(),
            self.row.base,
            self.row.summary,
            tuple(self.parts),
        )
        data = encode_manifest(manifest)
        self.call = asyncio.get_running_loop().run_in_executor(None, partial(self._write_manifest, data))
        await answer_of(self.copy, self.directory, self.call)
        return digest_of(data)

    async def _write_parts(self, reader: Reader, pace: Pace, progress: Progress) -> None:
        """Cut the entries into parts. The next part is read from the bookies while a thread writes one."""
        summary = self.row.summary
        assert summary is not None
        payloads: list[bytes] = []
        first, size = 0, 0
        async for chunk in reader.chunks(0, summary.last_entry):
            read = sum(len(entry.payload) for entry in chunk)
            await pace.take(read)
            progress(read)
            for entry in chunk:
                payloads.append(entry.payload)
                size += len(entry.payload)
                last = entry.entry_id == summary.last_entry
                if size >= PART_BYTES or len(payloads) >= PART_ENTRIES or last:
                    await self._written()
                    file = part_file(self.row.base, self.copy, len(self.parts))
                    work = partial(self._write_part, file, payloads, first, summary)
                    self.call = asyncio.get_running_loop().run_in_executor(None, work)
                    first, payloads, size = first + len(payloads), [], 0
        await self._written()

    async def _written(self) -> None:
        """Wait for the part that a thread writes, if there is one."""
        if self.call is None:
            return
        part: Part = await answer_of(self.copy, self.directory, self.call)
        self.parts.append(part)
        self.file_bytes += part.bytes

    # -- in a thread --------------------------------------------------------------------------------------

    def _write_part(self, file: str, payloads: list[bytes], first: EntryId, summary: Summary) -> Part:
        """Write a part, read it back and compare. Raises WriteFailed, ReadFailed, CorruptEntry."""
        from buckram.streams.shared.history_parts import LoadedPart, build_part, describe_part, difference

        place = Place(self.directory)
        try:
            data, records = build_part(payloads, first, self.row.base, summary)
        except MalformedBatch as error:
            raise CorruptEntry(str(self.name), self.row.ledger, first, str(error)) from None
        part = describe_part(file, data, payloads, first, records)
        place.write(file, data, self.copy)
        try:
            why = difference(payloads, LoadedPart(part, self._read_back(place, file)))
        except MalformedBatch as error:
            why = str(error)
        if why:
            raise CorruptEntry(
                str(self.name), self.copy, first, f"{file} at {self.directory} was written and read back: {why}"
            )
        return part

    def _write_manifest(self, data: bytes) -> None:
        place, file = Place(self.directory), manifest_file(self.row.base, self.copy)
        decode_manifest(file, data)  # This proves that the parts are the whole segment.
        place.write(file, data, self.copy)
        if self._read_back(place, file) != data:
            raise CorruptEntry(
                str(self.name), self.copy, 0, f"{file} at {self.directory} was written and read back: other bytes"
            )

    def _read_back(self, place: Place, file: str) -> bytes:
        try:
            return place.read(file, self.copy)
        except NoSuchEntry as error:
            raise WriteFailed(self.copy, f"{file} was written and is not there: {error}") from None


def _check_software() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ConfigError("history needs pyarrow: pip install 'buckram[history]'") from None


async def offload_stream(
    client: Client,
    streams: StreamStore,
    name: StreamName,
    *,
    to: str | None = None,
    wanted: Wanted | None = None,
    pace: Pace | None = None,
    progress: Progress = lambda _: None,
) -> OffloadReport:
    """Offload a stream, segment after segment. It may be stopped and repeated at any point.

    Errors are those of plan_offload and offload_segment.
    """
    work = await plan_offload(streams, name, to=to, wanted=wanted)
    report = OffloadReport(str(name), work.directory, kept=work.put_aside)
    for row in work.rows:
        await offload_segment(client, streams, work, row, report, pace=pace, progress=progress)
    return report


__all__ = [
    "Offloadable",
    "OffloadReport",
    "Wanted",
    "copy_segment",
    "offload_segment",
    "offload_stream",
    "plan_offload",
]
