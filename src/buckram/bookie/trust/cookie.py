"""Cookies: a check at the start that the data directory, the bookie's id and the cluster belong together.

A wiped or swapped disk never passes for the old bookie (M8). An empty directory takes an id over in one step: it
creates the cookie and names its incarnation in the witness key, with the next generation. Apache's bookies read cookies
too, so the incarnation is never part of one. What the metadata store holds about this bookie (the store's history, the
witness key, the cookie) is read here as well. A directory of a cluster whose metadata are gone does not join another
cluster; that is checked before anything is created.

Not here: the text format of a cookie (`core/cluster/cookie.py`); whether a directory still is its id's newest
incarnation, and what follows from the records (`bookie/trust/witness.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from buckram.bookie.storage import superblock
from buckram.core.cluster.cookie import (
    Cookie,
    check_cookie,
    encode_dirs,
    next_generation,
    parse_cookie,
    same_cookie,
    serialise_cookie,
    why_replaced,
)
from buckram.core.cluster.store_history import Confirmed, WitnessStatement, encode_statement, parse_statement
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import (
    ClusterNotInitialised,
    CorruptStore,
    KeyExists,
    MalformedRecord,
    NoSuchKey,
    VersionConflict,
    WrongCluster,
    WrongCookie,
)
from buckram.metadata.tree.layout import WITNESSES
from buckram.seams import Clock, Disk, MetadataStore, Write
from buckram.types import BookieId, CheckVersion, Create, History, KeyOp, KeyValue, SetValue

COOKIE_FILE = "VERSION"

UNFINISHED_FILE = "VERSION.new"
"""The cookie of a first start whose store was not opened yet, so that the bookie has acknowledged nothing."""

DIRECTORY = "buckram"
"""The cookie has this name for every directory, so that a directory may be moved or mounted elsewhere."""

LARGEST_COOKIE = 64 * 1024


@dataclass(frozen=True, slots=True)
class ClaimedDirectory:
    """The bookie's id, whether this is the first start of the directory, the cluster's instance id, the directory's
    incarnation, and the cookie that the cluster has for it."""

    bookie_id: BookieId
    first_start: bool
    cluster: str
    incarnation: str
    cookie: Cookie


async def claim(
    disk: Disk,
    metadata: MetadataStore,
    configured_id: str,
    default_id: str,
    *,
    rng: random.Random,
    clock: Clock,
) -> ClaimedDirectory:
    """Check at a start that directory and cluster belong together. Raises WrongCookie, which says what to do, if not.

    The directory is locked, so that two first starts do not meet. An empty directory takes the id over, and gets its
    superblock here. Call `finish` when the store is open.
    """
    local, unfinished = _local(disk, COOKIE_FILE), _local(disk, UNFINISHED_FILE)
    known = local or unfinished
    bookie_id = check_bookie_id(configured_id or (known.bookie_host if known is not None else default_id))
    cluster = await metadata.instance_id()
    master = Cookie(bookie_id, DIRECTORY, encode_dirs([DIRECTORY]), cluster or None)
    remote = await _remote(metadata, bookie_id)
    if known is not None:
        check_cookie(master, known)
    if local is not None:
        incarnation = _incarnation(disk, bookie_id)
        if remote is None:
            await _refuse_removed(metadata, bookie_id)
        else:
            _check_remote(metadata, master, remote)
        return ClaimedDirectory(bookie_id, False, cluster, incarnation, master)
    if unfinished is None:
        _refuse_unless_new(disk, bookie_id, remote, by_address=not configured_id)
        _write(disk, UNFINISHED_FILE, serialise_cookie(master))
    incarnation = superblock.read_or_create(disk, rng).incarnation
    claimed = ClaimedDirectory(bookie_id, True, cluster, incarnation, master)
    if remote is not None:
        _check_remote(metadata, master, remote)
        await _check_unfinished(metadata, claimed)
        return claimed
    try:
        await _take_over(metadata, claimed, rng, clock)
    except WrongCookie:
        if unfinished is None:
            disk.remove(superblock.NAME)
            disk.remove(UNFINISHED_FILE)
        raise
    return claimed


def _incarnation(disk: Disk, bookie_id: BookieId) -> str:
    found = superblock.read_superblock(disk)
    if found is None:
        raise WrongCookie(
            f"bookie {bookie_id}: the directory has the bookie's cookie but its data is gone; restore the data, or "
            "start with an empty directory and a new --id and let the ledgers be repaired"
        )
    return found.incarnation


async def _check_unfinished(metadata: MetadataStore, claimed: ClaimedDirectory) -> None:
    """Check that the cookie is the one that this directory's first start created, before it was cut off."""
    found = await read_witness(metadata, claimed.bookie_id)
    if found is not None and found.value.incarnation != claimed.incarnation:
        raise WrongCookie(why_replaced(claimed.bookie_id, claimed.incarnation, found.value))


def finish(disk: Disk, claimed: ClaimedDirectory) -> None:
    """Make the cookie of a first start valid, now that the store is open."""
    if claimed.first_start:
        disk.rename(UNFINISHED_FILE, COOKIE_FILE)
        disk.sync_names()


async def _refuse_removed(metadata: MetadataStore, bookie_id: BookieId) -> None:
    """Raise WrongCookie for a missing cookie, unless metadata were restored from a backup older than this bookie.

    Until the restore is accepted the bookie may come back, because what it holds is part of the cluster: the witness
    writes its cookie again.
    """
    if (await metadata.history()).accepted:
        raise WrongCookie(
            f"bookie {bookie_id}: this cluster has no cookie of it; it was removed from the cluster, or --metadata "
            "names another cluster than the one the directory was made for, or the metadata was restored from a backup "
            "older than this bookie and accepted without it: then `buckram cluster restore` that backup again, start "
            "all bookies, and only then `buckram cluster accept-restore`"
        )


def _refuse_unless_new(disk: Disk, bookie_id: BookieId, remote: Cookie | None, *, by_address: bool) -> None:
    if remote is not None and by_address:
        raise WrongCookie(
            f"no --id was given, so the id of this empty directory would be its address, {bookie_id}: a bookie that "
            "has, or had, this address holds that id in this cluster. Give this one an id of its own: --id NAME; or "
            "start the other one's directory, if this is its machine"
        )
    if remote is not None:
        raise WrongCookie(
            f"bookie {bookie_id} is known to this cluster, but the directory is empty or was not made for it: a wiped "
            "or swapped disk must not pass for the old bookie. Use its old directory, or start with a new --id and let "
            "the ledgers be repaired; remove the old bookie's cookie only after that"
        )
    foreign = [name for name in sorted(disk.names()) if name != UNFINISHED_FILE]
    if foreign:
        raise WrongCookie(
            f"bookie {bookie_id}: the directory holds {foreign[0]!r} but no {COOKIE_FILE} file; a new bookie needs an "
            "empty directory"
        )


def _local(disk: Disk, name: str) -> Cookie | None:
    if name not in disk.names():
        return None
    file = disk.open(name)
    try:
        record = file.read(0, min(file.size(), LARGEST_COOKIE))
    finally:
        file.close()
    try:
        return parse_cookie(record)
    except MalformedRecord as error:
        if name == UNFINISHED_FILE:
            return None  # torn by a crash during the very first start
        raise CorruptStore(f"{name}: {error}; restore the file from the cluster's copy") from None


def _write(disk: Disk, name: str, record: bytes) -> None:
    if name in disk.names():
        disk.remove(name)
    file = disk.open(name, create=True)
    try:
        disk.write_now([Write(file, 0, [record])])
    finally:
        file.close()
    disk.sync_names()


async def _remote(metadata: MetadataStore, bookie_id: BookieId) -> Cookie | None:
    try:
        return parse_cookie((await metadata.read_cookie(bookie_id)).value)
    except NoSuchKey:
        return None
    except MalformedRecord as error:
        raise MalformedRecord(
            f"{_node(metadata, bookie_id)}: {error}; restore it from the file {COOKIE_FILE} in the bookie's directory"
        ) from None


def _check_remote(metadata: MetadataStore, master: Cookie, remote: Cookie) -> None:
    try:
        check_cookie(master, remote)
    except WrongCookie as error:
        raise WrongCookie(f"{_node(metadata, master.bookie_host)}: {error}") from None


def _node(metadata: MetadataStore, bookie_id: BookieId) -> str:
    return f"{metadata.uri}, node cookies/{bookie_id}"


# The witness key, which names the incarnation that an id belongs to


def witness_key(metadata: MetadataStore, bookie_id: BookieId) -> str:
    return f"{metadata.own}/{WITNESSES}/{bookie_id}"


async def read_witness(metadata: MetadataStore, bookie_id: BookieId) -> Confirmed | None:
    """Return the witness key of an id; None without one. Raises MalformedRecord or MetadataUnavailable."""
    key = witness_key(metadata, bookie_id)
    try:
        found = await metadata.keys.get(key)
    except NoSuchKey:
        return None
    return Confirmed(found.version, parse_statement(key, found.value))


async def _take_over(metadata: MetadataStore, claimed: ClaimedDirectory, rng: random.Random, clock: Clock) -> None:
    """Create the cookie and name the incarnation in the witness key, in one step: once that is done, whoever had the id
    before is out.

    After a lost reply the next start finds the unfinished file, and compares both.
    """
    history = await metadata.history()
    if not history.epoch:
        history = await metadata.begin_history()
    key, record = witness_key(metadata, claimed.bookie_id), serialise_cookie(claimed.cookie)
    while True:
        found = await read_witness(metadata, claimed.bookie_id)
        value = encode_statement(
            WitnessStatement(
                claimed.incarnation,
                0,
                0,
                0,
                history.epoch,
                history.restore,
                f"{rng.getrandbits(64):016x}",
                next_generation(claimed.incarnation, None, None if found is None else found.value),
                clock.wall_us() // 1_000_000,
            )
        )
        named: KeyOp = Create(key, value) if found is None else SetValue(key, value, found.version)
        try:
            await metadata.write_cookie(claimed.bookie_id, record, None, [named])
            return
        except (KeyExists, NoSuchKey, VersionConflict):
            if await _remote(metadata, claimed.bookie_id) is not None:
                raise WrongCookie(
                    f"bookie {claimed.bookie_id}: another bookie took this id just now; choose another --id"
                ) from None
            # The bookie that had the id still wrote its key: it learns that it is out at its next look.


# -- records of this bookie in the metadata store -------------------------------------------------------------


class StoredRecords(NamedTuple):
    """The store's records about this bookie. `cookie`: version of this bookie's cookie; None if there is none, or the
    one there is another bookie's."""

    history: History
    witness: Confirmed | None
    cookie: int | None


class OwnRecords:
    """The records of one bookie."""

    def __init__(self, metadata: MetadataStore, claimed: ClaimedDirectory) -> None:
        self._metadata, self._claimed = metadata, claimed
        self.key = witness_key(metadata, claimed.bookie_id)

    async def read(self) -> StoredRecords:
        """Read all of it at once, because adds of new ledgers wait for it. Raises MetadataError.

        The instance id shows whether the store still holds this cluster.
        """
        answers = await asyncio.gather(
            self._metadata.history(),
            self._metadata.instance_id(),
            _there(lambda: self._metadata.keys.get(self.key)),
            _there(lambda: self._metadata.read_cookie(self._claimed.bookie_id)),
            return_exceptions=True,
        )
        for answer in answers:  # the history's error comes first: it explains the others
            if isinstance(answer, BaseException):
                raise answer
        history, _, key, cookie = answers
        assert isinstance(history, History)
        assert not isinstance(key, BaseException)
        assert not isinstance(cookie, BaseException)
        witness = None if key is None else Confirmed(key.version, parse_statement(self.key, key.value))
        return StoredRecords(history, witness, self._own_version(cookie))

    def _own_version(self, cookie: KeyValue | None) -> int | None:
        if cookie is None:
            return None
        try:
            own = same_cookie(self._claimed.cookie, parse_cookie(cookie.value))
        except MalformedRecord:
            own = True  # undecidable: `buckram cluster check` names it, and a start refuses it
        return cookie.version if own else None

    def versions(self, found: StoredRecords) -> tuple[CheckVersion, ...]:
        """Return the versions of cookie and witness key: while they hold, so does what was found."""
        seen = []
        if found.cookie is not None:
            seen.append(CheckVersion(self._metadata.cookie_key(self._claimed.bookie_id), found.cookie))
        if found.witness is not None:
            seen.append(CheckVersion(self.key, found.witness.version))
        return tuple(seen)


async def _there(read: Callable[[], Awaitable[KeyValue]]) -> KeyValue | None:
    try:
        return await read()
    except NoSuchKey:
        return None


# -- directories whose cluster lost its metadata --------------------------------------------------------------

_NAMED = 3


class _Owned(NamedTuple):
    directory: Path
    bookie_id: str
    cluster: str


async def refuse_lost(store: MetadataStore, directories: Iterable[Path], advice: str = "") -> None:
    """Raise WrongCluster if bookies have data here and none of it is of the cluster that `store` holds, or it holds
    none. `advice`: what has to be done first."""
    owned = [found for directory in directories if (found := _owner(directory)) is not None]
    if not owned:
        return
    try:
        there = await store.instance_id()
    except ClusterNotInitialised:
        there = ""
    if any(one.cluster == there for one in owned):
        return
    raise WrongCluster(_message(store.uri, there, owned, advice))


def _message(uri: str, there: str, owned: list[_Owned], advice: str) -> str:
    shown = "; ".join(
        f"{one.directory} has data of bookie {one.bookie_id}, cluster {one.cluster}" for one in owned[:_NAMED]
    )
    more = f" and {len(owned) - _NAMED} more directories" if len(owned) > _NAMED else ""
    what = f"is another cluster, {there}" if there else "has no cluster: its metadata was lost, or is elsewhere"
    place = "an empty place" if there else uri
    return (
        f"{shown}{more}; but {uri} {what}. Nothing was created. {advice}Name the right metadata or put it back, or "
        f"restore a backup to {place}: `buckram cluster restore FILE --metadata {'URI' if there else uri}`. A new "
        "cluster could read nothing of what is there; docs/howto/runbooks/metadata-went-back.md goes on from here"
    )


def _owner(directory: Path) -> _Owned | None:
    """Return the owner of a directory by its cookie; None if there is no readable cookie, or one without an instance
    id."""
    try:
        with (directory / COOKIE_FILE).open("rb") as file:
            cookie = parse_cookie(file.read(LARGEST_COOKIE))
    except (OSError, MalformedRecord):
        return None
    return _Owned(directory, cookie.bookie_host, cookie.instance_id) if cookie.instance_id else None
