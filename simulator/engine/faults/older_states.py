"""Faults that restore an older state: of the metadata store for a while, or of one bookie's directory for good.

The metadata store returns to an older snapshot for a while, then to the newest again, and nothing may be lost by what
happens in between. Clients cannot reach the older store. Each running bookie's witness key in it is older than what the
bookie remembers, so every bookie must leave the store alone: it may not fence, collect or register by what it says.

A directory returns to an older copy that does not match its bookie's witness key. The bookie must then not deny the
entries that it has lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.core.cluster.store_history import parse_statement
from simulator.engine.faults.registry import LEDGERS, crashes_only, register_independent

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.world import Machine

_STEPS = 100
_STEP_S = 0.1


def _witness_versions(f: FaultRunner) -> dict[str, int]:
    keys = f.world.metadata.snapshot().keys
    return {key.rpartition("/")[2]: kept.version for key, kept in keys.items() if "/witness/" in key}


def _ready_machines(f: FaultRunner) -> list[Machine]:
    return [machine for machine in f.world.machines.values() if machine.running and machine.ready]


def _remembers_later_version(f: FaultRunner, machine: Machine, then: dict[str, int]) -> bool:
    """Return whether the bookie confirmed a change of its witness key after the snapshot `then` was made.

    It must have written this to its file: a bookie that dies before may accept the older store.
    """
    if machine not in _ready_machines(f) or machine.bookie is None or machine.bookie.witness is None:
        return False
    confirmed = machine.bookie.witness.memory.confirmed
    return confirmed is not None and confirmed.version > then.get(machine.name, confirmed.version)


async def restore_older_metadata(f: FaultRunner) -> None:
    older, then = f.world.metadata.snapshot(), _witness_versions(f)
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP_S)
        if f.stage.over:
            return
        if all(_remembers_later_version(f, machine, then) for machine in f.world.machines.values()):
            break
    else:
        return
    newest = f.world.metadata.snapshot()
    cut_off: dict[str, None] = {}
    f.world.disturb(f.world.metadata.host, 1)
    _cut_off_clients(f, cut_off)
    f.world.restore_metadata(older, for_now=True)
    seen = False
    for _ in range(f.rng.randrange(30, 80)):
        await asyncio.sleep(_STEP_S)
        _cut_off_clients(f, cut_off)
        running = [one.bookie.witness for one in _ready_machines(f) if one.bookie is not None]
        seen = seen or (bool(running) and all(one is not None and one.suspect for one in running))
    f.world.restore_metadata(newest)
    for host in cut_off:
        f.world.fabric.unblock(host, f.world.metadata.host)
        f.world.fabric.unblock(f.world.metadata.host, host)
    for _ in range(_STEPS):  # deadlines count from the moment when the bookies take part again
        if all(
            one.bookie is None or one.bookie.witness is None or not one.bookie.witness.suspect
            for one in _ready_machines(f)
        ):
            break
        await asyncio.sleep(_STEP_S)
    f.world.disturb(f.world.metadata.host, -1)
    if seen:
        f.world.report.situation("a store that went back was left alone by every bookie")


def _cut_off_clients(f: FaultRunner, cut_off: dict[str, None]) -> None:
    for host in f.client_hosts():
        if host not in cut_off:
            cut_off[host] = None
            f.world.fabric.block(host, f.world.metadata.host)
            f.world.fabric.block(f.world.metadata.host, host)


async def restore_older_directory(f: FaultRunner) -> None:
    world, machine = f.world, f.choose_machine()
    if not machine.running or not machine.ready:
        return
    image = machine.device.snapshot()
    positions = [_witnessed_position(f, machine)]
    # The first change may witness a block that is already in the copy; the second one witnesses a later block.
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP_S)
        if f.stage.over or not machine.running:
            return
        now = _witnessed_position(f, machine)
        if now is not None and now != positions[-1]:
            positions.append(now)
        if len(positions) == 3:
            break
    first, last = positions[0], positions[-1]
    if len(positions) < 3 or first is None or last is None or first[:2] != last[:2] or last[2:] <= first[2:]:
        return
    world.judge.facts.bookie(machine.name).damaged = True
    machine.away = True
    world.crash(machine, power=False)
    machine.device.restore(image)
    machine.away = False
    await f.restart(machine)
    for _ in range(_STEPS):  # its supervisor may be starting it at the same time
        if _serves(machine):
            break
        await asyncio.sleep(_STEP_S)
    store = machine.bookie.store if machine.bookie is not None and _serves(machine) else None
    if store is not None:
        world.report.check("I14", store.limbo, "{} serves an older directory as if it were whole", machine.name)
        world.report.situation("a directory that went back was noticed")


def _serves(machine: Machine) -> bool:
    """Return whether the bookie serves.

    This is a function because a type checker takes an attribute that was false for false after an await, too.
    """
    return machine.ready


def _witnessed_position(f: FaultRunner, machine: Machine) -> tuple[str, int, int, int] | None:
    """Return a bookie's directory according to its witness key; None if there is no such key.

    The parts are the incarnation, the number of starts, and the log's end as (segment, offset).
    """
    for key, kept in f.world.metadata.snapshot().keys.items():
        if key.endswith(f"/witness/{machine.name}"):
            statement = parse_statement(key, kept.value)
            return statement.incarnation, statement.starts, statement.seq, statement.offset
    return None


register_independent("older directory", 8, restore_older_directory, damages=True, fits=crashes_only, lives=(LEDGERS,))
register_independent("metadata went back", 6, restore_older_metadata, lives=(LEDGERS,))
