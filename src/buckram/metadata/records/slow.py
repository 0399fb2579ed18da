"""The keys in which bookies report how fast their disks are: `slow/<bookie id>` and `sync-speed/<bookie id>`.

Both end with the session of their bookie. Clients watch the names of slow bookies only, and avoid them for new
ensembles. Not here: what makes a disk slow (`core/healing/slow_disk.py`), and who finds out
(`bookie/integrity/slow_disk_watch.py`).
"""

from __future__ import annotations

import logging

from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import NoSuchKey
from buckram.seams import MetadataStore, Notify
from buckram.types import BookieId

log = logging.getLogger("buckram.metadata")
SLOW, SPEED = "slow", "sync-speed"
_SPEEDS_PAGE = 1000


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
    found: list[str] = []
    while names := await store.keys.children(
        f"{store.own}/{folder}", after=found[-1] if found else "", limit=_SPEEDS_PAGE, watch=watch
    ):
        found += names
        if len(names) < _SPEEDS_PAGE:
            break
    return found
