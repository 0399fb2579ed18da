"""Faults of replication, besides those of `simulator/engine/faults`: the link between the clusters is cut.

Whatever runs the tool stands beside one cluster, so a cut is between it and the hosts of the other one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.registry import STREAMS, fault_names, register_own

if TYPE_CHECKING:
    from simulator.replication.stage import Place

TOOLS = ("x1", "x2", "o1")
"""The hosts that run the tool."""
REPLICATION = "replication"
"""The kind of these lives."""


async def _cut(f: FaultRunner, *, ways: int) -> None:
    # The stage of a fault of these lives is one of the two clusters.
    place = cast("Place", f.stage)
    place = place if f.rng.random() < 0.5 else place.other
    out = f.rng.random() < 0.5
    for _ in range(f.rng.choice((1, 2, 4))):
        pairs = [(tool, host) for tool in TOOLS for host in place.hosts]
        back = [(host, tool) for tool, host in pairs]
        links = [*pairs, *back] if ways == 2 else pairs if out else back
        for source, target in links:
            f.world.fabric.block(source, target)
        f.world.report.situation(f"the link was cut {'both ways' if ways == 2 else 'one way'}")
        await asyncio.sleep(f.rng.random() * 8)
        for source, target in links:
            f.world.fabric.unblock(source, target)
        await asyncio.sleep(f.rng.random() * 2)


async def cut_both_ways(f: FaultRunner) -> None:
    await _cut(f, ways=2)


async def cut_one_way(f: FaultRunner) -> None:
    await _cut(f, ways=1)


async def pause_tool(f: FaultRunner) -> None:
    """Pause a process of the tool, so that another one takes its place, and it goes on later."""
    hosts = [host for host in TOOLS if host in f.world.processes and not f.world.processes[host].dead]
    if hosts:
        host = f.rng.choice(hosts)
        process = f.world.processes[host]
        f.world.pause(host)
        await asyncio.sleep(f.rng.random() * 10)
        if f.world.processes.get(host) is process:
            f.world.resume(host)


OWN_FAULTS = register_own(
    REPLICATION,
    {
        "cut the link": (4, cut_both_ways),
        "cut the link one way": (4, cut_one_way),
        "pause the tool": (3, pause_tool),
    },
)
"""Relative weights of these faults."""


def all_fault_names() -> list[str]:
    """Return the names of all faults of these lives, those of the second cluster with "b: " before them."""
    names = fault_names(STREAMS)
    return [*names, *(f"b: {name}" for name in names), *fault_names(REPLICATION)]


__all__ = ["OWN_FAULTS", "TOOLS", "all_fault_names"]
