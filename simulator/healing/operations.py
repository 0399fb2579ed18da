"""Faults of disks, racks and records in a life of self-healing, and switches of operators meanwhile.

Not here: taking bookies out, maintenances and rebalancing (`departures.py`).
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.errors import BuckramError, Code
from buckram.healing.status_store import HealingStatusStore
from buckram.types import LedgerId
from simulator.engine.healers import REPLICATOR
from simulator.engine.metadata import HOST
from simulator.engine.transport import Connection
from simulator.engine.world import Machine
from simulator.healing.departures import DEPARTURES, new_bookie
from simulator.healing.faults import Operation, Operator

_ANSWER = struct.Struct(">IBBHiqq")
_READ, _BATCH = 2, 7
"""Operations of the v2 wire that read one entry, or several."""


async def change_delay(op: Operator) -> None:
    """Change the delay while bookies are lost, or write the same one again, which asks for an audit."""
    for _ in range(op.rng.choice((1, 2, 3))):
        await op.nap(op.stage.plan.busy_s)
        try:
            await op.tree.set_delay(op.rng.choice((0, 2, 6, 12)))
            op.world.report.situation("the delay was changed")
        except BuckramError:
            pass


async def ask_check(op: Operator) -> None:
    """Mark ledgers for a check of all their copies; meanwhile a member does not answer."""
    for _ in range(3):
        await op.nap(10.0)
        known = op.closed_ledgers() if op.rng.random() < 0.5 else op.stage.ledgers
        if not known or op.stage.over or not op.running():
            continue
        ledger = op.rng.choice(known)
        machine = op.rng.choice(op.machines_of(ledger) or op.members())
        silence = op.rng.choice(("crash", "hide", "hide", ""))
        if silence == "crash" and machine.running:
            op.world.crash(machine, power=False)
        with suppress(BuckramError):
            if silence == "hide":
                _hide(op, machine)
            await op.tree.mark(ledger, (), 0)
            op.world.report.situation("a check of copies was asked for")
            if silence == "hide":
                await asyncio.sleep(8.0)
        _show(op, machine)


def _hide(op: Operator, machine: Machine) -> None:
    """Cut a bookie off from replicators; it stays registered."""
    op.stage.rules.hidden[machine.name] = op.world.loop.time()
    for host in [host for host in op.world.processes if host.startswith(REPLICATOR)]:
        op.world.fabric.block(host, machine.host)


def _show(op: Operator, machine: Machine) -> None:
    if op.stage.rules.hidden.pop(machine.name, None) is not None:
        for host in [host for host in op.world.processes if host.startswith(REPLICATOR)]:
            op.world.fabric.unblock(host, machine.host)


async def spoil_mark(op: Operator) -> None:
    """Make a mark unreadable. Sometimes an operator deletes it, as the error message advises."""
    for _ in range(60):
        await asyncio.sleep(0.5)
        marked = [ledger for ledger in op.stage.ledgers if op.stage.rules.is_marked(ledger)]
        if marked:
            break
    else:
        return
    ledger = op.rng.choice(marked)
    key = op.tree.paths.mark(ledger)
    try:
        await op.keys.set(key, b"\xff nonsense", (await op.keys.get(key)).version)
        op.world.report.situation("a mark became unreadable")
        if op.rng.random() < 0.5:
            await asyncio.sleep(15.0)
            await op.keys.delete(key, (await op.keys.get(key)).version)
    except BuckramError:
        pass


class Denying:
    """A network.Tamperer: the bookie denies every entry of one ledger, as if its files had never had them."""

    def __init__(self, ledger: LedgerId) -> None:
        self._ledger = ledger

    def request(self, conn: Connection, frame: bytes) -> bytes | None:
        return frame

    def answer(self, conn: Connection, frame: bytes) -> bytes | None:
        if frame[4] <= 2:
            if frame[5] not in (_READ, _BATCH) or len(frame) < 28:
                return frame
            ledger, entry = struct.unpack_from(">qq", frame, 12)
            if ledger != self._ledger:
                return frame
            if frame[5] == _BATCH:
                packet = frame[4:8] + Code.NO_ENTRY.v2.to_bytes(4, "big") + frame[12:36]
                return len(packet).to_bytes(4, "big") + packet
            return _ANSWER.pack(24, 2, 2, 0, Code.NO_ENTRY.v2, ledger, entry)
        message = pb.Response()
        message.ParseFromString(frame[4:])
        if not message.HasField("readResponse") or message.readResponse.ledgerId != self._ledger:
            return frame
        message.status = message.readResponse.status = pb.ENOENTRY
        message.readResponse.ClearField("body")
        body: bytes = message.SerializeToString()
        return struct.pack(">I", len(body)) + body


async def deny_ledger(op: Operator) -> None:
    """Take away all copies of a closed ledger, and ask for a check of them."""
    for _ in range(60):
        await asyncio.sleep(0.5)
        if closed := [ledger for ledger in op.closed_ledgers() if op.stage.rules.has_entries(ledger)]:
            break
    else:
        return
    ledger = op.rng.choice(closed)
    op.stage.rules.gone[ledger] = op.world.loop.time()
    for machine in op.world.machines.values():
        op.world.fabric.tamperers[machine.host] = Denying(ledger)
    op.world.trace.note("fault", f"every copy of ledger {ledger} is gone")
    for _ in range(20):
        with suppress(BuckramError):
            await op.tree.mark(ledger, (), 0)
            return
        await asyncio.sleep(1.0)


async def fill_bookies(op: Operator) -> None:
    """Leave hardly any space on disks for a while, preferably those of bookies that could take copies."""
    await op.nap(op.stage.plan.busy_s)
    machines = list(op.world.machines.values())
    op.rng.shuffle(machines)
    filled = machines[: op.rng.choice((1, 2, len(machines)))]
    before = [machine.device.model.total_bytes for machine in filled]
    for machine in filled:
        machine.device.model.total_bytes = machine.device.model.used_bytes() + op.rng.choice((0, 1024, 20_000))
    op.world.faults += 1
    op.world.report.situation("bookies were full")
    await asyncio.sleep(10.0 + op.rng.random() * 10.0)
    for machine, total in zip(filled, before, strict=True):
        machine.device.model.total_bytes = total


async def add_bookie(op: Operator) -> None:
    """Add an empty bookie."""
    await op.nap(op.stage.plan.busy_s * 2)
    await new_bookie(op)


async def lose_rack(op: Operator) -> None:
    """Stop all bookies of a rack at once: they come back, or an operator confirms that they do not."""
    await op.nap(op.stage.plan.busy_s)
    racks = list(dict.fromkeys(machine.rack for machine in op.running()))
    if not racks:
        return
    rack = op.rng.choice(racks)
    gone = [machine for machine in op.running() if machine.rack == rack]
    op.world.faults += 1
    op.world.trace.note("fault", f"all of {rack} go: {[machine.name for machine in gone]}")
    op.world.report.situation("a whole rack went")
    for machine in gone:
        machine.away = True
        op.world.crash(machine, power=op.rng.random() < 0.5)
    await asyncio.sleep(10.0 + op.rng.random() * 20.0)
    if op.rng.random() < 0.4:
        with suppress(BuckramError):
            if await HealingStatusStore(op.stage.store).proceed():
                op.world.report.situation("an operator let copying proceed")
        await op.nap(20.0)
    for machine in gone:
        machine.away = machine.name in op.stage.rules.lost


async def cut_auditor(op: Operator) -> None:
    """Let requests of an auditor fail now and then, also in the middle of an audit."""
    for _ in range(4):
        for _ in range(1000):  # until an audit reads its pages, or for a while
            if op.stage.rules.auditing:
                break
            await asyncio.sleep(0.005)
        await op.nap(0.02)
        for host in [host for host in op.world.processes if host[0] == "a"]:
            op.world.fabric.block(host, HOST)
        await asyncio.sleep(op.rng.choice((0.5, 6.0)))
        for host in [host for host in op.world.processes if host[0] == "a"]:
            op.world.fabric.unblock(host, HOST)


OPERATIONS: dict[str, Operation] = {
    **DEPARTURES,
    "delay": change_delay,
    "check": ask_check,
    "bad mark": spoil_mark,
    "copies gone": deny_ledger,
    "full": fill_bookies,
    "new bookie": add_bookie,
    "cut auditor": cut_auditor,
    "lose rack": lose_rack,
}
"""The faults of this module, by name (others: `faults.py`)."""
