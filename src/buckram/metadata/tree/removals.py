"""Removes ledgers' records from a key store, and records in the same step that they were deleted.

Removals that wait together share a step, as far as their ids lie in one bucket. Not here: the record's form
(`core/ledgers/deletions.py`); where ledgers' records are (`metadata/tree/ledger_tree.py` and its neighbours).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from buckram.core.backoff import STORE_CONFLICT, Delays
from buckram.core.ledgers.deletions import Deleted, bucket_of, decode_deleted, deletions_folder, deletions_key
from buckram.errors import (
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    LedgerIdUsed,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    ValueTooLarge,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import PromptKeys, check_multi, check_op, prompt_get
from buckram.metadata.tree.key_operations import all_children
from buckram.seams import KeyStore, MetadataStore
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerId, SetValue

AT_ONCE = 32
"""Maximum records of one step: etcd takes 128 conditions, and a key that is deleted has up to three."""
_TRIES = 60


async def all_recorded(store: MetadataStore) -> dict[int, Deleted]:
    """Read every deletion that is recorded, by bucket. A failure raises, and never looks like no deletions."""
    return await buckets_below(store, deletions_folder(store.own))


async def is_recorded(store: MetadataStore, ledger: LedgerId) -> bool:
    """Return whether the deletion of this ledger is recorded. Raises MetadataError."""
    key = deletions_key(store.own, bucket_of(ledger))
    try:
        return ledger in decode_deleted(key, (await store.keys.get(key)).value)
    except NoSuchKey:
        return False


async def is_gone(store: MetadataStore, ledger: LedgerId) -> bool:
    """Return whether a ledger has no record any more; False if it cannot be read. Raises MetadataError."""
    try:
        await store.read_ledger(ledger)
    except NoSuchLedger:
        return True
    except MalformedRecord:
        pass
    return False


async def buckets_below(store: MetadataStore, folder: str) -> dict[int, Deleted]:
    """Read the sets of deleted ids in this folder, by bucket."""
    found: dict[int, Deleted] = {}
    async for name, held in all_children(store.keys, folder):
        if not (name.isascii() and name.isdigit()):
            raise MalformedRecord(f"{folder}/{name}: no bucket of deleted ledgers; remove it")
        found[int(name)] = decode_deleted(f"{folder}/{name}", held.value)
    return found


def removal_steps(ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> list[tuple[list[KeyOp], list[LedgerId]]]:
    """Divide deletions of these ledgers' records into steps that every store takes: AT_ONCE of one bucket at most.

    None if the operations are not one such deletion for each ledger: then they belong together.
    """
    if len({op.key for op in ops if isinstance(op, Delete)}) != len(ops) or len(ops) != len(ledgers):
        return []
    buckets: dict[int, list[tuple[KeyOp, LedgerId]]] = {}
    for pair in zip(ops, ledgers, strict=True):
        buckets.setdefault(bucket_of(pair[1]), []).append(pair)
    parts = [some[at : at + AT_ONCE] for some in buckets.values() for at in range(0, len(some), AT_ONCE)]
    return [([op for op, _ in part], [ledger for _, ledger in part]) for part in parts]


@dataclass(slots=True, eq=False)
class _Removal:
    ledger_id: LedgerId
    op: Delete
    done: asyncio.Future[None]

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # mark it as retrieved: a cancelled caller does not await it


class Removals:
    """The removals of one session. `own`: the key below which Buckram's own keys are."""

    def __init__(self, keys: KeyStore, own: str) -> None:
        self._keys, self._own = keys, own
        self._prompt = keys if isinstance(keys, PromptKeys) else None
        self._waiting: list[_Removal] = []
        self._turn = asyncio.Lock()

    async def remove(self, ledger_id: LedgerId, key: str, version: int) -> None:
        """Delete the record at `key` if it has this version, and record that its ledger was deleted, in one step.

        Raises NoSuchKey, VersionConflict, KeyNotEmpty of that key: nothing was recorded. MetadataUnavailable: both were
        done, or neither.
        """
        mine = _Removal(ledger_id, Delete(key, version), asyncio.get_running_loop().create_future())
        check_op(mine.op)
        self._waiting.append(mine)
        try:
            async with self._turn:
                while mine in self._waiting:
                    # Cancelling one caller must not affect the others of this step.
                    await asyncio.shield(asyncio.ensure_future(self._step(self._next())))
        finally:
            if mine in self._waiting:  # cancelled while it waited
                self._waiting.remove(mine)
        await mine.done

    def _next(self) -> list[_Removal]:
        """Take the first removal that waits, with those of its bucket."""
        bucket = bucket_of(self._waiting[0].ledger_id)
        some: dict[str, _Removal] = {}
        for one in self._waiting:
            if bucket_of(one.ledger_id) == bucket and len(some) < AT_ONCE:
                some.setdefault(one.op.key, one)  # a step that deletes a key twice deletes nothing
        self._waiting = [one for one in self._waiting if some.get(one.op.key) is not one]
        return list(some.values())

    async def _step(self, some: list[_Removal]) -> None:
        """Carry the removals out; whatever happens, each of them gets its result."""
        error: Exception = MetadataUnavailable("the process that removed them was interrupted; look whether they exist")
        try:
            await self._carry_out(some)
        except Exception as failed:
            error = failed
        finally:
            for one in some:
                one.fail(error)

    async def _carry_out(self, some: list[_Removal]) -> None:
        delays = Delays(STORE_CONFLICT)
        for _ in range(_TRIES):
            left = [one for one in some if not one.done.done()]
            if not left:
                return
            mark = await self._mark(one.ledger_id for one in left)
            try:
                await self._keys.multi([*(one.op for one in left), *mark])
            except (VersionConflict, NoSuchKey, KeyNotEmpty, KeyExists) as error:
                refused = [one for one in left if one.op.key == error.key]
                for one in refused:
                    one.fail(error)
                if not refused:  # somebody else recorded a deletion in this bucket
                    await asyncio.sleep(delays.take())
                continue
            for one in left:
                if not one.done.done():
                    one.done.set_result(None)
        raise MetadataUnavailable(f"{self._own}/deleted: others changed it {_TRIES} times meanwhile; try again")

    async def _mark(self, ledgers: Iterable[LedgerId]) -> list[KeyOp]:
        """Return the operations that record these ids, which are of one bucket, as deleted."""
        ids = list(ledgers)
        key = deletions_key(self._own, bucket_of(ids[0]))
        try:
            found = await prompt_get(self._keys, self._prompt, key)
        except NoSuchKey:
            return [Create(key, decode_deleted(key, b"").and_these(ids).encode())]
        before = decode_deleted(key, found.value)
        after = before.and_these(ids)
        if after == before:
            return [CheckVersion(key, found.version)]
        return [SetValue(key, after.encode(), found.version)]

    async def with_record(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        """Carry out a change that deletes the records of these ledgers, in the order of their deletions, and record the
        deletions with it.

        It is one step if the store takes it as one. If not, a change of nothing but such deletions is done in several
        steps that are whole each: after an error, those before it were done. Any other is refused, and nothing was
        done.
        """
        check_multi(ops)
        try:
            await self._with_marks(ops, ledgers)
        except (InvalidArgument, ValueTooLarge):
            steps = removal_steps(ops, ledgers)
            if len(steps) < 2:
                raise
            for some_ops, some in steps:
                await self._with_marks(some_ops, some)

    async def _with_marks(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        buckets: dict[int, list[LedgerId]] = {}
        for one in ledgers:
            buckets.setdefault(bucket_of(one), []).append(one)
        own, delays = {one.key for one in ops}, Delays(STORE_CONFLICT)
        for _ in range(_TRIES):
            marks = [mark for some in buckets.values() for mark in await self._mark(some)]
            try:
                return await self._keys.multi([*ops, *marks])
            except (VersionConflict, NoSuchKey, KeyExists) as error:
                if error.key in own:
                    raise
                await asyncio.sleep(delays.take())
        raise MetadataUnavailable(f"{self._own}/deleted: others changed it {_TRIES} times meanwhile; try again")

    async def never_deleted(self, ledger_id: LedgerId) -> Create | CheckVersion:
        """Return the operation that a creation does in the same step, so that it fails if a deletion of its id is
        recorded meanwhile.

        Raises LedgerIdUsed if one was recorded before.
        """
        key = deletions_key(self._own, bucket_of(ledger_id))
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return Create(key, b"")
        if ledger_id in decode_deleted(key, found.value):
            raise LedgerIdUsed(ledger_id)
        return CheckVersion(key, found.version)
