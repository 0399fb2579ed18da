"""Backup of a cluster's metadata to a file, and restore: what is copied, in which order, and how a file is known to be
whole.

A backup of a store that is in use is one moment of an embedded store or of etcd. ZooKeeper gives no such moment: who
refers to ledgers is read before the ledgers, and the counter of ids last, so nothing refers to what is not in the file;
and holders of shared ledgers are made consistent with the streams in the file (`metadata/maintain/backup_holders.py`).
Whether a restored store may be used is recorded in it (core/cluster/store_history): bookies and clients wait for
`accept`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from buckram.core.cluster.store_history import encode_history, parse_history, why_not_accepted
from buckram.errors import (
    ClusterNotInitialised,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MalformedRecord,
    MetadataError,
    NoSuchKey,
    VersionConflict,
    WrongCluster,
)
from buckram.metadata.maintain.backup_holders import wrong_holders
from buckram.metadata.tree.layout import (
    ACCEPTED_TIME,
    BRAKES,
    COLLECT,
    COLLECTED,
    SUSPECTS,
    TENANTS,
    TIMES,
    WISHES,
    WITNESSES,
)
from buckram.metadata.tree.memory import MemoryKeys
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.runtime.disk.syncing import sync_file
from buckram.runtime.disk.whole_file import whole_file
from buckram.types import CheckVersion, Create, Delete, History, KeyOp, LedgerId, SetValue

FORMAT, VERSION = "buckram-backup", 1
OnCount = Callable[[int], None]
"""A function that is called with a number of keys."""
_PAGE = 1000
_BATCH_OPS, _BATCH_BYTES = 40, 256 * 1024
"""etcd takes 128 conditions, and a key that is made has up to three."""
_TRIES = 20


@runtime_checkable
class KeysOfOneMoment(Protocol):
    """A key store that can be copied as of one moment: SQLite's and etcd's, and the simulator's."""

    async def lasting(self) -> list[tuple[str, int, bytes]]:
        """Return every key that is bound to no session, with version and value, as of one moment."""
        ...


class StoredKey(NamedTuple):
    key: str
    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Backup:
    """Content of a backup file. `next_id`: no id from there on was allocated when it was made."""

    instance_id: str
    history: History
    root: str
    own: str
    next_id: LedgerId
    keys: Sequence[StoredKey]
    ledgers: int = 0


# Copying


async def copy_of(store: TreeStore) -> Backup:
    """Return all that a cluster keeps, except what is bound to sessions and what bookies report of themselves."""
    instance_id = await store.instance_id()
    kept = [one for one in await everything(store) if not _is_passing(store, one.key)]
    if isinstance(store, ZooKeeperStore):
        kept = _with_holders(store, kept)
    found = {one.key: one.value for one in kept}
    key = store.layout.history
    history = parse_history(key, found[key]) if key in found else History()
    next_id = await store.next_ledger_id()
    ledgers = sum(store.layout.ledger_of(one.key) is not None for one in kept)
    return Backup(instance_id, history, store.layout.root, store.own, next_id, kept, ledgers)


def _with_holders(store: TreeStore, kept: list[StoredKey]) -> list[StoredKey]:
    """Return keys that were read one by one, corrected so that each shared ledger is held by exactly the streams that
    list it there.
    """
    ledgers = {ledger: one.key for one in kept if (ledger := store.layout.ledger_of(one.key)) is not None}
    lacking, unknown = wrong_holders({one.key: one.value for one in kept}, store.own, ledgers)
    return [one for one in kept if one.key not in unknown] + [
        StoredKey(key, 0, value) for key, value in lacking.items()
    ]


_PASSING = (WITNESSES, SUSPECTS, BRAKES, COLLECT, WISHES, COLLECTED, TIMES, ACCEPTED_TIME)


def _is_passing(store: TreeStore, key: str) -> bool:
    """Return whether a key describes the present: registrations, notes, witnesses and usage.

    A copy of those would be wrong after a restore.
    """
    parts = [f"{store.own}/{name}" for name in _PASSING]
    parts += [f"{store.own}/{TENANTS}/{name}" for name in ("usage", "counts")]
    folders = [store.layout.registrations(readonly=side) for side in (False, True)]
    return any(key == part or key.startswith(f"{part}/") for part in parts) or (
        key not in folders and any(key.startswith(f"{folder}/") for folder in folders)
    )


async def everything(store: TreeStore) -> list[StoredKey]:
    """Return all keys that are bound to no session."""
    keys = store.keys
    if isinstance(keys, KeysOfOneMoment):
        return [StoredKey(*row) for row in await keys.lasting()]
    if isinstance(keys, MemoryKeys):
        return [StoredKey(key, found.version, found.value) for key, found in keys.tree.lasting().items()]
    if not isinstance(store, ZooKeeperStore):
        raise InvalidArgument(f"{store.uri}: a backup is of one moment, which only the store itself has: give its URI")
    await keys.sync()
    found = [one async for one in _below(store, store.own)]  # streams refer to ledgers
    found += [one async for one in _below(store, store.layout.root)]
    return found


async def _below(store: TreeStore, key: str) -> AsyncIterator[StoredKey]:
    assert isinstance(store, ZooKeeperStore)
    try:
        value, stat = await store.session.get(key)
        names = await store.session.children(key)
    except NoSuchKey:
        return  # deleted since it was listed
    if stat.owner:
        return
    yield StoredKey(key, stat.version, value)
    for name in names:
        async for one in _below(store, f"{key}/{name}"):
            yield one


# The file


def write_file(path: Path, backup: Backup) -> None:
    """Write the backup, so that there is a whole file or none. Blocking."""
    digest = hashlib.sha256()
    with whole_file(path) as file:
        for line in _lines(backup):
            digest.update(line)
            file.write(line)
        file.write(json.dumps({"sha256": digest.hexdigest()}).encode() + b"\n")
        file.flush()
        sync_file(file.fileno())
    read_file(path)  # verify: a file that cannot be read again is no backup


def _lines(backup: Backup) -> Iterable[bytes]:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "instance_id": backup.instance_id,
        "epoch": backup.history.epoch,
        "restore": backup.history.restore,
        "root": backup.root,
        "own": backup.own,
        "next_id": backup.next_id,
        "keys": len(backup.keys),
        "ledgers": backup.ledgers,
    }
    yield json.dumps(head).encode() + b"\n"
    for one in backup.keys:
        value = base64.b64encode(one.value).decode()
        yield json.dumps({"key": one.key, "version": one.version, "value": value}).encode() + b"\n"


def read_file(path: Path) -> Backup:
    """Read a backup file. Raises MalformedRecord if it is no backup, or not a whole one. Blocking."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}; name a file that `buckram cluster backup` made") from None
    try:
        return _parse(lines)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise MalformedRecord(f"{path}: not a complete backup of Buckram ({error}); use another one") from None


def _parse(lines: list[bytes]) -> Backup:
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if json.loads(lines[-1])["sha256"] != digest:
        raise ValueError("its checksum does not match what it holds")
    head: dict[str, Any] = json.loads(lines[0])
    if head["format"] != FORMAT or head["version"] != VERSION:
        raise ValueError(f"format {head['format']!r} {head['version']!r}, known is {FORMAT!r} {VERSION}")
    kept = [_kept(json.loads(line)) for line in lines[1:-1]]
    if len(kept) != head["keys"]:
        raise ValueError(f"{len(kept)} keys, {head['keys']} were written")
    history = History(int(head["epoch"]), str(head["restore"]))
    return Backup(
        head["instance_id"], history, head["root"], head["own"], int(head["next_id"]), kept, int(head["ledgers"])
    )


def _kept(fields: dict[str, Any]) -> StoredKey:
    return StoredKey(str(fields["key"]), int(fields["version"]), base64.b64decode(fields["value"], validate=True))


# Restoring


async def restore(store: TreeStore, backup: Backup) -> None:
    """Make the store hold what the backup holds. It may be empty, or the same cluster's; raises WrongCluster otherwise.

    The first change marks it as not usable, so an interruption is noticed, and the same call finishes the work. All
    others are made on condition of that mark: a process that hung meanwhile changes nothing more when another one has
    restored or accepted the store. Raises MetadataError then.
    """
    if (backup.root, backup.own) != (store.layout.root, store.own):
        raise WrongCluster(
            f"{store.uri} keeps a cluster at {store.layout.root}, the backup is of one at {backup.root}: name a URI "
            "with the same root; nothing was changed"
        )
    await store.keys.prepare()
    there = await _instance(store)
    if there and there != backup.instance_id:
        raise WrongCluster(
            f"{store.uri} is cluster {there}, the backup is of {backup.instance_id}: restore it to an empty place or "
            "to that cluster's; nothing was changed"
        )
    mine = CheckVersion(store.layout.history, await _not_accepted(store, backup.history))
    wanted = {one.key: one.value for one in backup.keys if one.key != store.layout.history}
    await _remove_others(store, wanted, mine)
    await write(store, wanted, when=(mine,))
    if backup.next_id:
        await store.raise_next_id(backup.next_id - 1)
    await _verify(store, wanted)


async def _instance(store: TreeStore) -> str:
    try:
        return await store.instance_id()
    except ClusterNotInitialised:
        return ""


async def _not_accepted(store: TreeStore, kept: History) -> int:
    """Mark the store as not usable. Return the version of the mark."""
    now, version = await read_history(store)
    if now.moved and not now.accepted:
        raise WrongCluster(f"nothing is restored to {store.uri}: {why_not_accepted(now)}")
    highest = now if now.epoch > kept.epoch else kept
    return await replace_history(store, replace(highest, accepted=False, moved=""), version)


async def read_history(store: TreeStore) -> tuple[History, int]:
    """Return the history, and the version of its key; -1 if there is none."""
    key = store.layout.history
    await store.keys.sync()
    try:
        found = await store.keys.get(key)
    except NoSuchKey:
        return History(), -1
    return parse_history(key, found.value), found.version


async def replace_history(store: TreeStore, history: History, version: int) -> int:
    """Write the history in the place of the one whose key has this version (-1: there is none), and return the new
    version. Raises MetadataError if another process has changed it.
    """
    key, value = store.layout.history, encode_history(history)
    try:
        return await (store.keys.create(key, value) if version < 0 else store.keys.set(key, value, version))
    except (KeyExists, NoSuchKey, VersionConflict):
        found = await store.keys.get(key)
    if found.value != value:  # else the answer to an earlier attempt at the same request was lost
        raise MetadataError(
            f"{key}: another process restores, accepts or moves these metadata at the same time; see what it did with "
            "`buckram cluster check` before you try again"
        )
    return found.version


async def set_history(store: TreeStore, history: History) -> int:
    """Write the history, whatever it was before. Return the version of its key.

    Commands use `replace_history`: one that hung may go on when another has done its work.
    """
    key = store.layout.history
    for _ in range(_TRIES):
        try:
            found = await store.keys.get(key)
            return await store.keys.set(key, encode_history(history), found.version)
        except NoSuchKey:
            try:
                return await store.keys.create(key, encode_history(history))
            except KeyExists:
                continue
        except VersionConflict:
            continue
    raise MetadataError(f"{key}: changed {_TRIES} times while it was being written; find out which program changes it")


async def _remove_others(store: TreeStore, wanted: dict[str, bytes], mine: CheckVersion) -> None:
    """Remove the keys that the backup does not hold, the deepest first, on condition of the mark."""
    now = [one for one in await everything(store) if not _is_passing(store, one.key)]
    folders = {key[:at] for key in wanted for at in range(len(key)) if key[at] == "/"}
    keep = wanted.keys() | folders | {store.layout.history, store.own}
    for one in sorted(now, key=lambda each: -each.key.count("/")):
        if one.key in keep:
            continue
        try:
            await store.keys.multi([mine, Delete(one.key, one.version)])
        except (NoSuchKey, KeyNotEmpty):
            continue  # gone by itself, or it holds what is bound to a session


async def write(
    store: TreeStore,
    wanted: dict[str, bytes],
    progress: OnCount = lambda count: None,
    *,
    when: Sequence[CheckVersion] = (),
) -> None:
    """Make these keys hold these values; `progress` is called with how many more do. Nothing is written after one of
    `when` has changed: VersionConflict.
    """
    now = {one.key: one for one in await everything(store)}
    ops: list[KeyOp] = []
    size = 0
    for key in sorted(wanted, key=lambda each: (each.count("/"), each)):
        found, value = now.get(key), wanted[key]
        if found is not None and found.value == value:
            progress(1)
            continue
        ops.append(Create(key, value) if found is None else SetValue(key, value, found.version))
        size += len(key) + len(value)
        if len(ops) >= _BATCH_OPS or size >= _BATCH_BYTES:
            await store.keys.multi([*when, *ops])
            progress(len(ops))
            ops, size = [], 0
    if ops:
        await store.keys.multi([*when, *ops])
        progress(len(ops))


async def _verify(store: TreeStore, wanted: dict[str, bytes]) -> None:
    found = {one.key: one.value for one in await everything(store)}
    wrong = [key for key, value in wanted.items() if found.get(key) != value and key not in counters(store)]
    if wrong:
        raise MetadataError(
            f"{wrong[0]} is not what the backup holds ({len(wrong)} such keys): another program changes the "
            "store; stop its clients and restore again"
        )


def counters(store: TreeStore) -> tuple[str, ...]:
    """Return the keys that record which ids were given: a copy's may be ahead."""
    return (f"{store.own}/next-ledger-id",)
