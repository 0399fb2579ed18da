"""Ledgers that are made for a stream: each has an intent and an owner mark before its first entry, so none gets lost.

To discard one that is not listed: claim its intent (from then on no multi can list it), delete the ledger, delete the
intent. That is safe at any time; whether it is polite is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from buckram.client.maintain.delete import delete_ledger
from buckram.client.write.create import fitting
from buckram.client.write.writer import engine_of
from buckram.core.streams.names import StreamName, owner_mark
from buckram.core.streams.policy import Policy
from buckram.errors import (
    BuckramError,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    NotEnoughBookies,
    StreamError,
    VersionConflict,
)
from buckram.seams import Create, Delete
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.types import LedgerId

if TYPE_CHECKING:
    from buckram.client.client import Client
    from buckram.client.write.engine import LedgerAppender

SEGMENT, COMPACT, RETIRED = "segment", "compact", "retired"
_BULK = "bulk "
_MADE, _DISCARD = "made", "discard"


@dataclass(frozen=True, slots=True)
class Intent:
    """`epoch`: of the writer that made it. `purpose`: "segment", "bulk APPLICATION VERSION", "compact", or "retired":
    it was listed, and a compacted copy took its place at `time`."""

    ledger: LedgerId
    epoch: int
    purpose: str
    time: int
    discard: bool
    version: int
    query: str = ""

    @property
    def step(self) -> tuple[str, int] | None:
        """(application, version) of a bulk step's ledger."""
        if not self.purpose.startswith(_BULK):
            return None
        application, _, version = self.purpose.removeprefix(_BULK).rpartition(" ")
        return (application, int(version)) if application and version.isdigit() else None


def bulk_purpose(application: str, version: int) -> str:
    """What intents and owner marks of a bulk step's ledgers say."""
    return f"{_BULK}{application} {version}"


async def make_ledger(
    client: Client,
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
    """A new ledger of the stream, in no list. `marks`: further custom metadata. Errors: NotEnoughBookies,
    MetadataUnavailable; nothing is left behind that a janitor does not find."""
    store, clocks = client.services.store, client.services.clocks
    await clocks.ensure()
    ledger = await store.allocate_ledger_id()
    intent = Intent(ledger, epoch, purpose, clocks.now(), False, 0, query)
    await streams.keys.create(streams.layout.intent(uid, ledger), _encode(intent))
    try:
        handle = await client.create(
            ensemble=policy.ensemble,
            digest=policy.digest,
            ledger_id=ledger,
            placement=policy.placement or None,
            custom_metadata={**(marks or {}), **owner_mark(name, uid, purpose)},
        )
    except BuckramError as error:
        with suppress(BuckramError):  # else it is the janitor's work; the reason of the failure is worth more
            await discard(client, streams, uid, intent)
        if isinstance(error, NotEnoughBookies) and 0 < error.available < error.needed:
            raise NotEnoughBookies(error.needed, error.available, _smaller(name, policy, error)) from error
        raise
    writer = engine_of(handle)
    try:
        seen = await retry_metadata(lambda: read_intent(streams, uid, ledger))
        if seen is None or seen.discard:
            # Somebody gave us up before the creation arrived, and may have looked for the ledger too early.
            await drop_ledger(client, ledger)
            raise StreamError(
                str(name), f"ledger {ledger} was discarded while it was made: the stream was deleted or taken over"
            )
    except BaseException:
        await writer.abandon()
        raise
    return writer, intent


def _smaller(name: StreamName, policy: Policy, error: NotEnoughBookies) -> str:
    fits = fitting(error.available, policy.quorum)
    return f"{error}: `buckram namespace set {name.namespace} --set ensemble={fits}` for the streams of this namespace"


def listing(streams: StreamStore, uid: str, intent: Intent) -> Delete:
    """To be part of the multi that lists the ledger: refuses when the intent was claimed meanwhile."""
    return Delete(streams.layout.intent(uid, intent.ledger), intent.version)


def retiring(streams: StreamStore, uid: str, ledger: LedgerId, epoch: int, now: int) -> Create:
    """To be part of the multi that takes the ledger out of the list: the janitor deletes it after a while."""
    return Create(streams.layout.intent(uid, ledger), _encode(Intent(ledger, epoch, RETIRED, now, False, 0)))


async def intents(streams: StreamStore, uid: str, *, after: LedgerId = -1, limit: int = 1000) -> list[Intent]:
    """In order of ledger ids; empty at the end."""
    parent = streams.layout.intents(uid)
    names = await streams.keys.children(parent, after=f"{after:019d}" if after >= 0 else "", limit=limit)
    found: list[Intent] = []
    for child in names:
        intent = await read_intent(streams, uid, int(child))
        if intent is not None:
            found.append(intent)
    return found


async def read_intent(streams: StreamStore, uid: str, ledger: LedgerId) -> Intent | None:
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
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{streams.layout.intent(uid, ledger)}: not a ledger's intent ({error!r})") from None


async def discard(client: Client, streams: StreamStore, uid: str, intent: Intent) -> bool:
    """Delete a ledger that is in no list. False: its intent is gone or changed, so it was listed or discarded."""
    key, retries = streams.layout.intent(uid, intent.ledger), head_retries()
    while True:
        try:
            if not intent.discard:
                version = await streams.keys.set(key, _encode(intent, _DISCARD), intent.version)
                intent = replace(intent, discard=True, version=version)
            await drop_ledger(client, intent.ledger)
            await streams.keys.delete(key, intent.version)
            return True
        except NoSuchKey:
            return False
        except VersionConflict:
            seen = await read_intent(streams, uid, intent.ledger)
            if seen is None or not seen.discard:
                return False
            intent = seen  # claimed: by a lost request of ours or by somebody who may have died since
        except MetadataUnavailable as error:
            await retries.wait(error)


async def drop_ledger(client: Client, ledger: LedgerId) -> None:
    """Delete a ledger of a stream; one that is gone is fine. Also when it cannot be recovered any more."""
    try:
        await delete_ledger(client.services, ledger, force=True, of_stream=True)
    except NoSuchLedger:
        return


def _encode(intent: Intent, state: str = _MADE) -> bytes:
    fields = {"epoch": intent.epoch, "purpose": intent.purpose, "time": intent.time, "state": state}
    if intent.query:
        fields["query"] = intent.query
    return json.dumps(fields, ensure_ascii=False).encode()


__all__ = [
    "COMPACT",
    "RETIRED",
    "SEGMENT",
    "Intent",
    "bulk_purpose",
    "discard",
    "drop_ledger",
    "intents",
    "listing",
    "make_ledger",
    "read_intent",
    "retiring",
]
