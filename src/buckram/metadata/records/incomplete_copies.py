"""Notes of ledgers with a member that may lack entries: `healing/behind/<ledger>@<bookie>`, made by clients.

Whoever writes or recovers a ledger knows who did not confirm everything, and notes it before the ledger is closed. A
note is removed when that member's copies were looked at, and not before. Not here: looking
(`healing/auditing/absence_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

from buckram.core.backoff import STORE_CALL
from buckram.core.healing.absences import note_name, parse_note
from buckram.core.ledgers.deletions import bucket_of, decode_deleted, deletions_key
from buckram.errors import (
    KeyExists,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.removals import is_gone
from buckram.runtime.process.retry import retry
from buckram.seams import MetadataStore, Notify
from buckram.types import BookieId, LedgerId

BEHIND = "healing/behind"
"""Folder of the notes, below ClusterLayout.own."""
_TRIES = 20
WITHIN_S = 10.0
"""Default time for which writing a note is tried, seconds."""


@dataclass(frozen=True, slots=True)
class IncompleteCopy:
    """A member that may lack entries of a ledger. A later note about the same has another version."""

    ledger: LedgerId
    bookie: BookieId
    version: int


async def note_behind(
    store: MetadataStore, ledger: LedgerId, bookies: Collection[BookieId], within_s: float = WITHIN_S
) -> list[IncompleteCopy]:
    """Note that these members may lack entries. Raises MetadataUnavailable after `within_s`, AccessRefused."""

    async def note() -> list[IncompleteCopy]:
        return [await _note(store, ledger, bookie) for bookie in bookies]

    try:
        async with asyncio.timeout(within_s):
            return await retry(note, MetadataUnavailable, STORE_CALL, within_s=within_s)
    except TimeoutError:
        raise MetadataUnavailable(f"ledger {ledger}: the note was not written within {within_s:.1f} s") from None


async def _note(store: MetadataStore, ledger: LedgerId, bookie: BookieId) -> IncompleteCopy:
    key = _key(store, ledger, bookie)
    for _ in range(_TRIES):
        try:
            return IncompleteCopy(ledger, bookie, await store.keys.create(key, b""))
        except KeyExists:
            pass
        try:  # a new version: whoever looks at the member now must look again
            return IncompleteCopy(ledger, bookie, await store.keys.set(key, b"", (await store.keys.get(key)).version))
        except (VersionConflict, NoSuchKey):
            continue
    raise MetadataUnavailable(f"{key}: others changed it {_TRIES} times meanwhile; try again")


async def noted_members(store: MetadataStore, watch: Notify | None = None) -> list[tuple[LedgerId, BookieId]]:
    """Return the ledger and the member of each note, by ledger, from names alone. The watch fires when one appears or
    goes.
    """
    names = all_names(store.keys, f"{store.own}/{BEHIND}", watch=watch)
    return [note async for name in names if (note := parse_note(name)) is not None]


async def ledgers_behind(store: MetadataStore) -> list[LedgerId]:
    """Return the ledgers with such notes, ascending, each once."""
    return list(dict.fromkeys(ledger for ledger, _ in await noted_members(store)))


async def read_behind(store: MetadataStore, ledger: LedgerId, bookie: BookieId) -> IncompleteCopy | None:
    """Return the note as it is now; None if it was taken back."""
    try:
        return IncompleteCopy(ledger, bookie, (await store.keys.get(_key(store, ledger, bookie))).version)
    except NoSuchKey:
        return None


async def forget_deleted(store: MetadataStore) -> int:
    """Take back the notes of ledgers whose deletion is recorded and that have no record any more, and count them.

    Raises MetadataError. Bookies do so when they collect, so that notes do not pile up if no autorecovery runs. It
    reads one key for each bucket of ledger ids with notes, and nothing of ledgers that live.
    """
    done = 0
    for bucket, notes in groupby(await noted_members(store), key=lambda note: bucket_of(note[0])):
        key = deletions_key(store.own, bucket)
        try:
            deleted = decode_deleted(key, (await store.keys.get(key)).value)
        except (NoSuchKey, MalformedRecord):  # the removal of ledgers reports a record that cannot be read
            continue
        for ledger, bookie in notes:
            if ledger in deleted and await is_gone(store, ledger):
                note = await read_behind(store, ledger, bookie)
                done += note is not None and await forget_behind(store, note)
    return done


async def forget_behind(store: MetadataStore, note: IncompleteCopy) -> bool:
    """Take a note back after the member was looked at. Return False if there is a later one."""
    try:
        await store.keys.delete(_key(store, note.ledger, note.bookie), note.version)
    except VersionConflict:
        return False
    except NoSuchKey:
        pass
    return True


def _key(store: MetadataStore, ledger: LedgerId, bookie: BookieId) -> str:
    return f"{store.own}/{BEHIND}/{note_name(ledger, bookie)}"
