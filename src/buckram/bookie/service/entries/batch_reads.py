"""Batch reads: chooses the form of an answer and reads the data for it.

An answer holds plain entries, frames as they are in the log, or only the places of frames in the log's files.
Not here: queueing, limits and result codes (`bookie/service/entries/reads.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.core.entries.packed import FrameParts
from buckram.core.wire.located import Located
from buckram.core.wire.messages import BatchRead, ReplyContext
from buckram.core.wire.v2 import framed_reply, located_reply
from buckram.seams import Stats
from buckram.types import Buffer, EntryId, LedgerId

UNLIMITED = 2**31 - 1
MAX_LOCATED = 8192
"""The most entries whose places one answer lists: finding more would delay other connections."""
Batch: TypeAlias = FrameParts | Located | list[bytes] | StoreError


class BatchCallback(Protocol):
    """Receives what was read for a batch read, in the form that it is answered in."""

    def __call__(self, batch: Batch, /) -> None: ...


class OnServed(Protocol):
    """Callback for bytes that readers of a ledger got."""

    def __call__(self, ledger_id: LedgerId, size: int, /) -> None: ...


class Served:
    """Counts what readers got since the start."""

    def __init__(self, stats: Stats) -> None:
        self.entries = self.bytes = 0
        self._entries = stats.counter("buckram_bookie_read_entries_total", "entries sent to readers")
        self._bytes = stats.counter("buckram_bookie_read_bytes_total", "bytes of those, with their digests")
        self.on_served: OnServed | None = None

    def count(self, entries: int, size: int, ledger_id: LedgerId) -> None:
        self.entries += entries
        self.bytes += size
        self._entries.value += entries
        self._bytes.value += size
        if self.on_served is not None:
            self.on_served(ledger_id, size)


class BatchSource:
    """Reads the entries of batch reads from one store."""

    def __init__(self, store: Store, stats: Stats, served: Served) -> None:
        self._store, self._served = store, served
        self._located = stats.counter("buckram_bookie_located_entries_total", "entries that readers found in its files")

    def read(self, request: BatchRead, first: EntryId, size: int, done: BatchCallback) -> None:
        """Read entries from `first` on, of at most `size` bytes on the wire, but always one."""
        count = request.max_count if request.max_count > 0 else UNLIMITED
        if request.framed and not request.fence and self._knows_key(request):
            if request.located:
                located = self._store.located(request.ledger_id, first, min(count, MAX_LOCATED))
                if located is not None:
                    done(located)
                    return
            self._read_frames(request, first, count, size, done)
        else:
            self._store.read_range(request.ledger_id, first, count, size, done)

    def _knows_key(self, request: BatchRead) -> bool:
        record = self._store.ledger(request.ledger_id)
        return record is not None and not record.tombstone and record.master_key == request.master_key

    def _read_frames(self, request: BatchRead, first: EntryId, count: int, size: int, done: BatchCallback) -> None:
        """Read frames, which needs no step for each entry, or plain entries where frames are unavailable."""
        files = request.from_files

        def on_frames(frames: FrameParts | None) -> None:
            if frames is None:
                self._store.read_range(request.ledger_id, first, count, size, done, from_files=files)
            else:
                done(frames)

        self._store.read_frames(request.ledger_id, first, count, size, on_frames, from_files=files)

    def parts(self, context: ReplyContext, found: FrameParts | Located) -> Sequence[Buffer]:
        """Return the encoded answer, in pieces."""
        if isinstance(found, Located):
            self._located.inc(sum(extent.entries for extent in found.extents))
            return [located_reply(context, found)]
        self._served.count(len(found), found.size, context.ledger_id)
        return framed_reply(context, found)
