"""Faults of archives, besides those of `simulator/engine/faults`: the place fails, is away, late, loses power, changes
bytes, lists late; processes die in a call of it; lost replies to changes of what archives have in the metadata.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.registry import STREAMS, fault_names, register_own

if TYPE_CHECKING:
    from simulator.archives.place import Place
    from simulator.archives.stage import Stage

ARCHIVES = "archives"
"""The kind of lives that alone get these faults."""


def _place(f: FaultRunner) -> Place:
    return cast("Stage", f.stage).place


def _hosts(f: FaultRunner, first: str = "oxiktcdjpwr") -> list[str]:
    return [host for host in f.client_hosts() if host[0] in first and not f.world.processes[host].dead]


async def place_fails(f: FaultRunner) -> None:
    place = _place(f)
    place.fail_writes, place.fail_reads = f.rng.choice((0.05, 0.2, 1.0)), f.rng.choice((0.0, 0.1, 0.5))
    await f.wait_a_while(3.0)
    place.fail_writes = place.fail_reads = 0.0


async def place_is_away(f: FaultRunner) -> None:
    place = _place(f)
    place.away = True
    await f.wait_a_while(3.0)
    place.away = False


async def place_is_late(f: FaultRunner) -> None:
    place = _place(f)
    place.late_chance, place.late_s = f.rng.choice((0.1, 0.5, 1.0)), f.rng.choice((0.05, 1.0, 8.0))
    await f.wait_a_while(5.0)
    place.late_chance = 0.0


async def place_changes_bytes(f: FaultRunner) -> None:
    place = _place(f)
    place.change_bytes = f.rng.choice((0.1, 0.5))
    await f.wait_a_while(4.0)
    place.change_bytes = 0.0


async def place_lists_late(f: FaultRunner) -> None:
    place = _place(f)
    place.lag_s = f.rng.choice((0.01, 0.5, 3.0))
    await f.wait_a_while(4.0)
    place.lag_s = 0.0


async def place_loses_power(f: FaultRunner) -> None:
    """Every process that uses the place is on its machine, and dies with it."""
    for _ in range(f.rng.choice((1, 2))):
        await asyncio.sleep(f.rng.random() * 2)
        for host in _hosts(f, "oxiktcdjp"):
            f.world.disturb(host, 0)
            f.world.processes[host].crash()
        f.world.trace.note("place", "loses power")
        _place(f).lose_power()
        f.world.report.situation("the place lost power")


async def die_in_place(f: FaultRunner) -> None:
    for _ in range(f.rng.choice((1, 2, 4))):
        place = _place(f)
        place.crash_at_op = place.ops + 1 + int(f.rng.random() ** 2 * 40)
        await asyncio.sleep(f.rng.random() * 2)
    _place(f).crash_at_op = None


async def lose_archive_messages(f: FaultRunner) -> None:
    for _ in range(3):
        hosts = _hosts(f)
        if hosts:
            what = f.rng.choice(
                ("/streams/heads/", "/streams/heads/", "/intents/", "/exports/", "/imports/", "/shared/")
            )
            f.world.metadata.lose_next(f.rng.choice(("before", "after", "after")), f.rng.choice(hosts), what)
        await asyncio.sleep(f.rng.random() * 0.5)


async def pause_actor(f: FaultRunner) -> None:
    """Pause a process for longer than its session lives; it goes on with what it knew."""
    hosts = _hosts(f)
    if hosts:
        host = f.rng.choice(hosts)
        f.world.pause(host)
        await asyncio.sleep(f.rng.random() * 6)
        f.world.resume(host)


OWN_FAULTS = register_own(
    ARCHIVES,
    {
        "place fails": (4, place_fails),
        "place away": (3, place_is_away),
        "place late": (5, place_is_late),
        "place changes bytes": (3, place_changes_bytes),
        "place lists late": (3, place_lists_late),
        "place loses power": (5, place_loses_power),
        "die in place": (5, die_in_place),
        "lose an archive": (5, lose_archive_messages),
        "pause an archivist": (4, pause_actor),
    },
)
"""Relative weights."""


def all_fault_names() -> list[str]:
    """Return the names of all faults of lives of archives."""
    return fault_names(STREAMS, ARCHIVES)


__all__ = ["OWN_FAULTS", "all_fault_names"]
