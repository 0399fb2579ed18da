"""Notes that a stream's metadata name a ledger, or files, that are not its own: `health/foreign/<ledger>@<uid>`.

Servers with full access leave them where they refuse to act, so that `buckram doctor` and other views of health show
it. Not here: who finds out (`streams/shared/ownership.py`), and until when it is shown
(`core/health/cluster_states.py`).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_operations import remove
from buckram.metadata.tree.layout import HEALTH
from buckram.seams import MetadataStore
from buckram.types import LedgerId

FOLDER = f"{HEALTH}/foreign"
"""Folder of the notes, below ClusterLayout.own. Only administrators write there."""
MOST_NOTES = 1000
"""Maximum number of notes that are kept; the oldest are removed."""
AGAIN_US = 3600 * 1_000_000
"""Time after which a repeated finding is noted again, microseconds."""


@dataclass(frozen=True, slots=True)
class ForeignNote:
    """Foreign ledger or files that a stream's metadata name. `time_us`: when a server last found it."""

    stream: str
    uid: str
    ledger: LedgerId
    time_us: int
    location: str = ""
    """Directory of foreign files of history; empty for a ledger."""


async def leave_foreign_note(store: MetadataStore, note: ForeignNote) -> bool:
    """Leave the note. Return False if it was noted within the last hour.

    Raises MetadataError, AccessRefused.
    """
    key = f"{store.own}/{FOLDER}/{note.ledger}@{note.uid}"
    value = json.dumps({"stream": note.stream, "location": note.location, "time": note.time_us}).encode()
    try:
        kept = await store.keys.get(key)
    except NoSuchKey:
        await _make_room(store)
        with suppress(KeyExists):
            await store.keys.create(key, value)
            return True
        return False
    before = _parse(key.rpartition("/")[2], kept.value)
    if before is not None and abs(note.time_us - before.time_us) < AGAIN_US:
        return False
    with suppress(VersionConflict, NoSuchKey):
        await store.keys.set(key, value, kept.version)
        return True
    return False


async def foreign_notes(store: MetadataStore) -> list[ForeignNote]:
    """Return all notes, the newest first. Raises MetadataError."""
    rows = await store.keys.children_with_values(f"{store.own}/{FOLDER}", after="", limit=2 * MOST_NOTES)
    notes = [note for name, kept in rows if (note := _parse(name, kept.value)) is not None]
    return sorted(notes, key=lambda note: note.time_us, reverse=True)


async def forget_foreign_notes(store: MetadataStore, uid: str) -> None:
    """Remove the notes of a stream after a look at the whole stream found nothing foreign.

    Raises MetadataError, AccessRefused.
    """
    for note in await foreign_notes(store):
        if note.uid == uid:
            await remove(store.keys, f"{store.own}/{FOLDER}/{note.ledger}@{uid}")


async def _make_room(store: MetadataStore) -> None:
    for old in (await foreign_notes(store))[MOST_NOTES - 1 :]:
        await remove(store.keys, f"{store.own}/{FOLDER}/{old.ledger}@{old.uid}")


def _parse(name: str, value: bytes) -> ForeignNote | None:
    """Parse a note; return None if it is malformed."""
    ledger, at, uid = name.partition("@")
    try:
        said = json.loads(value)
        return (
            ForeignNote(str(said["stream"]), uid, int(ledger), int(said["time"]), str(said["location"])) if at else None
        )
    except (ValueError, KeyError, TypeError):
        return None
