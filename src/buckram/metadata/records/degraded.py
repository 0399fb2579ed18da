"""The keys in which clients report which bookies are slow for them: `healing/degraded/<bookie>@<client>`.

They end with the session of the client; an empty one is taken back. Not here: detecting it
(`client/cluster/slow_bookies.py`).
"""

from __future__ import annotations

from buckram.errors import KeyExists
from buckram.metadata.tree.key_operations import all_children
from buckram.metadata.tree.overwriting import overwrite
from buckram.seams import MetadataStore
from buckram.types import BookieId

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


__all__ = ["DEGRADED", "degraded_bookies", "say_degraded"]
