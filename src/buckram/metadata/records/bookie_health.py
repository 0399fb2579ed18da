"""The keys of accused bookies: `convicted/<bookie id>` (gets no new ensembles) and `accused/<bookie id>` (suspect).

Clients watch the names of convicted bookies only.

Not here: how a verdict is reached (`core/cluster/conviction.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.cluster.conviction import Accused, Evidence, parse_accused
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.seams import KeyStore, MetadataStore, Notify
from buckram.types import BookieId

CONVICTED, ACCUSED = "convicted", "accused"
_PAGE, _TRIES = 1000, 5


async def convicted_bookies(store: MetadataStore, watch: Notify | None = None) -> list[BookieId]:
    """Return the ids of convicted bookies. The watch fires when one is added or pardoned."""
    found: list[BookieId] = []
    folder = f"{store.own}/{CONVICTED}"
    while names := await store.keys.children(folder, after=found[-1] if found else "", limit=_PAGE, watch=watch):
        found += names
        if len(names) < _PAGE:
            break
    return [name for name in found if valid_bookie_id(name)]


async def read_accused(store: MetadataStore) -> list[Accused]:
    """Return all accused bookies, the convicted first. Raises MalformedRecord."""
    found: list[Accused] = []
    for folder in (CONVICTED, ACCUSED):
        for name in await store.keys.children(f"{store.own}/{folder}", limit=_PAGE):
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


__all__ = ["ACCUSED", "CONVICTED", "accuse", "convicted_bookies", "pardon", "read_accused"]
