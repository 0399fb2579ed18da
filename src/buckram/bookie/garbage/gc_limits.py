"""Decides what garbage collection may delete, because a listing is only as good as the metadata store behind it.

Ledgers whose ids the store never gave out are kept. Large deletions, and all deletions after a restore of metadata,
wait until an operator confirms them. Ledgers that were deleted on purpose are known by the store's records, which are
read in buckets of ids, only those in which the bookie holds something, and each only when it changed. Not here: the
record (`core/ledgers/deletions.py`); finding the ledgers that are absent from metadata, and deleting
(`bookie/garbage/collector.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import Iterable, Mapping
from itertools import groupby

from buckram.bookie.trust.metadata_note import Note
from buckram.bookie.trust.witness import Witness
from buckram.core.cluster.store_history import parse_word
from buckram.core.health.state_table import TABLE
from buckram.core.ledgers.deletions import NONE_DELETED, bucket_of, decode_deleted, deletions_key
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.metadata.tree.layout import BRAKES, COLLECT
from buckram.metadata.tree.ledger_tree import Intervals, is_used, parse_used, used_key
from buckram.seams import MetadataStore, Stats
from buckram.types import BookieId, LedgerId

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


AT_LEAST, SHARE = 1000, 0.2
"""Number of ledgers, or share of a bookie's ledgers if that is more, that may vanish between two listings without
confirmation."""


class DeletionLimits:
    """Decides once in each round of collection which ledgers may be deleted."""

    def __init__(self, metadata: MetadataStore, bookie_id: BookieId, witness: Witness, stats: Stats) -> None:
        self._metadata, self._witness = metadata, witness
        self._note = Note(metadata, f"{metadata.own}/{BRAKES}/{bookie_id}")
        self._word = f"{metadata.own}/{COLLECT}"
        self._gauge = stats.gauge(
            "buckram_bookie_collection_waiting_ledgers", "ledgers that wait for `buckram cluster collect --yes`"
        )
        self._above_gauge = stats.gauge(
            "buckram_bookie_collection_unknown_ledgers", "ledgers kept because the metadata store never gave their ids"
        )
        self.waiting = 0
        self.above = 0
        self.unknown: frozenset[LedgerId] = frozenset()
        """The `above`: ledgers of the last `released` whose ids the store never gave."""

    async def trusted(self) -> bool:
        """Return whether the listing of the store can be relied on: it did not go back. Raises MetadataError."""
        return await self._witness.confirm()

    def unambiguous(self, ledgers: array[int]) -> array[int]:
        """Return those of which a recorded deletion can only mean the ledger that is here.

        Ids may have been given twice up to the highest one that was here when a restored history was met: what is
        recorded of these may be another ledger's deletion, so they go as what is absent without a record does.
        """
        memory = self._witness.memory
        if memory.history.restore != self._witness.history.restore:
            return array("q")  # it is not known yet up to where
        return array("q", [one for one in ledgers if one > memory.settled])

    async def released(self, dead: array[int], own: int, vanished: Mapping[LedgerId, int]) -> tuple[bool, array[int]]:
        """Return whether this history was reviewed, and which of the `dead` ledgers may be deleted.

        `dead` are the ledgers that two listings lacked, `own` is the number of ledgers of this bookie, and `vanished`
        tells with how many others each of them vanished between two listings: a store that lost a part of itself lost
        many at once, and how many wait says nothing. Raises MetadataError.
        """
        known = await self._given(dead)
        self.above = len(dead) - len(known)
        self.unknown = frozenset(dead) - frozenset(known) if self.above else frozenset()
        self._above_gauge.set(self.above)
        word = await self._word_given()
        if word and word != self._witness.memory.collected:
            # Before deleting, because a confirmation counts once, even if this process ends now.
            await self._witness.remember_collection(word)
            log.warning("collection goes on, as an operator asked: %d ledgers may be deleted", len(dead))
            self.above, self.unknown = 0, frozenset()
            self._above_gauge.set(0)
            await self._wait_for_word(0)
            return True, dead
        reviewed = self._witness.reviewed
        most = max(AT_LEAST, int(SHARE * own))
        allowed = array("q", [one for one in known if reviewed and vanished[one] <= most])
        await self._wait_for_word(len(known) - len(allowed))
        return reviewed, allowed

    async def _given(self, dead: array[int]) -> array[int]:
        """Return those with ids that the store gave, or that clients chose and the store recorded."""
        below = await self._metadata.next_ledger_id()
        known: array[int] = array("q")
        buckets: dict[str, Intervals] = {}
        for one in dead:
            if one >= below:
                key = used_key(self._metadata.own, one)
                if key not in buckets:
                    buckets[key] = await self._chosen(key)
                if not is_used(buckets[key], one):
                    continue
            known.append(one)
        return known

    async def _chosen(self, key: str) -> Intervals:
        try:
            return parse_used(key, (await self._metadata.keys.get(key)).value)
        except NoSuchKey:
            return []

    async def _word_given(self) -> str:
        try:
            return parse_word(self._word, (await self._metadata.keys.get(self._word)).value)
        except NoSuchKey:
            return ""

    async def _wait_for_word(self, ledgers: int) -> None:
        if ledgers and ledgers != self.waiting:
            log.warning(
                "%d ledgers of this bookie are absent from the metadata store, more than are deleted without an "
                "operator's consent, so they wait: see %s for what they may be",
                ledgers,
                TABLE["collection-waits"].runbook,
            )
        self.waiting = ledgers
        self._gauge.set(ledgers)
        if ledgers or self.above:
            await self._note.write(json.dumps({"waiting": ledgers, "unknown": self.above}).encode())
        else:
            await self._note.remove()
