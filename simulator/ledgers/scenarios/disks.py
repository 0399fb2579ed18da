"""Directed schedules of bookies that look after their own disks: the scrub, and the end of limbo."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.bookie.storage.store import Store
from buckram.core.wire.availability import EntryList
from buckram.core.wire.messages import ListEntries, ListEntriesReply, Read
from buckram.errors import Code
from buckram.metadata.records.underreplication import Underreplication
from buckram.types import LedgerId
from simulator.engine.damage import flip_some_byte
from simulator.ledgers.scenarios.script import Script

KIB = 1024
_ENTRIES = 30


def _store(s: Script, name: str) -> Store:
    bookie = s.world.machines[name].bookie
    store = bookie.store if bookie is not None else None
    assert store is not None
    return store


async def _is_marked(s: Script, ledger: LedgerId) -> bool:
    return await Underreplication(s.setup.keys, s.setup.root, "a schedule").read_mark(ledger) is not None


async def scrubbed(s: Script) -> None:
    """F6 (3/3/2): a byte of a sealed file changes. The scrub finds it: what is bad is never denied and is not listed,
    and its ledger is marked; after a repair nothing is bad."""
    configs = s.world.configs
    configs.store = replace(
        configs.store, segment_bytes=4 * KIB, commit_max_bytes=KIB, tail_cache_bytes=0, scrub_interval_s=5.0
    )
    await s.bookies(3)
    w = await s.writer()
    for n in range(_ENTRIES):
        w.append()
        await s.until(lambda n=n: w.acked == n + 1, "ack")
    await s.world.join(s.process("w1"), w.writer.close(), "close")
    store = _store(s, "b1")
    await s.until(lambda: len(store.verifying.sealed()) >= 3, "sealed files")
    segment = store.verifying.sealed()[0]
    (extent,) = store._lookup.extents(w.ledger, 2, 1)
    s.expect(extent.name == segment.name, "entry 2 is not in the first file")
    s.facts.bookie("b1").damaged = True
    s.world.machines["b1"].device.flip_bits(segment.name, extent.offset + extent.length - 1, 0x10)
    await s.until(lambda: store.verifying.bad_entries > 0, "the scrub finds it", 60.0)
    actor = await s.recoverer("f1")
    client = actor.client
    assert client is not None

    async def read_code(entry: int) -> Code:
        return (await client.services.pool.call("b1", Read(w.ledger, entry))).code

    async def listed() -> EntryList:
        reply = await client.services.pool.call("b1", ListEntries(w.ledger))
        return EntryList.decode(reply.availability) if isinstance(reply, ListEntriesReply) else EntryList(())

    code = await s.world.join(s.process("f1"), read_code(2), "ask")
    s.world.report.check("F6", not code.explicit_negative, "b1 answers {} to entry 2, which it had", code.name)
    s.expect(code is not Code.OK, "what is bad is served")
    held = await s.world.join(s.process("f1"), listed(), "list")
    s.world.report.check("L12", 2 not in held, "b1 lists entry 2, which is bad")
    for _ in range(60):
        if await _is_marked(s, w.ledger):
            break
        await asyncio.sleep(0.5)
    s.world.report.check("L12", await _is_marked(s, w.ledger), "ledger {} is not marked", w.ledger)
    s.expect(await actor.repair(client, w.ledger), "not repaired")
    await s.until(lambda: store.verifying.bad_entries == 0, "what is healed is forgotten", 60.0)
    for entry in range(_ENTRIES):
        code = await s.world.join(s.process("f1"), read_code(entry), "ask")
        s.world.report.check("L12", code is Code.OK, "b1 answers {} to entry {} after the repair", code.name, entry)


async def limbo_ends(s: Script) -> None:
    """F6, L13 (3/3/2): a bookie in limbo stays so while a closed ledger lacks entries there, or an open one names it,
    and leaves it by itself once neither is so."""
    await s.bookies(3)
    w = await s.writer()
    for n in range(6):
        w.append()
        await s.until(lambda n=n: w.acked == n + 1, "ack")
    machine = s.world.machines["b1"]
    s.kill("b1")
    s.expect(flip_some_byte(machine.device, s.world.rng), "nothing to damage")
    s.facts.bookie("b1").damaged = True
    await s.boot("b1")
    store = _store(s, "b1")
    s.expect(store.limbo, "the damage was not noticed")
    actor = await s.recoverer("f1")
    client = actor.client
    assert client is not None

    async def ask(entry: int) -> Code:
        return (await client.services.pool.call("b1", Read(w.ledger, entry))).code

    async def never_denied() -> None:
        for entry in range(6):
            code = await s.world.join(s.process("f1"), ask(entry), "ask")
            s.world.report.check("F6", not code.explicit_negative, "b1 denies entry {}, which it may have had", entry)

    await asyncio.sleep(60.0)  # the bookie checked its limbo several times, while the ledger was open
    await never_denied()
    s.world.report.check("F6", store.limbo, "limbo is over although ledger {} is open", w.ledger)
    assert await actor.recover(client, w.ledger)

    async def lacking_here() -> list[int]:
        return [entry for entry in range(6) if await s.world.join(s.process("f1"), ask(entry), "ask") is not Code.OK]

    if await lacking_here():
        await asyncio.sleep(60.0)
        await never_denied()
    if lacking := await lacking_here():  # else whoever wrote the ledger has filled it in
        s.world.report.check("F6", store.limbo, "limbo is over although entries {} are lacking", lacking)
        s.world.report.check("L12", await _is_marked(s, w.ledger), "ledger {} is not marked", w.ledger)
    s.expect(await actor.repair(client, w.ledger), "not repaired")
    await s.until(lambda: not store.limbo, "limbo ends", 900.0)
    for entry in range(6):
        code = await s.world.join(s.process("f1"), ask(entry), "ask")
        s.world.report.check("L12", code is Code.OK, "b1 answers {} to entry {} after the repair", code.name, entry)
    code = await s.world.join(s.process("f1"), ask(10), "ask")
    s.world.report.check(
        "L13", code is Code.NO_ENTRY, "b1 answers {} to an entry beyond the end after the repair", code.name
    )
