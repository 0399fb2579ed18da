"""Directed schedules of identity: clients that find another bookie at an address."""

from __future__ import annotations

import asyncio

from buckram.core.entries.entry import master_key
from buckram.core.wire.introduction import Introduction
from buckram.core.wire.messages import GetBookieInfo, Read
from buckram.core.wire.v3 import encode_request
from simulator.engine.foreign import ForeignBookies
from simulator.engine.network import SimNetwork
from simulator.ledgers.scenarios.script import Script


async def wanted_another(s: Script) -> None:
    """D11 (2/2/2): a client of another cluster sends its introduction and a fence together: nothing is fenced."""
    await s.bookies(2)
    w = await s.writer()
    w.append()
    await s.until(lambda: w.acked == 1, "an acknowledgement")
    network = s.fabric.face(s.process("w1"))
    assert isinstance(network, SimNetwork)
    for bookie in ("b1", "b2"):
        transport, _ = await network.as_ghost().connect(bookie, 3181, asyncio.Protocol)
        introduction = encode_request(GetBookieInfo(0, Introduction("another cluster", bookie)), 1)
        transport.write(introduction + encode_request(Read(w.ledger, 0, True, master_key(s.plan.password)), 2))
    await asyncio.sleep(1.0)
    w.append(2)
    await s.await_appends(w)
    s.expect(w.acked == 3, f"{w.acked} of 3 acknowledged: the ledger was fenced")


async def cut_off_by_foreign_bookies(s: Script) -> None:
    """D12 (2/2/2): another cluster's bookies listen at both addresses when a recovery begins: it must not end at -1."""
    await s.bookies(2)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4, "acknowledgements")
    c = await s.recoverer()
    others = ForeignBookies(s.world)
    machines = [s.world.machines[name] for name in ("b1", "b2")]
    for machine in machines:
        await others.take(machine)
    await s.start_recovery(c, w.ledger)
    w.append(3)
    await asyncio.sleep(3.0)
    s.process("w1").crash()
    for machine in machines:
        others.leave(machine)
    await s.boot("b1", "b2")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 3, f"closed at {ledger.closed}")
