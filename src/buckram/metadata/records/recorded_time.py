"""The keys in which bookies record the time that they are certain of, and the one with the time that an operator
accepted: `times/<bookie id>` and `accepted-time`.

A process that starts has nothing else with which to compare its clock, if no other process tells it the time. Not here:
what follows from a record (`core/cluster/believed_time.py`), who writes them (`bookie/trust/timekeeper.py`).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from buckram.core.cluster.believed_time import Jump, Recorded
from buckram.errors import NoSuchKey, VersionConflict
from buckram.metadata.tree.key_operations import all_children, overwrite
from buckram.metadata.tree.layout import ACCEPTED_TIME, TIMES
from buckram.seams import MetadataStore
from buckram.types import BookieId


async def read_times(store: MetadataStore) -> dict[BookieId, Recorded]:
    """Return the times that all bookies recorded. A record that cannot be read is left out. Raises MetadataError."""
    found: dict[BookieId, Recorded] = {}
    async for name, value in all_children(store.keys, f"{store.own}/{TIMES}"):
        time = _parsed(value.value)
        if time is not None:
            found[name] = time
    return found


async def write_time(store: MetadataStore, bookie: BookieId, time: Recorded) -> None:
    """Record the time that a bookie is certain of. Raises MetadataError."""
    jumps = [[jump.begin, jump.end, jump.by] for jump in time.jumps]
    value = {"us": time.time_us, "boot": time.boot, "up_us": time.up_us, "jumps": jumps}
    await overwrite(store.keys, f"{store.own}/{TIMES}/{bookie}", json.dumps(value).encode())


async def remove_time(store: MetadataStore, bookie: BookieId) -> None:
    """Remove the time of a bookie that is no member any more, so that it does not influence what the others believe.

    Raises MetadataError.
    """
    key = f"{store.own}/{TIMES}/{bookie}"
    with suppress(NoSuchKey, VersionConflict):  # it was removed, or the bookie has come back
        await store.keys.delete(key, (await store.keys.get(key)).version)


async def read_accepted(store: MetadataStore) -> int:
    """Return the time that an operator accepted last, as of its acceptance; 0 for none. Raises MetadataError."""
    try:
        time = _parsed((await store.keys.get(f"{store.own}/{ACCEPTED_TIME}")).value)
    except NoSuchKey:
        return 0
    return 0 if time is None else time.time_us


async def write_accepted(store: MetadataStore, time_us: int) -> None:
    """Record that clocks which show this time now are right. Raises MetadataError."""
    await overwrite(store.keys, f"{store.own}/{ACCEPTED_TIME}", json.dumps({"us": time_us}).encode())


def _parsed(value: bytes) -> Recorded | None:
    try:
        found: Any = json.loads(value)
        time, boot, up = found["us"], found.get("boot", ""), found.get("up_us", 0)
        jumps = tuple(Jump(int(begin), int(end), int(by)) for begin, end, by in found.get("jumps", ()))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    good = type(time) is int and type(up) is int and isinstance(boot, str) and 0 < time < 2**62
    return Recorded(time, boot, up, jumps) if good else None
