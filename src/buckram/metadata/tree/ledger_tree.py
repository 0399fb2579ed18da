"""The trees that keep ledger records and give new ids, which differ between key stores.

`FolderTree` is Buckram's own layout for the embedded stores: one folder, and ids taken in blocks from a counter. Ids
that were chosen by hand are kept for ever, so that none of them is given to a ledger again: an id names one ledger,
also after that was deleted, because what bookies and readers remember of it is of that one. Ids that the store gave are
those below its counter; the chosen ones are written down as intervals, with the creation of their ledger. Each key has
the ids of a bucket, so that its value stays bounded.

Not here: Apache's layouts (`metadata/zookeeper/ledger_tree.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Protocol

from buckram.errors import KeyExists, LedgerIdUsed, MalformedRecord, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_grammar import check_op
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.layout import Layout
from buckram.metadata.tree.removals import Removals
from buckram.seams import KeyStore
from buckram.types import MAX_LEDGER_ID, CheckVersion, Create, KeyOp, KeyValue, LedgerId, SetValue

_MAX_ID_BLOCK = 128

_MAX_ID_TRIES = 100

HIGHEST_COUNTED = 1 << 62
"""First id that can only have been chosen, not counted: the counter is not moved beyond it, as no ids would be left."""

ONE_FOLDER = "one folder"

_KNOWN = ("INSTANCEID", "all", "available", "cookies", "underreplication")

Fresh = tuple[CheckVersion, ...]
"""Conditions under which the metadata were not restored since an id was allocated; empty if the store has no
history.
"""


class LedgerTree(Protocol):
    """The ledgers of one cluster, for one session."""

    async def key(self, ledger_id: LedgerId) -> str:
        """Return the key of a ledger's record. Raises InvalidArgument for an id that this tree cannot keep."""
        ...

    async def create(self, ledger_id: LedgerId, record: bytes, *, chosen: bool, fresh: Fresh | None = None) -> int:
        """Make the record; return its version. Raises KeyExists if there is one.

        `chosen`: the id is not from `allocate`; it counts as used with the same step. Raises LedgerIdUsed if it was
        used before, or if its deletion is recorded.

        `fresh`: the id was allocated to the caller, who never tried to make a ledger with it. So none can have been
        deleted, and nothing is looked up, as long as these versions hold: raises VersionConflict or NoSuchKey of their
        key if the metadata were restored since, which may have given the id to another process.
        """
        ...

    def forget_ids(self) -> None:
        """Stop giving ids that were taken before now."""
        ...

    async def remove(self, ledger_id: LedgerId, version: int) -> None:
        """Delete the record, and record in the same step that the ledger was deleted; tidy up what only it needed.

        Raises NoSuchKey, VersionConflict, KeyNotEmpty; MetadataUnavailable: both may have happened, or neither.
        """
        ...

    async def remove_with(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        """Carry out a change that deletes the records of `ledgers`, and record these deletions in the same step."""
        ...

    async def raise_next_id(self, above: LedgerId) -> None:
        """Let `allocate` give no id up to `above`.

        An id so high that none would be left is recorded as used instead.
        """
        ...

    async def allocate(self) -> LedgerId:
        """Return an id that no allocation gave before. Only the ledger's creation decides that it is unused."""
        ...

    async def next_id(self) -> LedgerId:
        """Return the id from which on none was ever allocated."""
        ...

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        """Return ascending ids greater than `after`; empty means the end, a failure raises."""
        ...

    async def records(self, after: LedgerId, limit: int) -> list[tuple[LedgerId, KeyValue]]:
        """Return the same with what their records hold, in few requests. A page may be shorter than `limit`."""
        ...

    async def removed(self, key: str) -> None:
        """Tidy up what only the record at `key` needed, which was deleted."""
        ...

    async def manager_name(self) -> str:
        """Return the name of the layout of ledgers.

        Raises MalformedRecord if the cluster's is unknown to this release.
        """
        ...

    async def strays(self) -> list[str]:
        """Return keys in the cluster's tree that belong to nothing that is known."""
        ...


class FolderTree:
    """A tree with all ledgers in one folder; a counter gives ids in blocks that grow, so that one ledger
    leaves no gap.
    """

    def __init__(self, keys: KeyStore, layout: Layout) -> None:
        self._keys, self._layout = keys, layout
        self._removals = Removals(keys, layout.own)
        self._ids: list[LedgerId] = []
        self._id_block = 1
        self._id_lock = asyncio.Lock()

    async def key(self, ledger_id: LedgerId) -> str:
        return self._layout.ledger(ledger_id)

    async def create(self, ledger_id: LedgerId, record: bytes, *, chosen: bool, fresh: Fresh | None = None) -> int:
        key = self._layout.ledger(ledger_id)
        if not chosen and fresh is not None:
            if not fresh:
                return await self._keys.create(key, record)
            await self._keys.multi([Create(key, record), *fresh])
            return 0
        check_op(Create(key, record))
        for _ in range(_MAX_ID_TRIES):
            try:
                await self._keys.multi([Create(key, record), *await self._conditions(ledger_id, chosen)])
            except VersionConflict:
                continue
            except KeyExists as error:
                if error.key == key:
                    raise
                continue
            return 0
        raise MetadataUnavailable(f"{key}: {_MAX_ID_TRIES} other processes chose or deleted ids first; try again")

    async def _conditions(self, ledger_id: LedgerId, chosen: bool) -> list[KeyOp]:
        """Return the operations that a creation needs so that an id is one ledger's for ever.

        Raises LedgerIdUsed.
        """
        ops: list[KeyOp] = [await self._removals.never_deleted(ledger_id)]
        if chosen:
            counter = await self._counter()
            if ledger_id < _number(self._layout.next_ledger_id, counter.value):
                raise LedgerIdUsed(ledger_id)
            # Fails if the counter moves meanwhile: it might give out the id, without looking at chosen ids again.
            ops.append(CheckVersion(self._layout.next_ledger_id, counter.version))
            ops.append(await self._marking(ledger_id))
        return ops

    async def remove(self, ledger_id: LedgerId, version: int) -> None:
        await self._removals.remove(ledger_id, self._layout.ledger(ledger_id), version)

    async def remove_with(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        await self._removals.with_record(ops, ledgers)

    async def _counter(self) -> KeyValue:
        key = self._layout.next_ledger_id
        try:
            return await self._keys.get(key)
        except NoSuchKey:
            with contextlib.suppress(KeyExists):
                await self._keys.create(key, b"0")
            return await self._keys.get(key)

    async def _marking(self, ledger_id: LedgerId) -> Create | SetValue:
        """Return the operation that records the id as chosen. Raises LedgerIdUsed if it is recorded already."""
        key = used_key(self._layout.own, ledger_id)
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return Create(key, with_used([], ledger_id))
        intervals = parse_used(key, found.value)
        if is_used(intervals, ledger_id):
            raise LedgerIdUsed(ledger_id)
        return SetValue(key, with_used(intervals, ledger_id), found.version)

    async def _unused(self, ids: range) -> list[LedgerId]:
        """Return the ids that were not chosen by hand.

        To be called after the counter was moved beyond them, so that none of them can be chosen any more.
        """
        left: list[LedgerId] = []
        for start in dict.fromkeys(one // BUCKET for one in ids):
            key = used_key(self._layout.own, start * BUCKET)
            mine = [one for one in ids if one // BUCKET == start]
            try:
                used = parse_used(key, (await self._keys.get(key)).value)
            except NoSuchKey:
                used = []
            left += [one for one in mine if not is_used(used, one)] if used else mine
        return left

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        name = self._layout.ledger_name(after) if after >= 0 else ""
        while True:
            names = await self._keys.children(self._layout.ledgers, after=name, limit=limit)
            found = [ledger_id for ledger_id in map(self._layout.ledger_id, names) if ledger_id is not None]
            if found or not names:
                return found
            name = names[-1]  # a page of foreign names is not the end

    async def records(self, after: LedgerId, limit: int) -> list[tuple[LedgerId, KeyValue]]:
        name = self._layout.ledger_name(after) if after >= 0 else ""
        while True:
            page = await self._keys.children_with_values(self._layout.ledgers, after=name, limit=limit)
            found = [(ledger, value) for name, value in page if (ledger := self._layout.ledger_id(name)) is not None]
            if found or not page:
                return found
            name = page[-1][0]

    async def removed(self, key: str) -> None:
        """Do nothing: the folder stays."""

    async def manager_name(self) -> str:
        return ONE_FOLDER

    async def strays(self) -> list[str]:
        root, ledgers = self._layout.root, self._layout.ledgers
        found = [f"{root}/{name}" for name in await self._keys.children(root) if name not in _KNOWN]
        async for name in all_names(self._keys, ledgers):
            if self._layout.ledger_id(name) is None:
                found.append(f"{ledgers}/{name}")
        return found

    async def allocate(self) -> LedgerId:
        async with self._id_lock:
            while not self._ids:
                self._ids = await self._unused(await self._take_ids(self._id_block))
                self._ids.reverse()
                self._id_block = min(2 * self._id_block, _MAX_ID_BLOCK)
            return self._ids.pop()

    def forget_ids(self) -> None:
        self._ids = []

    async def raise_next_id(self, above: LedgerId) -> None:
        key = self._layout.next_ledger_id
        for _ in range(_MAX_ID_TRIES):
            try:
                if above >= HIGHEST_COUNTED:
                    mark = await self._marking(above)
                    await self._keys.multi([mark])
                else:
                    counter = await self._counter()
                    if _number(key, counter.value) <= above:
                        await self._keys.set(key, b"%d" % (above + 1), counter.version)
            except LedgerIdUsed:
                pass
            except (VersionConflict, KeyExists):
                continue
            async with self._id_lock:
                self._ids = [one for one in self._ids if one > above]
            return
        raise MetadataUnavailable(f"{key}: {_MAX_ID_TRIES} other processes took ids first; try again")

    async def next_id(self) -> LedgerId:
        key = self._layout.next_ledger_id
        try:
            return _number(key, (await self._keys.get(key)).value)
        except NoSuchKey:
            return 0

    async def _take_ids(self, count: int) -> range:
        """Move the counter on by `count`. Unused ids of a process that ends are never given again."""
        key = self._layout.next_ledger_id
        for _ in range(_MAX_ID_TRIES):
            try:
                counter = await self._keys.get(key)
                first = _number(key, counter.value)
                if first + count > MAX_LEDGER_ID:
                    raise MalformedRecord(f"{key}: {first} leaves no ids below 2^63-1")
                await self._keys.set(key, b"%d" % (first + count), counter.version)
            except NoSuchKey:
                first = 0
                try:
                    await self._keys.create(key, b"%d" % count)
                except KeyExists:
                    continue
            except VersionConflict:
                continue
            return range(first, first + count)
        raise MetadataUnavailable(f"{key}: {_MAX_ID_TRIES} other processes took ids first; try again")


def _number(key: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise MalformedRecord(f"{key}: {value[:40]!r} is not a number")
    return int(value)


# -- ids that were chosen by hand -----------------------------------------------------------------------------

BUCKET = 1 << 14
"""Number of ids of one key: at worst, every other one of them is an interval of its own, in 60 KB."""

_INTERVALS = re.compile(rb"(?:\d{1,5}(?:-\d{1,5})?(?: \d{1,5}(?:-\d{1,5})?)*)?")

Intervals = list[tuple[int, int]]
"""Ascending, disjoint, not touching; relative to the first id of the bucket."""


def used_key(own: str, ledger_id: LedgerId) -> str:
    """Return the key below Buckram's own ones that records whether this id was chosen."""
    return f"{own}/used-ids/{ledger_id // BUCKET:015d}"


def parse_used(key: str, value: bytes) -> Intervals:
    if not _INTERVALS.fullmatch(value):
        raise MalformedRecord(f"{key}: {value[:40]!r} is no list of ids; restore it from a backup")
    found: Intervals = []
    for part in value.split():
        first, _, last = part.partition(b"-")
        found.append((int(first), int(last or first)))
    return found


def is_used(intervals: Intervals, ledger_id: LedgerId) -> bool:
    place = ledger_id % BUCKET
    return any(first <= place <= last for first, last in intervals)


def with_used(intervals: Intervals, ledger_id: LedgerId) -> bytes:
    """Return the value with one more id."""
    place = ledger_id % BUCKET
    merged: Intervals = []
    for first, last in sorted([*intervals, (place, place)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return b" ".join(b"%d" % first if first == last else b"%d-%d" % (first, last) for first, last in merged)
