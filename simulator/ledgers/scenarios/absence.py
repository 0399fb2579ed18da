"""Directed schedules of recovery with bookies that deny entries, and with one lying bookie (F18 to F21)."""

from __future__ import annotations

import asyncio

from buckram.core.ledgers.quorum import Quorum
from buckram.types import DigestType
from simulator.ledgers.liar import Liar
from simulator.ledgers.scenarios.script import Script


def start_lying(s: Script, bookie: str, *tricks: str) -> None:
    """Make the bookie lie from now on. New ledgers have a MAC digest."""
    s.plan.digest = DigestType.MAC
    s.facts.bookie(bookie).liar = True
    s.fabric.tamperers[bookie] = Liar(s.world.rng, tricks)


async def denied(s: Script) -> None:
    """F18 (2/2/2): b1 denies everything, and the only honest holder answers later: its copies must count."""
    await s.bookies(2)
    start_lying(s, "b1", "deny")
    w = await s.writer()
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks")
    s.process("w1").crash()
    s.fabric.slow("b2", "c1", 0.2)
    c = await s.recoverer()
    s.expect(await s.start_recovery(c, w.ledger), "not recovered")
    ledger = s.ledger(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 2, f"closed at {ledger.closed}")
    s.fabric.slow("b2", "c1", 0.0)
    await s.recover_and_read(w.ledger)


async def unstored(s: Script) -> None:
    """F20 (3/3/2): b1 acknowledges without storing, denies and ignores fences; b3 missed all entries; b2 has them."""
    await s.bookies(3)
    start_lying(s, "b1", "drop", "deny", "ignore fence")
    w = await s.writer()
    s.block(("w1", "b3"))
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks by b1 and b2")
    s.process("w1").crash()
    s.unblock(("w1", "b3"))
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 2, f"closed at {ledger.closed}")


async def promised(s: Script) -> None:
    """F19 (3/2/2): b1 denies entry 0, which only b2 has, too, and b2 hangs; a LAC with a digest proves the entry."""
    await s.bookies(3)
    start_lying(s, "b1", "deny")
    w = await s.writer()
    w.append()
    await s.until(lambda: w.acked == 1, "ack")
    await s.until(lambda: s.ledger(w.ledger).max_lac >= 0, "the LAC packet leaves")
    await asyncio.sleep(0.1)
    s.process("w1").crash()
    s.world.pause("b2")
    c = await s.recoverer()
    s.expect(not await s.start_recovery(c, w.ledger), "closed below a proved LAC")
    s.expect(s.ledger(w.ledger).closed is None, "closed below a proved LAC")
    s.world.resume("b2")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 0, f"closed at {ledger.closed}")


async def false_promise(s: Script) -> None:
    """F19 (3/3/2): b1 raises every LAC that has no digest: recovery must not believe it."""
    await s.bookies(3)
    start_lying(s, "b1", "lac")
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    await asyncio.sleep(0.1)
    s.process("w1").crash()
    ledger = await s.recover_and_read(w.ledger, tries=2)
    s.expect(ledger.closed is not None and ledger.closed[0] == 1, f"closed at {ledger.closed}")


async def slow_copies(s: Script) -> None:
    """S5 (3/3/2): disks are slow, but fences are answered at once: a close must wait for the copies."""
    await s.bookies(3)
    w = await s.writer()
    s.block(("w1", "b1"), ("w1", "b2"))
    w.append(2)
    await s.until(lambda: s.claimed(w.ledger, 1, "b3"), "both entries on b3")
    s.process("w1").crash()
    for machine in s.world.machines.values():
        machine.device.sync_s = (0.2, 0.3)
    c = await s.recoverer()
    s.expect(await s.start_recovery(c, w.ledger), "not recovered")
    await s.recover_and_read(w.ledger)


async def mixed(s: Script) -> None:
    """F21 (2/2/2): b1 answers with other entries than requested. Recovery convicts it; new ledgers avoid it."""
    await s.bookies(3)
    start_lying(s, "b1", "mix")
    w = await s.writer()
    w.append(5)
    await s.until(lambda: w.acked == 5, "acks")
    s.process("w1").crash()
    s.fabric.slow("b2", "c1", 0.1)
    c = await s.recoverer()
    s.expect(await s.start_recovery(c, w.ledger), "not recovered")
    s.expect(s.world.report.reached["liar convicted"] > 0, "the liar is not convicted")
    assert c.client is not None
    bookies = c.client.services.bookies
    await s.world.join(s.process("c1"), bookies.refresh(), "refresh")
    s.world.report.check(
        "F21", all("b1" not in bookies.choose(Quorum(2, 2, 2)).members for _ in range(20)), "a liar gets new ledgers"
    )


async def unrepaired(s: Script) -> None:
    """F21 (3/3/2): b1 acknowledges what it does not store and denies it: repair convicts it."""
    await s.bookies(3)
    start_lying(s, "b1", "drop", "deny")
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    s.process("w1").crash()
    await s.recover_and_read(w.ledger)
    c = await s.recoverer()
    assert c.client is not None
    await c.repair(c.client, w.ledger)
    s.expect(s.world.report.reached["liar convicted"] > 0, "the liar is not convicted")


async def rotten(s: Script) -> None:
    """F21 (2/2/2): every answer of b1 has a changed bit under a MAC. That is damage, and no bookie is convicted."""
    await s.bookies(2)
    s.plan.digest = DigestType.MAC
    s.fabric.tamperers["b1"] = Liar(s.world.rng, ("change",))
    w = await s.writer()
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks")
    s.process("w1").crash()
    await s.recover_and_read(w.ledger)
    c = await s.recoverer()
    assert c.client is not None
    await c.repair(c.client, w.ledger)
    s.expect(s.world.report.reached["liar convicted"] == 0, "damage is taken for a lie")
