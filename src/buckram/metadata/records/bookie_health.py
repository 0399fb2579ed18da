"""Keys about the health of bookies: accused and convicted ones, those that clients find slow, and the speed of disks.

`convicted/<bookie id>` gets no new ensembles, `accused/<bookie id>` is suspect. In `healing/degraded/<bookie>@<client>`
clients report which bookies are slow for them; the key ends with the session of the client, and an empty one is taken
back. In `slow/<bookie id>` and `sync-speed/<bookie id>` bookies report how fast their disks are; both end with the
session of their bookie. Clients watch the names of convicted and of slow bookies only, and avoid them for new
ensembles.

Not here: how a verdict is reached (`core/cluster/conviction.py`), detecting bookies that are slow for a client
(`client/cluster/slow_bookies.py`), what makes a disk slow (`core/healing/slow_disk.py`), and the bookie's watch over it
(`bookie/integrity/slow_disk_watch.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from buckram.core.cluster.conviction import Accused, Evidence, parse_accused
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_operations import all_children, all_names, overwrite
from buckram.seams import KeyStore, MetadataStore, Notify
from buckram.types import BookieId

log = logging.getLogger("buckram.metadata")

CONVICTED, ACCUSED = "convicted", "accused"

_TRIES = 5


async def convicted_bookies(store: MetadataStore, watch: Notify | None = None) -> list[BookieId]:
    """Return the ids of convicted bookies. The watch fires when one is added or pardoned."""
    names = [name async for name in all_names(store.keys, f"{store.own}/{CONVICTED}", watch=watch)]
    return [name for name in names if valid_bookie_id(name)]


async def read_accused(store: MetadataStore) -> list[Accused]:
    """Return all accused bookies, the convicted first. Raises MalformedRecord."""
    found: list[Accused] = []
    for folder in (CONVICTED, ACCUSED):
        async for name in all_names(store.keys, f"{store.own}/{folder}"):
            key = f"{store.own}/{folder}/{name}"
            try:
                found.append(parse_accused(key, (await store.keys.get(key)).value))
            except NoSuchKey:
                continue  # pardoned a moment ago
    return found


async def accuse(store: MetadataStore, evidence: Sequence[Evidence]) -> None:
    """Write an accusation down. Raises MetadataError; evidence that is lost by that will come again."""
    for folder, convicts in ((CONVICTED, True), (ACCUSED, False)):
        for bookie in dict.fromkeys(one.bookie for one in evidence if one.convicts == convicts):
            own = [one for one in evidence if one.bookie == bookie and one.convicts == convicts]
            await _add(store.keys, f"{store.own}/{folder}/{bookie}", Accused(bookie), own)


async def _add(keys: KeyStore, key: str, nobody: Accused, evidence: Sequence[Evidence]) -> None:
    for _ in range(_TRIES):
        try:
            found = await keys.get(key)
        except NoSuchKey:
            try:
                await keys.create(key, nobody.plus(evidence).encode())
                return
            except KeyExists:
                continue
        known = parse_accused(key, found.value)
        more = known.plus(evidence)
        if more == known:
            return
        try:
            await keys.set(key, more.encode(), found.version)
            return
        except (VersionConflict, NoSuchKey):
            continue


async def pardon(store: MetadataStore, bookie: BookieId) -> bool:
    """Forget what is held against a bookie; return False if there was nothing."""
    there = False
    for folder in (CONVICTED, ACCUSED):
        key = f"{store.own}/{folder}/{bookie}"
        for _ in range(_TRIES):
            try:
                await store.keys.delete(key, (await store.keys.get(key)).version)
                there = True
            except NoSuchKey:
                break
            except VersionConflict:
                continue
    return there


# -- bookies that are slow for clients ------------------------------------------------------------------------

DEGRADED = "healing/degraded"
"""Folder of the reports, below ClusterLayout.own."""


async def say_degraded(store: MetadataStore, bookie: BookieId, client: str, why: str) -> None:
    """Report a bookie as slow. `why` is the reason, empty when the bookie is well again."""
    key = f"{store.own}/{DEGRADED}/{bookie}@{client}"
    try:
        await store.keys.create(key, why.encode(), ephemeral=True)
    except KeyExists:
        await overwrite(store.keys, key, why.encode())


async def degraded_bookies(store: MetadataStore) -> dict[BookieId, str]:
    """Return the bookies that some client finds slow now, and why."""
    found: dict[BookieId, str] = {}
    async for name, kept in all_children(store.keys, f"{store.own}/{DEGRADED}"):
        bookie = name.rpartition("@")[0]
        if bookie and kept.value:
            found.setdefault(bookie, kept.value.decode(errors="replace"))
    return found


# -- speed of disks -------------------------------------------------------------------------------------------

SLOW, SPEED = "slow", "sync-speed"


def slow_key(store: MetadataStore, bookie: BookieId) -> str:
    return f"{store.own}/{SLOW}/{bookie}"


def speed_key(store: MetadataStore, bookie: BookieId) -> str:
    return f"{store.own}/{SPEED}/{bookie}"


async def slow_bookies(store: MetadataStore, watch: Notify | None = None) -> list[BookieId]:
    """Return the bookies whose disks are slow. The watch fires when one becomes slow, or well again."""
    return [name for name in await _names(store, SLOW, watch) if valid_bookie_id(name)]


async def sync_speeds(store: MetadataStore, leave_out: BookieId) -> dict[BookieId, float]:
    """Return the mean seconds of a sync at every other bookie that reports it."""
    found: dict[BookieId, float] = {}
    for name in await _names(store, SPEED, None):
        if name == leave_out:
            continue
        try:
            found[name] = int((await store.keys.get(f"{store.own}/{SPEED}/{name}")).value) / 1_000_000
        except NoSuchKey:
            continue  # it ended this moment
        except ValueError:
            log.warning("how fast bookie %s syncs cannot be read", name)
    return found


async def _names(store: MetadataStore, folder: str, watch: Notify | None) -> list[str]:
    return [name async for name in all_names(store.keys, f"{store.own}/{folder}", watch=watch)]
