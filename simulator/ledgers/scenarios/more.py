"""Directed schedules of writers, recovery, reading and repair, for situations that random lives rarely reach."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from buckram.client.read.reader import Reader
from buckram.cluster import Client
from buckram.core.wire.messages import Read
from buckram.errors import BuckramError, Code
from buckram.types import BookieId, LedgerId, LedgerState
from simulator.engine.damage import flip_some_byte
from simulator.engine.metadata import HOST
from simulator.ledgers.ending import clear_limbo
from simulator.ledgers.scenarios.script import Script
from simulator.ledgers.workload.reading import read_and_report


async def forgotten_force(s: Script) -> None:
    """M2: a bookie loses unsynced entries in a power loss and restarts, then answers OK to the force."""
    await s.bookies(3)
    for machine in s.world.machines.values():
        machine.device.sync_s = (0.2, 0.3)
    w = await s.writer(deferred_sync=True)
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks before the sync")
    s.power_loss("b1")
    await s.boot("b1")
    await asyncio.sleep(0.5)

    async def force() -> None:
        try:
            head = await w.writer.force()
        except BuckramError:
            return
        s.judge.force_returned(w.handle, head)

    await s.world.join(s.process("w1"), force(), "force")
    s.process("w1").crash()
    s.power_loss("b2")
    await s.boot("b2")
    await s.recover_and_read(w.ledger)


async def change_race(s: Script) -> None:
    """S10 (3/3/2): acks arrive while metadata is being changed: no entry may be acknowledged before the change."""
    await s.bookies(4)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    for bookie in ("b1", "b2"):
        s.fabric.slow(bookie, "w1", 0.05)
    s.fabric.slow("w1", HOST, 0.1)
    await s.die_with_adds_under_way(w, "b3")
    await s.await_appends(w)
    await asyncio.sleep(0.5)
    s.expect(w.acked == 5, f"{w.acked} of 5 acknowledged")
    await s.recover_and_read(w.ledger)


async def stale_close(s: Script) -> None:
    """S2, F12 (3/3/2): recovery finds an entry that the writer has not acknowledged; then the writer closes."""
    await s.bookies(3)
    w = await s.writer()
    for n in range(2):
        w.append()
        await s.until(lambda n=n: w.acked == n + 1, "ack")
    s.block(("w1", "b1"), ("w1", "b2"))
    w.append()
    await s.until(lambda: s.claimed(w.ledger, 2, "b3"), "entry 2 on b3")
    s.block(("w1", HOST))
    c = await s.recoverer()
    s.block(("c1", "b1"))
    await s.start_recovery(c, w.ledger)
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 2, f"closed at {ledger.closed}")
    s.unblock(("w1", HOST), ("w1", "b1"), ("w1", "b2"))

    async def close() -> None:
        try:
            await w.writer.close(wait=False)
        except BuckramError:
            return

    await s.world.join(s.process("w1"), close(), "close")
    await s.await_appends(w)
    await s.recover_and_read(w.ledger, "f2")


async def stalled_recovery(s: Script) -> None:
    """F8, F11 (3/3/2): a recovery has fenced and is paused; the writer sees the fence and must fail its appends."""
    await s.bookies(4)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    c = await s.recoverer()
    recovery = s.start_recovery(c, w.ledger)
    await s.until(lambda: len(s.ledger(w.ledger).fenced) == 3, "all fenced")
    s.world.pause("c1")
    s.expect(not recovery.done(), "the recovery was too quick")
    w.append(3)
    await s.await_appends(w)
    s.expect(w.acked == 2, "acknowledged by fenced bookies")
    s.world.resume("c1")
    await recovery
    await s.recover_and_read(w.ledger)


async def recovery_change(s: Script) -> None:
    """F7, F8 (3/3/2): a bookie dies during a long recovery, which goes on with the ensemble that was written to."""
    await s.bookies(4)
    w = await s.writer()
    w.append(900)
    await s.until(lambda: w.acked == 900, "acks")
    s.process("w1").crash()
    c = await s.recoverer()
    recovery = s.start_recovery(c, w.ledger)
    await s.until(lambda: s.world.report.reached["recovery wrote entries back"] > 0, "write-back begins")
    s.kill("b3")
    await recovery
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 899, f"closed at {ledger.closed}")


async def open_repair(s: Script) -> None:
    """M7 (3/3/2): repair of a ledger that is being written must not change its last fragment."""
    await s.bookies(4)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4, "acks")
    s.world.pause("w1")
    s.kill("b3")
    await asyncio.sleep(5.0)
    c = await s.recoverer()
    assert c.client is not None
    await c.repair(c.client, w.ledger)
    s.world.resume("w1")
    w.append(3)
    await s.await_appends(w)
    s.expect(w.acked == 7, f"{w.acked} of 7 acknowledged")
    await s.recover_and_read(w.ledger)


async def one_denial(s: Script) -> None:
    """S18 (3/3/2): the replica that missed an entry denies it while those that hold it are unreachable."""
    await s.bookies(3)
    w = await s.writer()
    s.world.pause("b3")
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks by b1 and b2")
    s.process("w1").crash()
    s.kill("b3")
    await s.boot("b3")
    r = await s.reader()
    client = r.client
    assert client is not None
    reader = await s.world.join(s.process("r1"), _open(client, w.ledger), "open")
    for bookie in ("b1", "b2"):
        s.world.pause(bookie)
    await s.world.join(
        s.process("r1"), read_and_report(r, reader, "unconfirmed", 0, 0, lambda: reader.read_unconfirmed(0, 0)), "read"
    )
    for bookie in ("b1", "b2"):
        s.world.resume(bookie)
    await s.recover_and_read(w.ledger)


async def _open(client: Client, ledger: LedgerId) -> Reader:
    return await client.open(ledger)


async def hung_member(s: Script) -> None:
    """L2 (3/3/2): one bookie hangs from the fence on; recovery waits for its time-out only once."""
    await s.bookies(4)
    w = await s.writer()
    w.append(8)
    await s.until(lambda: w.acked == 8, "acks")
    s.world.pause("b2")
    c = await s.recoverer()
    began = s.world.loop.time()
    ok = await s.start_recovery(c, w.ledger)
    took = s.world.loop.time() - began
    s.world.report.check(
        "L2",
        ok and took < 2 * s.plan.configs.net.request_timeout_s + 1.0,
        "recovery past a hung member took {:.1f} s",
        took,
    )
    await s.recover_and_read(w.ledger)


async def idle_writer(s: Script) -> None:
    """L7: the last entry of a writer that becomes idle is soon readable."""
    await s.bookies(3)
    w = await s.writer()
    r = await s.reader()
    assert r.client is not None
    client = r.client
    for n in range(3):
        w.append()
        await s.until(lambda n=n: w.acked == n + 1, "ack")
        await asyncio.sleep(0.03)

        async def read_lac() -> int:
            reader = await client.open(w.ledger)
            lac = reader.last_confirmed
            await reader.close()
            return lac

        lac = await s.world.join(s.process("r1"), read_lac(), "open")
        s.world.report.check("L7", lac == n, "30 ms after its ack entry {} is not readable, the LAC is {}", n, lac)
    await s.recover_and_read(w.ledger)


async def waiting_tail(s: Script) -> None:
    """L7: a tail of a ledger without any entry gets the first one soon after its acknowledgement."""
    await s.bookies(3)
    w = await s.writer()
    r = await s.reader()
    assert r.client is not None
    client = r.client
    got: list[int] = []

    async def follow() -> None:
        reader = await client.open(w.ledger)
        async for entry in reader.tail():
            got.append(entry.entry_id)

    tail = asyncio.create_task(s.world.join(s.process("r1"), follow(), "tail"))
    await asyncio.sleep(5.0)
    w.append()
    await s.until(lambda: w.acked == 1, "ack")
    await asyncio.sleep(0.03)
    s.world.report.check("L7", got == [0], "30 ms after the first ack a waiting tail has got {}", got)
    await s.recover_and_read(w.ledger)
    await tail


async def empty_disk(s: Script) -> None:
    """M8: a bookie whose disk was replaced by an empty one does not serve under its old id; the others suffice."""
    await s.bookies(3)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4, "acks")
    machine = s.world.machines["b1"]
    s.kill("b1")
    machine.device.wipe()
    s.facts.bookie("b1").wiped = True
    started = await s.world.boot(machine)
    s.world.report.check("M8", not started, "{} serves although its disk was replaced", machine.name)
    await s.recover_and_read(w.ledger)


async def late_look(s: Script) -> None:
    """L14 (3/3/2): a bookie reads the ledger's metadata after it was closed, and still stores its entries."""
    await s.bookies(3)
    w = await s.writer()
    s.fabric.slow("b3", HOST, 0.5)
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks")
    w.writer._engine.close_copies_s = 0.0  # the close does not wait for the copies of b3
    w.writer._engine._services.lagging.add = lambda *_: None  # type: ignore[method-assign]  # nor copy to it later
    await s.world.join(s.process("w1"), w.writer.close(wait=False), "close")
    s.expect(not s.claimed(w.ledger, 2, "b3"), "b3 was not late")
    await asyncio.sleep(6.0)  # it reads metadata several times, one after the other
    stored = [entry for entry in range(3) if s.claimed(w.ledger, entry, "b3")]
    s.world.report.check(
        "L14", len(stored) == 3, "b3 has entries {} of ledger {}, it was sent 0 to 2", stored, w.ledger
    )
    await s.recover_and_read(w.ledger)


async def limbo(s: Script) -> None:
    """L13: a damaged bookie answers "unknown" until the ledger was repaired; then it can deny again."""
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
    actor = await s.recoverer("f1")
    client = actor.client
    assert client is not None
    assert await actor.recover(client, w.ledger)
    s.expect(await actor.repair(client, w.ledger), "not repaired")

    async def ask(entry: int) -> Code:
        reply = await client.services.pool.call("b1", Read(w.ledger, entry))
        return reply.code

    for entry in range(6):
        code = await s.world.join(s.process("f1"), ask(entry), "ask")
        s.world.report.check("L12", code is Code.OK, "b1 answers {} to entry {} after the repair", code.name, entry)
    store = machine.bookie.store if machine.bookie is not None else None
    assert store is not None
    s.expect(store.limbo, "the damage was not noticed")
    code = await s.world.join(s.process("f1"), ask(10), "ask")
    s.world.report.check("F6", not code.explicit_negative, "b1 denies entry 10 although it may have lost data")
    assert machine.process is not None
    await s.world.join(machine.process, clear_limbo(store), "operator")
    code = await s.world.join(s.process("f1"), ask(10), "ask")
    s.world.report.check(
        "L13", code is Code.NO_ENTRY, "b1 answers {} to an entry beyond the end after the repair", code.name
    )


async def slow_repair(s: Script) -> None:
    """M7 (3/3/2): a repair is paused between its copies and the change of metadata, for longer than collection waits:
    a naive repair names a bookie that has deleted the copies, and reports that the ledger is healthy."""
    await s.bookies(4)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4 and s.claimed(w.ledger, 3, "b3"), "acks")
    s.process("w1").crash()
    await s.recover_and_read(w.ledger)
    s.kill("b3")
    await asyncio.sleep(5.0)
    c = await s.recoverer()
    assert c.client is not None
    repair = asyncio.create_task(c.repair(c.client, w.ledger))
    await s.until(lambda: s.claimed(w.ledger, 3, "b4"), "the copies are made")
    s.world.pause("c1")
    for _ in range(400):  # rounds of collection are 15 minutes apart
        await asyncio.sleep(10.0)
        if not s.claimed(w.ledger, 3, "b4"):
            break
    s.expect(not s.claimed(w.ledger, 3, "b4"), "b4 did not collect the copies")
    s.world.resume("c1")
    healthy = await repair
    fragment = (await s.setup.read_ledger(w.ledger)).metadata.last_fragment
    lacking = [e for e in range(4) for b in fragment.ensemble if not s.claimed(w.ledger, e, b)]
    s.world.report.check("M7", not (healthy and lacking), "healthy, but {} are not where metadata says", lacking)


async def collected_while_repaired(s: Script) -> None:
    """M7 (3/3/2): the new bookie deletes its copies by garbage collection, because metadata does not name it yet, while
    that change is under way. The repair checks the copies again and writes them again."""
    await s.bookies(4)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4 and s.claimed(w.ledger, 3, "b3"), "acks")
    s.process("w1").crash()
    await s.recover_and_read(w.ledger)
    s.kill("b3")
    await asyncio.sleep(5.0)
    machine = s.world.machines["b4"]
    machine.device.sync_s = (0.5, 0.5)
    repairer = await s.recoverer("c1")
    assert repairer.client is not None
    repair = asyncio.create_task(repairer.repair(repairer.client, w.ledger))
    assert machine.bookie is not None
    store = machine.bookie.store
    assert store is not None
    await s.until(lambda: store.last_entry(w.ledger) == 3, "the copies arrive")
    s.block(("c1", "meta"), ("meta", "c1"))
    await s.until(lambda: s.claimed(w.ledger, 3, "b4"), "they are durable")
    await asyncio.sleep(0.6)
    store.delete_ledger(w.ledger)
    s.unblock(("c1", "meta"), ("meta", "c1"))
    await repair
    fragment = (await s.setup.read_ledger(w.ledger)).metadata.last_fragment
    s.world.report.check("M7", "b4" in fragment.ensemble, "b4 is not in {}", fragment.ensemble)
    s.world.report.check("M7", store.last_entry(w.ledger) == 3, "b4 does not have the copies that it had deleted")


async def two_repairs(s: Script) -> None:
    """M7 (3/3/2): a second repair begins while the copies of the first one are in the new bookie's memory, but not yet
    on its slow disk: a naive repair reads them from memory and names the bookie in metadata."""
    await s.bookies(4)
    w = await s.writer()
    w.append(4)
    await s.until(lambda: w.acked == 4 and s.claimed(w.ledger, 3, "b3"), "acks")
    s.process("w1").crash()
    await s.recover_and_read(w.ledger)
    s.kill("b3")
    await asyncio.sleep(5.0)
    s.world.machines["b4"].device.sync_s = (0.5, 0.5)
    first, second = await s.recoverer("c1"), await s.recoverer("c2")
    assert first.client is not None
    assert second.client is not None
    one = asyncio.create_task(first.repair(first.client, w.ledger))
    bookie = s.world.machines["b4"].bookie
    assert bookie is not None
    store = bookie.store
    assert store is not None
    await s.until(lambda: store.last_entry(w.ledger) == 3, "the copies arrive")
    s.expect(not s.claimed(w.ledger, 3, "b4"), "they are durable already")
    two = asyncio.create_task(second.repair(second.client, w.ledger))
    await one
    await two
    fragment = (await s.setup.read_ledger(w.ledger)).metadata.last_fragment
    s.world.report.check("M7", "b4" in fragment.ensemble, "b4 is not in {}", fragment.ensemble)


async def repaired_while_recovered(s: Script) -> None:
    """S10 (3/3/2): a repair replaces a dead member of the first fragment while a recovery, which began before, cannot
    reach the metadata: a naive recovery closes the record with the fragments that it has read."""
    await s.bookies(5)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2 and s.claimed(w.ledger, 1, "b3"), "acks")
    s.kill("b3")
    w.append(2)
    ledger = s.ledger(w.ledger)

    def first_members() -> tuple[BookieId, ...]:
        assert ledger.metadata is not None
        return ledger.metadata.fragments[0].ensemble if len(ledger.metadata.fragments) == 2 else ()

    await s.until(lambda: w.acked == 4 and bool(first_members()), "a second fragment", 60.0)
    s.process("w1").crash()
    await asyncio.sleep(5.0)  # the session of b3 has ended
    first, repairer = await s.recoverer("c1"), await s.recoverer("c2")
    recovery = s.start_recovery(first, w.ledger)
    await s.until(lambda: ledger.state is LedgerState.IN_RECOVERY, "the recovery begins")
    s.block(("c1", HOST), (HOST, "c1"))
    assert repairer.client is not None
    await repairer.repair(repairer.client, w.ledger)
    s.expect("b3" not in first_members(), "b3 was not replaced")
    s.unblock(("c1", HOST), (HOST, "c1"))
    await recovery
    await s.recover_and_read(w.ledger)


async def wrong_key(s: Script) -> None:
    """F14 (3/3/2): a fence with a wrong password reaches bookies that do not know the ledger while metadata is
    unavailable: a naive bookie keeps that key, and refuses the owner's requests for good."""
    await s.bookies(3)
    w = await s.writer()
    attacker = await s.recoverer("a1")
    assert attacker.client is not None
    pool = attacker.client.services.pool
    s.world.metadata.down = True
    s.world.disturb(HOST, 1)
    for bookie in ("b1", "b2", "b3"):
        with suppress(BuckramError):
            fence = pool.call(bookie, Read(w.ledger, -1, True, b"w" * 20), timeout_s=10.0)
            await s.world.join(s.process("a1"), fence, "attack")
    s.world.metadata.down = False
    s.world.disturb(HOST, -1)
    w.append(2)
    await s.await_appends(w)
    s.world.report.check("F14", w.acked == 2, "{} of 2 entries of the owner were acknowledged", w.acked)
    await s.recover_and_read(w.ledger)
    replaced = s.world.report.reached["a wrong key gave way"]
    s.expect(replaced == 3, f"{replaced} of 3 bookies had kept the wrong key")
