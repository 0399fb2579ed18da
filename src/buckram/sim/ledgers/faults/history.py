"""What was copied earlier takes the place of what is: of the metadata store, or of one bookie's directory.

The metadata store is an older one for a while, then the newest again: nothing may be lost by what is done then. Clients
do not reach the older one. It is older than what every running bookie has said in its witness key, so each of them must
leave it alone: no fence, no collection, no registration for what it does not know.

A directory goes back for good, behind what the witness key says of it: its bookie must not deny what it has lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.core.cluster.history import parse_statement
from buckram.sim.engine.metadata import HOST
from buckram.sim.ledgers.faults.registry import LEDGERS, crashes_only, register

if TYPE_CHECKING:
    from buckram.sim.engine.world import Machine
    from buckram.sim.ledgers.faults.runner import Faults

_STEPS = 100
_STEP_S = 0.1


def _versions(f: Faults) -> dict[str, int]:
    keys = f.world.metadata.snapshot().keys
    return {key.rpartition("/")[2]: kept.version for key, kept in keys.items() if "/witness/" in key}


def _ready(f: Faults) -> list[Machine]:
    return [machine for machine in f.world.machines.values() if machine.running and machine.ready]


def _remembers_more(f: Faults, machine: Machine, then: dict[str, int]) -> bool:
    """Also in its file: one that died between a change and the file may take an older store for the right one."""
    if machine not in _ready(f) or machine.bookie is None or machine.bookie.witness is None:
        return False
    told = machine.bookie.witness.memory.confirmed
    return told is not None and told.version > then.get(machine.name, told.version)


async def went_back(f: Faults) -> None:
    older, then = f.world.metadata.snapshot(), _versions(f)
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP_S)
        if f.stage.over:
            return
        if all(_remembers_more(f, machine, then) for machine in f.world.machines.values()):
            break
    else:
        return
    newest = f.world.metadata.snapshot()
    kept_away: dict[str, None] = {}
    f.world.disturb(HOST, 1)
    _keep_away(f, kept_away)
    f.world.restore_metadata(older, for_now=True)
    seen = False
    for _ in range(f.rng.randrange(30, 80)):
        await asyncio.sleep(_STEP_S)
        _keep_away(f, kept_away)
        running = [one.bookie.witness for one in _ready(f) if one.bookie is not None]
        seen = seen or (bool(running) and all(one is not None and one.suspect for one in running))
    f.world.restore_metadata(newest)
    for host in kept_away:
        f.world.fabric.unblock(host, HOST)
        f.world.fabric.unblock(HOST, host)
    for _ in range(_STEPS):  # what is promised of time counts from when they take part again
        if all(one.bookie is None or one.bookie.witness is None or not one.bookie.witness.suspect for one in _ready(f)):
            break
        await asyncio.sleep(_STEP_S)
    f.world.disturb(HOST, -1)
    if seen:
        f.world.report.situation("a store that went back was left alone by every bookie")


def _keep_away(f: Faults, kept_away: dict[str, None]) -> None:
    for host in f.clients():
        if host not in kept_away:
            kept_away[host] = None
            f.world.fabric.block(host, HOST)
            f.world.fabric.block(HOST, host)


async def older_directory(f: Faults) -> None:
    world, machine = f.world, f.machine()
    if not machine.running or not machine.ready:
        return
    image = machine.device.snapshot()
    told = [_position(f, machine)]
    # The first change may be of a block that was already written, and is in the copy; the second is of a later one.
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP_S)
        if f.stage.over or not machine.running:
            return
        now = _position(f, machine)
        if now is not None and now != told[-1]:
            told.append(now)
        if len(told) == 3:
            break
    first, last = told[0], told[-1]
    if len(told) < 3 or first is None or last is None or first[:2] != last[:2] or last[2:] <= first[2:]:
        return
    world.judge.facts.bookie(machine.name).damaged = True
    machine.away = True
    world.crash(machine, power=False)
    machine.device.restore(image)
    machine.away = False
    await f.restart(machine)
    for _ in range(_STEPS):  # somebody else may be starting it
        if _serves(machine):
            break
        await asyncio.sleep(_STEP_S)
    store = machine.bookie.store if machine.bookie is not None and _serves(machine) else None
    if store is not None:
        world.report.check("I14", store.limbo, "{} serves an older directory as if it were whole", machine.name)
        world.report.situation("a directory that went back was noticed")


def _serves(machine: Machine) -> bool:
    return machine.ready


def _position(f: Faults, machine: Machine) -> tuple[str, int, int, int] | None:
    """What the metadata store says of a bookie's directory: incarnation, starts, end of the log."""
    for key, kept in f.world.metadata.snapshot().keys.items():
        if key.endswith(f"/witness/{machine.name}"):
            said = parse_statement(key, kept.value)
            return said.incarnation, said.starts, said.seq, said.offset
    return None


register("older directory", 8, older_directory, damages=True, fits=crashes_only, lives=(LEDGERS,))
register("metadata went back", 6, went_back, lives=(LEDGERS,))
