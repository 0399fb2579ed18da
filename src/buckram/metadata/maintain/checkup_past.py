"""Check of the store's past: restores, bookies that reject the store, postponed collection."""

from __future__ import annotations

import json

from buckram.core.cluster.store_history import parse_statement
from buckram.core.health.facts import Noted
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.metadata.tree.layout import BRAKES, WITNESSES
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieId


async def examine_past(store: TreeStore, registered: list[BookieId]) -> tuple[int, list[Noted]]:
    """Examine the store's epoch. That it was restored, and who does not believe it, is among the facts."""
    found: list[Noted] = []
    key = store.layout.history
    try:
        history = await store.history()
    except MalformedRecord as error:
        return 0, [Noted("metadata-damaged", key, str(error))]
    for name in registered:
        node = f"{store.own}/{WITNESSES}/{name}"
        try:
            said = parse_statement(node, (await store.keys.get(node)).value)
        except NoSuchKey:
            continue  # software that keeps none
        except MalformedRecord as error:
            found.append(Noted("witness-refused", name, str(error), bookie=name))
            continue
        if said.epoch != history.epoch:
            why = f"it is registered and in epoch {said.epoch}, the store is in {history.epoch}"
            found.append(Noted("witness-refused", name, why, bookie=name))
    found += await _examine_brakes(store)
    return history.epoch, found


async def _examine_brakes(store: TreeStore) -> list[Noted]:
    folder, found = f"{store.own}/{BRAKES}", list[Noted]()
    for name in await store.keys.children(folder):
        node = f"{folder}/{name}"
        try:
            said = json.loads((await store.keys.get(node)).value)
            waiting, unknown = int(said["waiting"]), int(said["unknown"])
        except NoSuchKey:
            continue
        except (ValueError, KeyError, TypeError):
            found.append(Noted("metadata-damaged", node, "not readable"))
            continue
        if waiting:
            why = f"it holds {waiting} ledgers that metadata does not know; they wait to be removed"
            found.append(Noted("collection-waits", name, why, bookie=name))
        if unknown:
            why = f"it holds {unknown} ledgers with ids that this store never gave, and keeps them"
            found.append(Noted("unknown-ledgers", name, why, bookie=name))
    return found
