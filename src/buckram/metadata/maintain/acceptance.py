"""Accepts a metadata store that went back or was restored, so that it serves the cluster in a new epoch.

Every running bookie publishes a note of the epochs it has seen and the ids it holds. The new epoch is higher than all
of those, and new ids start after all of those. The deletions that bookies saw since the backup are compared with what
came back with it (`metadata/maintain/reported_deletions.py`). A bookie that returns later moves the ids itself when it
adopts the epoch (`bookie/trust/witness.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from buckram.core.cluster.store_history import encode_word, why_not_accepted
from buckram.errors import InvalidArgument, MetadataUnavailable, NoSuchKey
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.maintain.reported_deletions import compare
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.layout import COLLECT, SUSPECTS
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieId, History, LedgerId

WITHIN_S = 15.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Suspect:
    """Note of a bookie that does not believe the store. `why`: its reason."""

    bookie_id: BookieId
    why: str
    address: str
    epoch: int
    highest_ledger: LedgerId
    told: int | None = None
    """Version of the history's key since which it has reported all that it saw deleted; -1 if it has not, None if its
    release does not report deletions.
    """


class Acceptance(NamedTuple):
    """`deleted_again`: ledgers that came back with the backup although bookies saw them deleted since."""

    history: History
    deleted_again: list[LedgerId]


async def suspects(store: TreeStore) -> list[Suspect]:
    folder, found = f"{store.own}/{SUSPECTS}", []
    async for name in all_names(store.keys, folder):
        try:
            record = (await store.keys.get(f"{folder}/{name}")).value
        except NoSuchKey:
            continue
        one = _suspect(name, record)
        if one is not None:
            found.append(one)
    return found


def _suspect(name: BookieId, record: bytes) -> Suspect | None:
    try:
        said = json.loads(record)
        told = int(said["told"]) if "told" in said else None
        highest = int(said["highest_ledger"])
        return Suspect(name, str(said["why"]), str(said["address"]), int(said["epoch"]), highest, told)
    except (ValueError, KeyError, TypeError):
        return None


async def accept(store: TreeStore, rng: random.Random, without: Collection[BookieId] = ()) -> Acceptance:
    """Begin a new epoch. What came back although it was deleted since is deleted again.

    Raises InvalidArgument if there is nothing to accept; MetadataUnavailable names bookies that do not show up and are
    not among `without`.
    """
    history = await store.history()
    if history.moved and not history.accepted:
        raise InvalidArgument(f"{store.uri} cannot be accepted: {why_not_accepted(history)}")
    if history.accepted and not await suspects(store):
        raise InvalidArgument(
            f"{store.uri}: this store was not restored, and no bookie reports that it went back: there is "
            "nothing to accept"
        )
    # The store is not in use while it is looked at, and every running bookie reports what it knows.
    version = await set_history(store, replace(history, accepted=False, moved=""))
    said = await _all_bookies(store, without, version)
    epoch = max([history.epoch, *(one.epoch for one in said)]) + 1
    highest = max((one.highest_ledger for one in said), default=-1)
    if highest >= 0:
        await store.raise_next_id(highest)
    deleted_again = await compare(store)
    accepted = History(epoch, str(uuid.UUID(int=rng.getrandbits(128), version=4)))
    await set_history(store, accepted)
    await _followed(store)
    return Acceptance(accepted, deleted_again)


async def _followed(store: TreeStore) -> None:
    """Wait for the bookies to go on; the next checkup names those that do not follow in time."""
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while await suspects(store) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - of other processes
        await asyncio.sleep(_PAUSE_S)


async def _all_bookies(store: TreeStore, without: Collection[BookieId], version: int) -> list[Suspect]:
    """Wait until each bookie has written its note, and reported what it saw deleted since the history has this version:
    what it reported before may have gone with another restore.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WITHIN_S
    known = [one for one in await store.known_bookies() if one not in without]
    while True:
        said = await suspects(store)
        whole = {one.bookie_id for one in said if one.told is None or one.told >= version}
        missing = [one for one in known if one not in whole]
        if not missing:
            return said
        if loop.time() > deadline:
            raise MetadataUnavailable(
                f"{', '.join(missing[:10])}: {len(missing)} bookies do not run, so it is not known what they "
                "hold: start "
                "them, or name each that will never come back with --without ID"
            )
        await asyncio.sleep(_PAUSE_S)


async def allow_collection(store: TreeStore, rng: random.Random) -> None:
    """Tell every bookie, once, that ledgers that it found absent may be collected."""
    history = await store.history()
    if history.moved and not history.accepted:
        raise InvalidArgument(f"{store.uri}: nothing is collected: {why_not_accepted(history)}")
    key, word = f"{store.own}/{COLLECT}", encode_word(f"{rng.getrandbits(128):032x}")
    try:
        found = await store.keys.get(key)
    except NoSuchKey:
        await store.keys.create(key, word)
    else:
        await store.keys.set(key, word, found.version)
