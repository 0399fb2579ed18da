"""Ledgers of a stream: each has an intent and an owner mark before its first entry, so none is lost after a crash.

A ledger that is not listed is discarded in three steps: claim its intent (from then on no multi can list the ledger),
delete the ledger, delete the intent. That is safe at any time; the caller decides whether the ledger is still wanted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from buckram.client.maintain.delete import delete_ledger
from buckram.client.write.create import ID_TRIES, fitting
from buckram.client.write.writer import engine_of
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.metadata.snapshots import is_published
from buckram.core.streams.names import StreamId, StreamName, owner_mark
from buckram.core.streams.policy import Policy
from buckram.errors import (
    BuckramError,
    ConfigError,
    ForeignLedger,
    KeyNotEmpty,
    LedgerIdRefused,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    NotEnoughBookies,
    ReadFailed,
    StreamError,
    VersionConflict,
    WriteFailed,
)
from buckram.streams.shared.locations import FileLocation, in_thread
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.streams.shared.ownership import check_own_files, foreign, is_own, report_foreign
from buckram.streams.shared.shared_ledgers import forget, held, holders, release
from buckram.types import CheckVersion, Create, Delete, LedgerId, LedgerMetadata

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.client.write.engine import LedgerAppender

SEGMENT, COMPACT, RETIRED = "segment", "compact", "retired"
JOINED = "joined"
"""The purpose of a retired ledger of a small segment that a writer joined with others: later writers delete it."""
SNAPSHOT = "snapshot"
"""The purpose of a ledger with a snapshot of a machine. Its intent stays for as long as the ledger."""
OBJECT = "object"
"""The purpose of a ledger with data of objects, which the objects' index alone lists. Its intent stays, too."""
OFFLOAD = "offload"
"""The purpose of an id that names files of history which are not listed yet; no ledger has that id."""
EXPORT = "export"
"""The purpose of an id that names files of an export which are not published yet, or are no longer."""
FORK = "fork"
"""The purpose of a ledger with the records of a source that a fork does not share."""
_BULK = "bulk "
_MADE, _DISCARD = "made", "discard"
_DROPPED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Intent:
    """The metadata key that a ledger of a stream has while it is not listed, with its `version`.

    `epoch` is that of the stream when the ledger was made. `purpose` is "segment", "bulk APPLICATION VERSION",
    "compact", "fork", "offload", "export", "snapshot", "object", or "retired" or "joined": it was listed, and a copy
    replaced it at `time`. `time` is when the intent was made, in microseconds UTC. `discard`: it was claimed for
    deletion. `place`: the directory of the files that the id of an offload or export names.
    """

    ledger: LedgerId
    epoch: int
    purpose: str
    time: int
    discard: bool
    version: int
    query: str = ""
    place: str = ""

    @property
    def step(self) -> tuple[str, int] | None:
        """Application and version of a bulk step's ledger; None for other purposes."""
        if not self.purpose.startswith(_BULK):
            return None
        application, _, version = self.purpose.removeprefix(_BULK).rpartition(" ")
        good = application and version.isascii() and version.isdigit() and len(version) < 20
        return (application, int(version)) if good else None


def is_stale(intent: Intent, head: Head) -> bool:
    """Return whether the writer that made the ledger is gone, and can never list or publish it."""
    if intent.purpose == SNAPSHOT:
        return intent.epoch < head.epoch and not is_published(head, intent.ledger)
    return intent.purpose == SEGMENT and intent.epoch < head.epoch


def bulk_purpose(application: str, version: int) -> str:
    """Return the purpose that the intents and owner marks of a bulk step's ledgers name."""
    return f"{_BULK}{application} {version}"


async def make_ledger(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    uid: str,
    policy: Policy,
    *,
    epoch: int,
    purpose: str = SEGMENT,
    query: str = "",
    marks: Mapping[str, bytes] | None = None,
) -> tuple[LedgerAppender, Intent]:
    """Make a ledger of the stream that is in no list yet; `marks` is added to its custom metadata.

    Raises NotEnoughBookies, MetadataUnavailable, or StreamError if it was discarded meanwhile. The janitor finds
    whatever a failure leaves behind.
    """
    client.services.guard()
    await client.services.clocks.ensure()
    for left in reversed(range(ID_TRIES)):
        intent = await _new_intent(client, streams, uid, epoch, purpose, query)
        ledger = intent.ledger
        try:
            handle = await client.create(
                ensemble=policy.ensemble,
                digest=policy.digest,
                ledger_id=ledger,
                placement=policy.placement or None,
                encrypt=policy.encryption == "required",
                custom_metadata={**(marks or {}), **owner_mark(name, uid, purpose)},
            )
            break
        except BuckramError as error:
            await discard_after_error(client, streams, uid, intent)
            if isinstance(error, LedgerIdRefused) and left:
                continue  # The session that got the id has ended.
            if isinstance(error, NotEnoughBookies) and 0 < error.available < error.needed:
                advice = _suggest_smaller_ensemble(name, policy, error)
                raise NotEnoughBookies(error.needed, error.available, advice) from error
            raise
    writer = engine_of(handle)
    try:
        seen = await retry_metadata(lambda: read_intent(streams, uid, ledger))
        if seen is None or seen.discard:
            # Another process claimed the intent before the ledger existed, so it may have found nothing to delete.
            await drop_ledger(client, streams, StreamId(name, uid), ledger)
            raise StreamError(
                str(name), f"ledger {ledger} was discarded while it was made: the stream was deleted or taken over"
            )
    except BaseException:
        await writer.abandon()
        raise
    return writer, intent


async def _new_intent(
    client: LedgerClient, streams: StreamStore, uid: str, epoch: int, purpose: str, query: str = "", place: str = ""
) -> Intent:
    """Write the intent of a new id, of another one where the session that got the first has ended."""
    for left in reversed(range(ID_TRIES)):
        ledger = await client.services.store.allocate_ledger_id()
        intent = Intent(ledger, epoch, purpose, client.services.clocks.now(), False, 0, query, place)
        try:
            await streams.keys.create(streams.layout.intent(uid, ledger), _encode(intent))
            return intent
        except LedgerIdRefused:
            if not left:
                raise
    raise AssertionError("the last attempt returns or raises")


async def make_history_id(
    client: LedgerClient, streams: StreamStore, uid: str, place: str, *, epoch: int, purpose: str = OFFLOAD
) -> Intent:
    """Return the intent of a new id for files of history in the directory `place`; none of them exists yet."""
    await client.services.clocks.ensure()
    return await _new_intent(client, streams, uid, epoch, purpose, place=place)


def _suggest_smaller_ensemble(name: StreamName, policy: Policy, error: NotEnoughBookies) -> str:
    fits = fitting(error.available, policy.quorum)
    return f"{error}: `buckram namespace set {name.namespace} --set ensemble={fits}` for the streams of this namespace"


def listing_op(streams: StreamStore, uid: str, intent: Intent) -> Delete:
    """Return the operation for the multi that lists the ledger; the multi fails if the intent was claimed meanwhile."""
    return Delete(streams.layout.intent(uid, intent.ledger), intent.version)


def present_op(streams: StreamStore, uid: str, intent: Intent) -> CheckVersion:
    """Return the condition for a multi that publishes the ledger: its intent, which stays, is unclaimed."""
    return CheckVersion(streams.layout.intent(uid, intent.ledger), intent.version)


def retiring_op(
    streams: StreamStore, uid: str, ledger: LedgerId, epoch: int, now: int, purpose: str = RETIRED
) -> Create:
    """Return the operation for the multi that takes the ledger out of the list; it is deleted later."""
    return Create(streams.layout.intent(uid, ledger), _encode(Intent(ledger, epoch, purpose, now, False, 0)))


def withdrawing_op(streams: StreamStore, uid: str, copy: LedgerId, place: str, epoch: int, now: int) -> Create:
    """Return the operation for the multi that takes files out of an export; afterwards they can be deleted."""
    return Create(streams.layout.intent(uid, copy), _encode(Intent(copy, epoch, EXPORT, now, False, 0, place=place)))


async def list_intents(streams: StreamStore, uid: str, *, after: LedgerId = -1, limit: int = 1000) -> list[Intent]:
    """Return the intents of ledgers with ids above `after`, in order; an empty page is the last one."""
    parent = streams.layout.intents(uid)
    names = await streams.keys.children(parent, after=f"{after:019d}" if after >= 0 else "", limit=limit)
    found: list[Intent] = []
    for child in names:
        intent = await read_intent(streams, uid, int(child))
        if intent is not None:
            found.append(intent)
    return found


async def read_intent(streams: StreamStore, uid: str, ledger: LedgerId) -> Intent | None:
    """Return a ledger's intent, or None if it has none. Raises MalformedRecord, MetadataUnavailable."""
    try:
        kept = await streams.keys.get(streams.layout.intent(uid, ledger))
    except NoSuchKey:
        return None
    try:
        raw = json.loads(kept.value)
        return Intent(
            ledger,
            raw["epoch"],
            raw["purpose"],
            raw["time"],
            raw["state"] == _DISCARD,
            kept.version,
            raw.get("query", ""),
            raw.get("place", ""),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{streams.layout.intent(uid, ledger)}: not a ledger's intent ({error!r})") from None


async def discard(client: LedgerClient, streams: StreamStore, uid: str, intent: Intent) -> bool:
    """Delete a ledger, or files of history, that no list has. False: its intent is gone or has changed meanwhile.

    It was listed then, or discarded by another process. Raises ReadFailed or WriteFailed if the files are unreachable.
    """
    key, retries = streams.layout.intent(uid, intent.ledger), head_retries()
    while True:
        try:
            if not intent.discard:
                version = await streams.keys.set(key, _encode(intent, _DISCARD), intent.version)
                intent = replace(intent, discard=True, version=version)
            if intent.place:
                await drop_files(client, uid, intent.place, intent.ledger)
            else:
                await let_go(client, streams, uid, intent.ledger)
            await streams.keys.delete(key, intent.version)
            return True
        except NoSuchKey:
            return False
        except VersionConflict:
            seen = await read_intent(streams, uid, intent.ledger)
            if seen is None or not seen.discard:
                return False
            intent = seen  # An earlier request whose reply was lost claimed it, or a process that may be dead.
        except MetadataUnavailable as error:
            await retries.wait(error)


async def discard_after_error(client: LedgerClient, streams: StreamStore, uid: str, intent: Intent) -> None:
    """Discard what is not needed after an error, which is the one to report: where this fails the janitor does it."""
    with suppress(BuckramError):
        await discard(client, streams, uid, intent)


async def drop_ledger(client: LedgerClient, streams: StreamStore, stream: StreamId, ledger: LedgerId) -> None:
    """Delete a ledger of a stream, even if it cannot be recovered any more. No-op if it does not exist.

    ForeignLedger if it is not the stream's. KeyNotEmpty if streams share it: `let_go` is for ledgers that may be
    shared.
    """

    async def judge(ledger: LedgerId, metadata: LedgerMetadata) -> None:
        if not (await is_own(streams.metadata, stream, ledger, metadata) or await held(streams, stream.uid, ledger)):
            raise await report_foreign(client, stream, foreign(stream, ledger))

    try:
        await delete_ledger(client.services, ledger, force=True, judge=judge)
    except NoSuchLedger:
        return


async def let_go(client: LedgerClient, streams: StreamStore, uid: str, ledger: LedgerId) -> None:
    """Delete a ledger of the stream, unless other streams hold it: then this one lets go. No-op if it does not exist.

    A ledger that is not the stream's own, whatever its metadata say, is left as it is, and reported.

    Several streams may let go at once: each takes its own key away before it tries to delete the ledger, so the last
    one succeeds. If that one ends in between, a later call that finds no holder left tries once more. It may be stopped
    at any point and called again.
    """
    while True:
        try:
            await drop_ledger(client, streams, StreamId(None, uid), ledger)
            break
        except ForeignLedger:
            return
        except KeyNotEmpty:
            await retry_metadata(streams.keys.sync)  # A server of ZooKeeper that is behind shows no keys yet.
            if not await release(streams, uid, ledger) and await holders(streams, ledger):
                break  # Others hold it, and the last of them deletes it.
    await forget(streams, uid, ledger)


async def drop_files(client: LedgerClient, uid: str, place: str, copy: LedgerId) -> None:
    """Delete the files of an offloaded segment, or what was written of them. ReadFailed, WriteFailed.

    Files in a directory that is not the stream's are left as they are, and reported.
    """
    stream = StreamId(None, uid)
    try:
        check_own_files(stream, copy, place)
    except ForeignLedger as error:
        await report_foreign(client, stream, error)
        return
    await in_thread(copy, place, partial(FileLocation(place).remove, copy))


async def drop_segment(client: LedgerClient, streams: StreamStore, uid: str, row: Segment) -> None:
    """Delete what a row of the segment list names: files of history, or a ledger, unless other streams hold it.

    No-op if it does not exist.
    """
    if row.offloaded is None:
        await let_go(client, streams, uid, row.ledger)
    else:
        await drop_files(client, uid, row.offloaded.location, row.ledger)


async def drop_segments(
    client: LedgerClient, streams: StreamStore, uid: str, rows: Sequence[Segment], *, leave_files: bool = False
) -> None:
    """Delete as `drop_segment` does for several rows at once, so that their ledgers share steps in the metadata.

    With `leave_files` files of history that cannot be reached stay where they are.
    """
    for start in range(0, len(rows), _DROPPED_AT_ONCE):
        some = rows[start : start + _DROPPED_AT_ONCE]
        done = await asyncio.gather(*(drop_segment(client, streams, uid, row) for row in some), return_exceptions=True)
        for row, answer in zip(some, done, strict=True):
            left = (
                leave_files and row.offloaded is not None and isinstance(answer, ConfigError | ReadFailed | WriteFailed)
            )
            if isinstance(answer, BaseException) and not left:
                raise answer


def _encode(intent: Intent, state: str = _MADE) -> bytes:
    fields = {"epoch": intent.epoch, "purpose": intent.purpose, "time": intent.time, "state": state}
    if intent.query:
        fields["query"] = intent.query
    if intent.place:
        fields["place"] = intent.place
    return json.dumps(fields, ensure_ascii=False).encode()
