"""The end of a life of administration: faults are over, the cluster becomes well, status says so, and all is read."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.maintain.acceptance import accept, suspects
from buckram.metadata.records.operator_requests import change_wish, read_wishes
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieId, EntryId, LedgerId
from simulator.administration.stage import Stage
from simulator.administration.words import StatusReader
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.engine.loop import Process
from simulator.engine.world import Died

SETTLE_S, DEADLINE_S = 60.0, 420.0
READ_S = 60.0
HARMLESS = ("bookie-down", "clock-off", "clock-jump")
"""Errors of status that an ending leaves: bookies that are gone for good, and clocks that were wrong all the time."""


class Ending(Finish):
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner, status: StatusReader) -> None:
        super().__init__(stage, faults)
        self.stage, self.rules, self.status = stage, stage.rules, status

    async def run(self, awaited: list[asyncio.Task[None]]) -> None:
        self.stage.over = True
        for name, machine in self.world.machines.items():
            # Those that a command was about when the life ended serve again, unless the cluster has forgotten them.
            machine.away = name not in self.rules.cookies or self._wiped(name)
            if machine.process is not None and machine.process.paused:
                self.world.resume(name)
        await self._revive()
        await self.within(self.done(awaited), "the administrators")
        await self._accepted()
        store = self.world.store(self.world.loop.world, self.world.rng)
        await self._take_back(store)
        await self._until_well(store)
        said = await self._said()
        self._judge(store, said)
        await self._read_all()
        self.stage.finished = True

    def _wiped(self, name: BookieId) -> bool:
        facts = self.world.judge.facts.bookie(name)
        return facts.wiped and not facts.reborn

    async def _revive(self) -> None:
        self.world.trace.note("ending", "heals")
        self.faults.heal()
        for process in self.world.processes.values():
            process.crash_after(1 << 60)
        for machine in self.world.machines.values():
            if machine.away:
                continue
            serves = await self.stage.let_serve(machine)
            known = machine.name in self.rules.cookies
            text = "{} does not start although all is well: {}"
            self.report.check("ends", serves or not known, text, machine.name, machine.refused)
        for host in list(self.world.processes):
            self.world.resume(host)

    async def _accepted(self) -> None:
        """Accept metadata that wait for it: a restore was left behind in the middle, or bookies do not believe them."""
        for number in range(20):
            process = self.world.process(f"oend{number}")
            self.rules.restorers.add(process.name)
            try:
                done = await self.world.join(process, self._accept(process, number), "accept")
            except (BuckramError, Died) as error:
                self.world.trace.note(process.name, f"{error!r}")
                done = False
            process.crash()
            if done:
                return
            await asyncio.sleep(5.0)
        self.report.check("ends", False, "restored metadata cannot be accepted although all bookies run")

    async def _accept(self, process: Process, number: int) -> bool:
        rng = random.Random(f"end {self.stage.admin.seed} {number}")
        store = self.world.store(process, rng)
        if (await store.history()).accepted and not await suspects(store):
            return True
        gone = sorted(name for name, machine in self.world.machines.items() if machine.away)
        await accept(store, rng, gone)
        self.rules.went_back()
        return True

    async def _take_back(self, store: TreeStore) -> None:
        """Take all requests back. A bookie that was taken out, and not forgotten, serves again when it is restarted, as
        one does that hung while the metadata moved, and knows the former store only.
        """
        for bookie in await read_wishes(store):
            if bookie in self.rules.cookies and bookie not in self.rules.retired:
                await change_wish(
                    store, bookie, lambda wish: replace(wish, readonly=False, leave=False, out=False, target="", rate=0)
                )
        moved = self.report.reached["the metadata were moved"]
        for bookie, machine in self.world.machines.items():
            if not moved and bookie not in self.rules.told_out:
                continue
            if machine.running and bookie in self.rules.cookies and not self.rules.is_registered(bookie):
                self.stage.stop(machine)
                await self.stage.let_serve(machine)

    # -- becoming well

    def _gone(self) -> list[BookieId]:
        """Return the bookies that ledgers may name and that never come back."""
        return [name for name, machine in self.world.machines.items() if not machine.running]

    def _open(self) -> list[LedgerId]:
        return [
            ledger
            for ledger in self.stage.written
            if (record := self.rules.metadata(ledger)) is not None and not record.closed
        ]

    def _lacking(self) -> dict[LedgerId, list[BookieId]]:
        lacking = {ledger: list(self.rules.lacking(ledger)) for ledger in self.stage.written}
        return {ledger: members for ledger, members in lacking.items() if members and not self._hopeless(ledger)}

    def _hopeless(self, ledger: LedgerId) -> bool:
        """Return whether an entry of the ledger has no copy on any disk that is left, since a restore gave it up."""
        written = self.stage.written[ledger]
        return bool(written.given_up) or written.lost

    async def _until_well(self, store: TreeStore) -> None:
        began, board = self.world.loop.time(), HealingStatusStore(store)
        tree = Underreplication(store.keys, store.root, "end")
        while self.world.loop.time() - began < SETTLE_S + DEADLINE_S:
            try:
                if await board.brake() is not None:
                    await board.proceed()
                if self.world.loop.time() - began > SETTLE_S:
                    await self._recover_open()
                    marked = [ledger async for ledger in tree.marked()]
                    hopeful = [one for one in marked if one in self.stage.written and not self._hopeless(one)]
                    attendance, _ = await board.attendance()
                    unseen = [b for b in attendance.unverified if b in self.rules.cookies]
                    if not hopeful and not self._lacking() and not unseen and not self._open():
                        return
            except BuckramError as error:
                self.world.trace.note("ending", f"{error!r}")
            await asyncio.sleep(6.0)

    async def _recover_open(self) -> None:
        """End ledgers whose writers are dead, as whoever needs them does."""
        left = self._open()
        if not left:
            return
        try:
            client = await self.world.client("f1")
            process = self.world.processes["f1"]

            async def work() -> None:
                for ledger in left:
                    self.world.judge.recovery_started("f1", ledger)
                    last = length = None
                    try:
                        async with asyncio.timeout(READ_S):
                            reader = await client.recover(ledger, password=b"")
                            last, length = reader.last_confirmed, reader.length
                            await reader.close()
                    except (BuckramError, TimeoutError) as error:
                        self.world.trace.note("f1", f"ledger {ledger} is not recovered: {error!r}")
                    finally:
                        self.world.judge.recovery_ended("f1", ledger, last, length)

            await self.world.join(process, work(), "recover")
            process.crash()
        except (BuckramError, Died) as error:
            self.world.trace.note("f1", f"{error!r}")

    # -- judging

    async def _said(self) -> list[str]:
        said: list[str] = []
        for _ in range(24):
            found = await self.status.last()
            said = [
                f"{one.state.name} {one.where}: {one.why}"
                for one in found.findings
                if one.state.severity.value == "error" and not self._harmless(one.state.name, one.where)
            ]
            if not said:
                break
            await asyncio.sleep(15.0)
        return said

    def _harmless(self, state: str, where: str) -> bool:
        if state in ("clock-off", "clock-jump"):
            return True
        if state == "bookie-down":
            return where in self._gone()
        hopeless = [one for one in self.stage.written if self._hopeless(one)]
        return bool(hopeless) and state in ("under-replicated", "ledgers-unreadable", "entries-lost", "limbo")

    def _judge(self, store: TreeStore, said: list[str]) -> None:
        self.rules.check_rests_ended()
        lacking = self._lacking()
        open_ones = [one for one in self._open() if not self._hopeless(one)]
        self.report.check("healthy", not lacking, "long after the faults ledgers lack copies: {}", lacking)
        self.report.check("healthy", not open_ones, "ledgers {} cannot be ended", open_ones)
        if not lacking and not open_ones:
            self.report.check("healthy", not said, "the cluster is well, and status says {}", said)

    async def _read_all(self) -> None:
        try:
            client = await self.world.client("f2")
            await self.world.join(self.world.processes["f2"], self._read(client), "read")
        except (BuckramError, Died) as error:
            self.report.check("ends", False, "no client starts: {!r}", error)

    async def _read(self, client: Client) -> None:
        for ledger, written in self.stage.written.items():
            if written.delete_asked or written.lost or not written.acked:
                continue
            found: dict[EntryId, bytes] = {}
            try:
                async with asyncio.timeout(READ_S), await client.open(ledger, password=b"") as reader:
                    last = reader.last_confirmed
                    entries = await reader.read(0, last) if last >= 0 else []
                    found = {one.entry_id: bytes(one.payload) for one in entries}
            except (BuckramError, TimeoutError) as error:
                self.world.trace.note("f2", f"ledger {ledger}: {error!r}")
            missing = [entry for entry, payload in written.acked.items() if found.get(entry) != payload]
            text = "ledger {} lacks entries {} of {} in the end, its record is {}"
            record = self.rules.metadata(ledger)
            self.report.check("kept", not missing, text, ledger, missing, len(written.acked), record)
