"""Directed schedules of incarnations: old disks, and processes that hung while their id was given away."""

from __future__ import annotations

import asyncio

from buckram.types import LedgerId
from simulator.engine.world import Machine
from simulator.ledgers.scenarios.script import Script, ScriptedWriter

_HUNG_S = 8.0


async def old_disk(s: Script) -> None:
    """I28 (2/2/2): the disk that was replaced comes back under the id of its successor, who has ten entries of a ledger
    that the old one never heard of. It does not start, so nothing denies them while the other member is silent."""
    await s.bookies(2)
    machine = s.world.machines["b1"]
    s.kill("b1")
    old = machine.device.snapshot()
    await s.replace_disk("b1")
    s.facts.bookie("b1").reborn = True
    w = await _ten_entries(s)
    s.kill("b1")
    newest = machine.device.snapshot()
    machine.device.restore(old)
    started = await s.world.boot(machine)
    s.world.report.check("I28", not started, "an old disk serves as {}", machine.name)
    s.world.report.check("I28", "was replaced" in machine.refused, "it is refused for {}", machine.refused)
    s.world.report.situation("an old disk was refused")
    await _recovery_finds_nobody(s, w.ledger)
    machine.device.restore(newest)
    await _all_is_there(s, w.ledger)


async def woken_after_replacement(s: Script) -> None:
    """I28, I29 (2/2/2): a process hangs until its session is over, is taken out and replaced. When the new one is down
    it goes on: it neither registers nor answers a recovery, and ends."""
    await s.bookies(2)
    old = await _hang(s)
    s.world.add_machine("b1", host="b1-new")
    facts = s.facts.bookie("b1")
    s.world.cookie_deleted["b1"] = facts.wiped = facts.reborn = True
    await s.boot("b1")
    w = await _ten_entries(s)
    s.kill("b1")
    await _until_unregistered(s)
    _wake(s, old)
    await _recovery_finds_nobody(s, w.ledger)
    await _ended(s, old)
    s.world.report.situation("a process that stood still found itself replaced")
    await _all_is_there(s, w.ledger)


async def woken_after_decommission(s: Script) -> None:
    """I28, I29: a process hangs through its own decommission. It does not register again, and ends."""
    await s.bookies(2)
    old = await _hang(s)
    await asyncio.sleep(_HUNG_S)
    _wake(s, old)
    await _ended(s, old)
    listed = (await s.setup.bookies()).find("b1")
    s.world.report.check("I28", listed is None, "it is registered again: {}", listed)


async def _hang(s: Script) -> Machine:
    """Stop the process of b1 for longer than its session lives, and take the bookie out meanwhile."""
    machine = s.world.machines["b1"]
    await asyncio.sleep(3.0)
    s.world.pause("b1")
    s.world.sessions["b1"].expire()
    await asyncio.sleep(_HUNG_S)
    await s.setup.delete_cookie("b1", (await s.setup.read_cookie("b1")).version)
    return machine


def _wake(s: Script, machine: Machine) -> None:
    assert machine.process is not None
    machine.process.resume()
    s.world.disturb(machine.name, -1)


async def _ended(s: Script, machine: Machine) -> None:
    process = machine.process
    assert process is not None
    for _ in range(100):
        if process.dead:
            break
        await asyncio.sleep(0.1)
    s.world.report.check("I29", process.dead, "a bookie that is out goes on: {}", machine.name)


async def _ten_entries(s: Script) -> ScriptedWriter:
    w = await s.writer()
    w.append(10)
    await s.until(lambda: w.acked == 10, "acks")
    s.process("w1").crash()
    return w


async def _until_unregistered(s: Script) -> None:
    for _ in range(100):
        if (await s.setup.bookies()).find("b1") is None:
            return
        await asyncio.sleep(0.1)
    s.expect(False, "b1 stays registered")


async def _recovery_finds_nobody(s: Script, ledger: LedgerId) -> None:
    """Check that a recovery that only the old incarnation could answer does not close the ledger."""
    s.world.pause("b2")
    actor = await s.recoverer()
    assert actor.client is not None
    for _ in range(3):
        await actor.recover(actor.client, ledger)
        await asyncio.sleep(1.0)
    closed = s.ledger(ledger).closed
    s.world.report.check("I29", closed is None, "ledger {} was closed at {} without its members", ledger, closed)
    s.world.resume("b2")


async def _all_is_there(s: Script, ledger: LedgerId) -> None:
    await s.boot("b1")
    closed = (await s.recover_and_read(ledger)).closed
    s.world.report.check("S1", closed is not None and closed[0] == 9, "it ends at {}, not at entry 9", closed)
