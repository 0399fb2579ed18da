"""Members that miss a part of a ledger although they are registered when it is closed (H11).

Each fault steers a life to one such situation: a member that its writer alone does not reach, one that stands still
while a ledger is closed, one that is away twice before anybody could look at it. Not here: the notes and looks that
make up for it (`healing/auditing/absence_checks.py`), and the judging (`ending.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from buckram.errors import BuckramError, MetadataError
from buckram.types import LedgerId
from simulator.engine.checkers.facts import Handle
from simulator.engine.world import Died, Machine
from simulator.healing.actors import Recoverer
from simulator.healing.faults import Operation, Operator
from simulator.healing.plan import AWAY_TWICE, CUT_MEMBER, HANG_AT_CLOSE

T = TypeVar("T")
_CLOSED_S = 60.0
"""Time for which a fault waits for a ledger to be closed, seconds."""
_TWO_WALKS_S = 25.0
"""Time after a ledger's close within which two walks of the auditor have found it closed (`WALK_S` is 10 s in
lives)."""
_REGISTERED_S = 4.0
"""Time after a hang within which a bookie has registered that it hung, seconds."""


async def cut_member(op: Operator) -> None:
    """Cut a writer off from one of its members for a while; then it goes on, or dies and another client recovers."""
    for dies in op.rng.sample((False, True), 2):
        await op.nap(op.stage.plan.busy_s / 4)
        found = await _until(partial(_choose, op, closes=not dies), op.stage.plan.busy_s / 2)
        if found is None:
            continue
        handle, machine = found
        op.world.report.situation("a writer alone did not reach a member")
        op.world.faults += 1
        op.world.fabric.block(handle.client, machine.host)
        op.world.fabric.block(machine.host, handle.client)
        await asyncio.sleep(op.stage.plan.busy_s * op.rng.choice((0.2, 0.4)))
        if dies:
            _kill_writer(op, handle)
        op.world.fabric.unblock(handle.client, machine.host)
        op.world.fabric.unblock(machine.host, handle.client)
        if dies:
            await _recover(op, handle.ledger, "x1")


async def hang_at_close(op: Operator) -> None:
    """Pause a member while its ledger is closed; when it resumes, the writer is gone or still running."""
    handle = await _hang_through_close(op)
    if handle is not None:
        op.world.report.situation("a member hung while its ledger was closed")


async def away_twice(op: Operator) -> None:
    """Pause a member while its ledger is closed, and again before any worker could look at its copies."""
    with suppress(MetadataError):
        await op.tree.enable(False)
    try:
        handle = await _hang_through_close(op)
        if handle is None:
            return
        await asyncio.sleep(_TWO_WALKS_S)
        for machine in op.machines_of(handle.ledger):
            op.world.pause(machine.host)
            await asyncio.sleep(2.0)
            op.world.resume(machine.host)
        await asyncio.sleep(_REGISTERED_S)
        op.world.report.situation("a bookie was away again before anybody looked")
    finally:
        with suppress(MetadataError):
            await op.tree.enable(True)


async def _hang_through_close(op: Operator) -> Handle | None:
    """Pause a member of a long open ledger until that is closed. Return its writer's handle; None: none found."""
    handle = await _until(lambda: _about_to_close(op), _CLOSED_S)
    machines = [] if handle is None else op.machines_of(handle.ledger)
    if handle is None or not machines:
        return None
    machine = op.rng.choice(machines)
    op.world.faults += 1
    op.world.pause(machine.host)
    closed = await _until(lambda: handle.ledger in op.closed_ledgers() or None, _CLOSED_S)
    if closed and op.rng.random() < 0.7:
        _kill_writer(op, handle)
    await asyncio.sleep(1.0)
    op.world.resume(machine.host)
    return handle if closed else None


async def _until(look: Callable[[], T | None], within_s: float) -> T | None:
    for _ in range(round(within_s / 0.1)):
        found = look()
        if found is not None:
            return found
        await asyncio.sleep(0.1)
    return None


def _open_handles(op: Operator) -> list[Handle]:
    """Return the handles of living writers whose ledgers are open."""
    return [
        handle
        for handle in op.world.judge.facts.handles
        if not (handle.closing or handle.died or op.world.processes[handle.client].dead)
        and op.stage.rules.written[handle.ledger].writer_lives
        and (metadata := op.world.judge.facts.ledger(handle.ledger).metadata) is not None
        and not metadata.closed
    ]


def _choose(op: Operator, *, closes: bool) -> tuple[Handle, Machine] | None:
    """Return a writer in the middle of its ledger, and a member. `closes`: only writers that close their ledgers."""
    entries, closers = op.stage.plan.entries, op.stage.closers
    found = [one for one in _open_handles(op) if 2 <= len(one.ids) < entries * 0.6]
    found = [one for one in found if not closes or one.client in closers]
    for handle in op.rng.sample(found, len(found)):
        metadata = op.world.judge.facts.ledger(handle.ledger).metadata
        members = () if metadata is None else metadata.last_fragment.ensemble
        machines = [machine for machine in op.running() if machine.name in members]
        if machines:
            return handle, op.rng.choice(machines)
    return None


def _about_to_close(op: Operator) -> Handle | None:
    """Return a writer that has all but a few of its entries, and closes its ledger after them."""
    entries = op.stage.plan.entries
    found = [one for one in _open_handles(op) if max(1, entries - 5) <= len(one.ids) and one.client in op.stage.closers]
    return op.rng.choice(found) if found else None


def _kill_writer(op: Operator, handle: Handle) -> None:
    process = op.world.processes[handle.client]
    handle.died = True
    op.stage.rules.written[handle.ledger].writer_lives = False
    if not process.dead:
        process.crash()


async def _recover(op: Operator, ledger: LedgerId, host: str) -> None:
    recoverer = Recoverer(op.stage, host)
    try:
        client = await op.world.client(host)
        await op.world.join(op.world.processes[host], recoverer.act(client, ledger), "recovery")
    except (BuckramError, Died) as error:
        op.world.trace.note(host, f"ledger {ledger}: {error!r}")
    op.world.report.situation("a ledger whose writer died was recovered while a member lacked entries")


ABSENCES: dict[str, Operation] = {
    CUT_MEMBER: cut_member,
    HANG_AT_CLOSE: hang_at_close,
    AWAY_TWICE: away_twice,
}


__all__ = ["ABSENCES"]
