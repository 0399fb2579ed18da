"""The keys of operators' requests to bookies: `wishes/<bookie id>`, one for each bookie with a request.

Bookies watch their own key, so no port of theirs is needed; the auditor watches all of them. A record without a request
is deleted. Not here: what a record means (`core/healing/operator_requests`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from buckram.core.healing.operator_requests import NOTHING, OperatorRequest, parse_wish
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import KeyExists, MalformedRecord, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.tree.layout import COLLECTED, WISHES
from buckram.seams import MetadataStore, Notify
from buckram.types import BookieId

_log = logging.getLogger("buckram.metadata")
_PAGE, _TRIES = 1000, 20


def wish_key(store: MetadataStore, bookie: BookieId) -> str:
    return f"{store.own}/{WISHES}/{bookie}"


def answer_key(store: MetadataStore, bookie: BookieId) -> str:
    """Return the key in which a bookie reports the result of a requested collection."""
    return f"{store.own}/{COLLECTED}/{bookie}"


async def read_wish(store: MetadataStore, bookie: BookieId, watch: Notify | None = None) -> OperatorRequest:
    """Return the request to a bookie. The watch fires when it may have changed. Raises MalformedRecord."""
    key = wish_key(store, bookie)
    try:
        return parse_wish(key, (await store.keys.get(key, watch)).value)
    except NoSuchKey:
        return NOTHING


async def read_wishes(store: MetadataStore, watch: Notify | None = None) -> dict[BookieId, OperatorRequest]:
    """Read the wishes of all bookies that have one.

    A record that cannot be read is left out, so that it holds up no other.
    """
    found: dict[BookieId, OperatorRequest] = {}
    folder, after = f"{store.own}/{WISHES}", ""
    while names := await store.keys.children(folder, after=after, limit=_PAGE, watch=watch):
        for name in names:
            if valid_bookie_id(name):
                try:
                    found[name] = await read_wish(store, name, watch)
                except MalformedRecord as error:
                    _log.warning("what is asked of bookie %s is not followed: %s", name, error)
        after = names[-1]
        if len(names) < _PAGE:
            break
    return {bookie: wish for bookie, wish in found.items() if wish != NOTHING}


async def change_wish(
    store: MetadataStore, bookie: BookieId, change: Callable[[OperatorRequest], OperatorRequest | None]
) -> OperatorRequest:
    """Change a request: `change` gets the present one, and returns the new one, or None to leave it."""
    key = wish_key(store, bookie)
    for _ in range(_TRIES):
        try:
            found = await store.keys.get(key)
        except NoSuchKey:
            found = None
        now = parse_wish(key, found.value) if found is not None else NOTHING
        wanted = change(now)
        if wanted is None or (wanted == now and (found is None) == (now == NOTHING)):
            return now
        try:
            if found is None:
                await store.keys.create(key, wanted.encode())
            elif wanted == NOTHING:
                await store.keys.delete(key, found.version)
            else:
                await store.keys.set(key, wanted.encode(), found.version)
        except (NoSuchKey, KeyExists, VersionConflict):
            continue
        return wanted
    raise MetadataUnavailable(f"{key}: it changes too fast; try again")
