"""The key of the bookies' topology: `topology`, in the form of Pulsar's rack mapping; and Apache's own ones.

Clients watch it beside the registrations. On ZooKeeper two maps of others are read, too: `<ledgers root>/bookies`, and
`bookies` beside the ledgers root, which is Pulsar's. What is written here wins, bookie by bookie, then the former.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from buckram.core.placement.topology import RackMap, Topology
from buckram.errors import AccessRefused, KeyExists, NoSuchKey, VersionConflict
from buckram.metadata.zookeeper.ledger_managers import OWN_KEYS, RACK_MAP
from buckram.seams import MetadataStore, Notify

TOPOLOGY = "topology"
_TRIES = 20


async def read_rack_map(store: MetadataStore, watch: Notify | None = None) -> RackMap:
    """Return the map that was set with `buckram placement topology`. The watch fires when it changes.

    Raises MalformedRecord.
    """
    return await _read(store, f"{store.own}/{TOPOLOGY}", watch)


async def read_topology(store: MetadataStore, watch: Notify | None = None) -> Topology:
    """Return the topology of our map over Apache's and Pulsar's, without what bookies declare in their registrations.

    Raises MalformedRecord.
    """
    found = (await read_rack_map(store, watch)).topology()
    theirs = apache_key(store)
    if not theirs:
        return found
    # A mapping that these credentials may not read is ignored, without an error.
    with suppress(AccessRefused):
        found = found.over((await _read(store, theirs, watch)).topology())
    with suppress(AccessRefused):
        found = found.over((await _read(store, pulsar_key(theirs), watch, whoever=True)).topology())
    return found


async def change_rack_map(store: MetadataStore, change: Callable[[RackMap], RackMap]) -> RackMap:
    """Change our map by compare-and-set; return the one that is there now. Raises MetadataError."""
    key = f"{store.own}/{TOPOLOGY}"
    for _ in range(_TRIES):
        try:
            kept = await store.keys.get(key)
        except NoSuchKey:
            wanted = change(RackMap())
            try:
                await store.keys.create(key, wanted.encode())
                return wanted
            except KeyExists:
                continue
        wanted = change(RackMap.decode(key, kept.value))
        try:
            await store.keys.set(key, wanted.encode(), kept.version)
            return wanted
        except (VersionConflict, NoSuchKey):
            continue
    raise VersionConflict(key, kept.version)


def apache_key(store: MetadataStore) -> str:
    """Return the key of Apache's map; empty on a store that Apache does not know."""
    name = store.own.removeprefix(f"{OWN_KEYS}/")
    return f"/{name.replace('%2F', '/').replace('%25', '%')}/{RACK_MAP}" if name != store.own else ""


def pulsar_key(apaches: str) -> str:
    """Return the key of Pulsar's map: a broker keeps its metadata beside the ledgers root."""
    return f"{apaches.rsplit('/', 2)[0]}/{RACK_MAP}"


async def _read(store: MetadataStore, key: str, watch: Notify | None, *, whoever: bool = False) -> RackMap:
    """Read a map. `whoever`: the key may belong to somebody who keeps something else there, which is then no map and no
    error.
    """
    try:
        value = (await store.keys.get(key, watch)).value
    except NoSuchKey:
        return RackMap()
    if whoever and not value.lstrip().startswith(b"{"):
        return RackMap()
    return RackMap.decode(key, value)
