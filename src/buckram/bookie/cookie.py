"""Cookies: check at start that the data directory, the bookie's id and the cluster belong together.

A wiped or swapped disk never passes for the old bookie (M8). The incarnation id belongs to the store and is never part
of a cookie.
Not here: the text format of a cookie (`core/cluster/cookie.py`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeVar

from buckram.core.cluster.cookie import Cookie, check_cookie, encode_dirs, parse_cookie, serialise_cookie
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import CorruptStore, KeyExists, MalformedRecord, NoSuchKey, WrongCookie
from buckram.seams import Disk, MetadataStore, Write
from buckram.types import BookieId

COOKIE_FILE = "VERSION"
UNFINISHED_FILE = "VERSION.new"
"""The cookie of a first start whose store was not opened yet, so that the bookie has acknowledged nothing."""
DIRECTORY = "buckram"
"""The cookie has this name for every directory, so that a directory may be moved or mounted elsewhere."""
log = logging.getLogger("buckram.bookie")
LARGEST_COOKIE = 64 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """The bookie's id, whether this is the first start of the directory, and the cluster's instance id."""

    bookie_id: BookieId
    first_start: bool
    cluster: str = ""


async def claim(
    disk: Disk,
    metadata: MetadataStore,
    configured_id: str,
    default_id: str,
    *,
    has_store: bool,
) -> Claim:
    """Check at a start that directory and cluster belong together. Raises WrongCookie, which says what to do, if not.

    The directory is locked, so that two first starts do not meet. `has_store`: whether it holds a store (its
    superblock). Call `finish` when the store is open.
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
        if not has_store:
            raise WrongCookie(
                f"bookie {bookie_id}: the directory has the bookie's cookie but its data is gone; restore the data, or "
                "start with an empty directory and a new --id and let the ledgers be repaired"
            )
        if remote is None:
            await _return(metadata, local)
        else:
            _check_remote(metadata, master, remote)
        return Claim(bookie_id, False, cluster)
    if unfinished is None:
        _refuse_unless_new(disk, bookie_id, remote)
        _write(disk, UNFINISHED_FILE, serialise_cookie(master))
    elif remote is not None:
        _check_remote(metadata, master, remote)
        return Claim(bookie_id, True, cluster)
    try:
        await _create_remote(metadata, bookie_id, serialise_cookie(master))
    except WrongCookie:
        if unfinished is None:
            disk.remove(UNFINISHED_FILE)
        raise
    return Claim(bookie_id, True, cluster)


def finish(disk: Disk, claimed: Claim) -> None:
    """Make the cookie of a first start valid, now that the store is open."""
    if claimed.first_start:
        disk.rename(UNFINISHED_FILE, COOKIE_FILE)
        disk.sync_names()


async def _return(metadata: MetadataStore, local: Cookie) -> None:
    """Write the cookie again into metadata that were restored from a backup older than this bookie.

    Until the restore is accepted the bookie may come back, because what it holds is part of the cluster. Afterwards a
    missing cookie raises WrongCookie.
    """
    bookie_id = local.bookie_host
    if (await metadata.history()).accepted:
        raise WrongCookie(
            f"bookie {bookie_id}: this cluster has no cookie of it; it was removed from the cluster, or --metadata "
            "names another cluster than the one the directory was made for, or the metadata was restored from a backup "
            "older than this bookie and accepted without it: then `buckram cluster restore` that backup again, start "
            "all bookies, and only then `buckram cluster accept-restore`"
        )
    await _create_remote(metadata, bookie_id, serialise_cookie(local))
    log.warning("bookie %s is younger than the restored metadata: its cookie is written there again", bookie_id)


def _refuse_unless_new(disk: Disk, bookie_id: BookieId, remote: Cookie | None) -> None:
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


async def _create_remote(metadata: MetadataStore, bookie_id: BookieId, record: bytes) -> None:
    """Create the cookie once. After a lost reply the next start finds the unfinished file and compares both."""
    try:
        await metadata.write_cookie(bookie_id, record, None)
    except KeyExists:
        raise WrongCookie(f"bookie {bookie_id}: another bookie took this id just now; choose another --id") from None
