"""Learns from the metadata store which ledgers of this bookie were deleted on purpose.

The records are read in buckets of ids, only those in which the bookie holds something, and each only when it changed.
Not here: the record (`core/ledgers/deletions.py`); deleting (`bookie/garbage/collector.py`).
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterable
from itertools import groupby

from buckram.core.ledgers.deletions import NONE_DELETED, bucket_of, decode_deleted, deletions_key
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.seams import MetadataStore
from buckram.types import LedgerId

log = logging.getLogger("buckram.bookie")
_AT_ONCE = 64
_SLICE = 2000


class _Bucket:
    """The deletions of one bucket as last read; `changed` becomes true when the store reports a later change."""

    __slots__ = ("changed", "deleted")

    def __init__(self) -> None:
        self.changed = False
        self.deleted = NONE_DELETED

    def note_change(self) -> None:
        self.changed = True


class RecordedDeletions:
    """The records, as of the newest look. For one task at a time."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: dict[int, _Bucket] = {}
        self.reads = 0
        """Buckets that were read from the store."""

    async def among(self, ledgers: array[LedgerId], *, anew: bool = False) -> array[LedgerId]:
        """Return those of these ledgers, which ascend, whose deletion is recorded. Raises MetadataError.

        `anew`: read the records again, so that the answer is as new as the call.
        """
        found: array[LedgerId] = array("q")
        groups = [(bucket, array("q", some)) for bucket, some in groupby(ledgers, bucket_of)]
        await self._learn([bucket for bucket, _ in groups if anew or self._is_news(bucket)])
        for bucket, some in groups:
            deleted = self._known[bucket].deleted
            if deleted:
                for start in range(0, len(some), _SLICE):
                    found.extend(one for one in some[start : start + _SLICE] if one in deleted)
                    await asyncio.sleep(0)
        return found

    def forget_others(self, ledgers: Iterable[LedgerId]) -> None:
        """Drop what is known of buckets that have none of these ledgers."""
        wanted = {bucket for bucket, _ in groupby(ledgers, bucket_of)}
        self._known = {bucket: held for bucket, held in self._known.items() if bucket in wanted}

    def _is_news(self, bucket: int) -> bool:
        known = self._known.get(bucket)
        return known is None or known.changed

    async def _learn(self, buckets: list[int]) -> None:
        for start in range(0, len(buckets), _AT_ONCE):
            some = buckets[start : start + _AT_ONCE]
            for answer in await asyncio.gather(*map(self._read, some), return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def _read(self, bucket: int) -> None:
        watched = not self._is_news(bucket)  # its watch is still there, and one is enough
        held, key = self._known[bucket] if watched else _Bucket(), deletions_key(self._metadata.own, bucket)
        self.reads += 1
        try:
            value = (await self._metadata.keys.get(key, None if watched else held.note_change)).value
        except NoSuchKey:
            value = b""
        try:
            held.deleted = decode_deleted(key, value)
        except MalformedRecord as error:  # it deletes nothing, and holds up nothing else
            log.error("no ledger is deleted because of this record: %s", error)
            held.deleted = NONE_DELETED
        self._known[bucket] = held
