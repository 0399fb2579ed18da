"""The part of a check that concerns the store's past: restores, bookies that reject the store, postponed collection."""

from __future__ import annotations

import json
from typing import Protocol

from buckram.core.cluster.history import parse_statement
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.metadata.acceptance import suspects
from buckram.metadata.layout import BRAKES, SUSPECTS, WITNESSES
from buckram.metadata.store import TreeStore
from buckram.types import BookieId


class AddFinding(Protocol):
    def __call__(self, key: str, what: str, cure: str, /) -> None:
        """Note what is wrong with a key of the metadata store, and what to do about it."""
        ...


_SET_RIGHT = (
    "put the newest metadata back, or go on with what is there: `buckram cluster restore FILE` where you have a later "
    "backup, then `buckram cluster accept-restore` and `buckram cluster salvage`"
)


async def examine_past(store: TreeStore, registered: list[BookieId], add: AddFinding) -> int:
    """Name what is wrong; the store's epoch."""
    key = store.layout.history
    try:
        history = await store.history()
    except MalformedRecord as error:
        add(key, str(error), "restore it from a backup: `buckram cluster restore FILE`")
        return 0
    if not history.accepted:
        add(
            key,
            "restored, and nobody has said that it shall be used: bookies and clients wait",
            "start all bookies, then `buckram cluster accept-restore`",
        )
    for one in await suspects(store):
        add(
            f"{store.own}/{SUSPECTS}/{one.bookie_id}",
            f"bookie {one.bookie_id} at {one.address}, epoch {one.epoch}, does not believe this store: {one.why}",
            _SET_RIGHT,
        )
    for name in registered:
        node = f"{store.own}/{WITNESSES}/{name}"
        try:
            said = parse_statement(node, (await store.keys.get(node)).value)
        except NoSuchKey:
            continue  # software that keeps none
        except MalformedRecord as error:
            add(node, str(error), f"restart bookie {name}")
            continue
        if said.epoch != history.epoch:
            add(
                node,
                f"bookie {name} is registered and in epoch {said.epoch}, the store is in {history.epoch}",
                f"look at the log of bookie {name}",
            )
    await _examine_brakes(store, add)
    return history.epoch


async def _examine_brakes(store: TreeStore, add: AddFinding) -> None:
    folder = f"{store.own}/{BRAKES}"
    for name in await store.keys.children(folder):
        node = f"{folder}/{name}"
        try:
            said = json.loads((await store.keys.get(node)).value)
            waiting, unknown = int(said["waiting"]), int(said["unknown"])
        except NoSuchKey:
            continue
        except (ValueError, KeyError, TypeError):
            add(node, "not readable", f"restart bookie {name}")
            continue
        if waiting:
            add(
                node,
                f"bookie {name} holds {waiting} ledgers that metadata does not know; they wait to be deleted",
                "see `buckram cluster salvage`; if they may go, `buckram cluster collect --yes`",
            )
        if unknown:
            add(
                node,
                f"bookie {name} holds {unknown} ledgers with ids that this store never gave, and keeps them",
                "see `buckram cluster salvage`: the store may be an older one",
            )
