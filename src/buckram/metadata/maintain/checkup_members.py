"""Check of membership: bookies that are registered and are no members of the cluster.

A bookie of this release ends by itself when it finds that it was replaced or taken out (`bookie/trust/witness.py`); one
of an earlier release, or Apache's, goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from buckram.core.cluster.store_history import WitnessStatement, parse_statement
from buckram.core.health.facts import Noted
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.metadata.tree.layout import WITNESSES
from buckram.seams import MetadataStore
from buckram.types import BookieId, BookieInfo


async def no_members(
    store: MetadataStore, registered: Collection[BookieInfo], cookies: Collection[BookieId]
) -> list[Noted]:
    """Compare registrations with cookies and witness keys. Raises MetadataError."""
    named = await asyncio.gather(*(_named(store, info.bookie_id) for info in registered))
    found, restored = list[Noted](), None
    for info, said in zip(registered, named, strict=True):
        if said is not None and info.incarnation and said.incarnation != info.incarnation:
            found.append(_replaced(info, said))
        elif info.bookie_id not in cookies:
            if restored is None:
                history = await store.history()
                restored = not history.accepted and not history.moved
            found.append(_without_cookie(info, restored))
    return found


async def _named(store: MetadataStore, bookie: BookieId) -> WitnessStatement | None:
    key = f"{store.own}/{WITNESSES}/{bookie}"
    try:
        return parse_statement(key, (await store.keys.get(key)).value)
    except (NoSuchKey, MalformedRecord):
        return None  # Apache's have none; one that cannot be read is named elsewhere


def _replaced(info: BookieInfo, said: WitnessStatement) -> Noted:
    why = (
        f"incarnation {info.incarnation} is registered at {info.address}, but incarnation {said.incarnation} "
        f"(generation {said.generation}) has the id: an old disk or process, which denies what was written since"
    )
    return Noted("bookie-replaced", info.bookie_id, why, bookie=info.bookie_id)


def _without_cookie(info: BookieInfo, restored: bool) -> Noted:
    bookie = info.bookie_id
    if restored:
        why = "registered without a cookie: it is younger than the restored metadata"
        return Noted("bookie-returns", bookie, why, bookie=bookie)
    why = "registered without a cookie: it was taken out of the cluster while it hung, or its cookie was lost"
    state = "bookie-without-cookie" if info.incarnation is not None else "apache-without-cookie"
    return Noted(state, bookie, why, bookie=bookie)
