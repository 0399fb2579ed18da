"""What status says, compared with the world as the simulator knows it, at random moments and in the end.

A word is judged only where what it is about has not changed since a while before the look began: status may say what
was so a moment ago. Not here: what metadata and disks must be like (`rules.py`).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from buckram.core.health.states import removes
from buckram.errors import BuckramError, ClusterNotInitialised
from buckram.health.gathering import Gatherer, Health, opened, unreachable
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieId, LedgerId
from simulator.administration.rules import TWIN
from simulator.administration.stage import Stage
from simulator.engine.metadata import HOST as METADATA_HOST
from simulator.engine.world import Died

HOST = "s1"
SETTLED_S = 15.0
"""Time after which everybody knows of a change: sessions have ended, and a look has begun and ended."""
KNOWN_S = 5.0
"""Time after which a missing copy is known to somebody, or is said to be unknown."""
LOOK_S = 120.0
DEFICITS = (
    "under-replicated",
    "ledgers-unreadable",
    "entries-lost",
    "nothing-copied",
    "limbo",
    "bad-records",
    "metadata-unreachable",
    "metadata-went-back",
    "restore-not-accepted",
    "metadata-moved",
    "metadata-refused",
    "auditor-missing",
    "autorecovery-disabled",
)
"""States with which status does not say that every ledger has all its copies."""
ABSENT = ("bookie-down", "bookie-silent", "bookie-unregistered", "bookie-returns", "bookie-replaced")
"""States that say so of the copies of one bookie."""
SITUATIONS = ("unverified", "under-replicated", "bookie-rests", "limbo", "restore-not-accepted", "not-asked", *ABSENT)


@dataclass(slots=True)
class Before:
    """The world just before a look."""

    at: float
    serving: list[BookieId]
    dead: list[BookieId]
    hung: list[BookieId]
    """Members whose processes have been paused for a while."""
    accepted: bool
    marked: list[LedgerId]
    lacking: dict[LedgerId, list[BookieId]]


class StatusReader:
    """A host that asks for the health of the cluster now and then, as `buckram status` does."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.rules, self.report = stage, stage.world, stage.rules, stage.world.report
        self.rng = random.Random(f"status {stage.admin.seed}")
        self._lacking_since: dict[tuple[LedgerId, BookieId], float] = {}

    async def run(self) -> None:
        while not self.stage.over:
            process = self.world.process(HOST)
            try:
                await self.world.join(process, self._looks(1 if not self.stage.admin.watching else 1000), "status")
            except (BuckramError, Died, TimeoutError) as error:
                self.world.trace.note(HOST, f"ends: {error!r}")
            process.crash()
            await self.stage.nap(self.rng, 10.0)

    async def _looks(self, most: int) -> None:
        runtime = self.world.runtime(self.world.processes[HOST])
        store = self.world.store(self.world.processes[HOST], runtime.rng)
        gatherer = Gatherer(store, runtime, self.stage.plan.configs.net)
        stores = self.world.stores
        for _ in range(most):
            if self.stage.over or self.world.stores is not stores:
                return
            await self.look(gatherer)
            await asyncio.sleep(1.0 + self.rng.random() * 12.0)

    async def look(self, gatherer: Gatherer) -> Health | None:
        """Look once, and judge what is said."""
        before = self._before()
        try:
            async with asyncio.timeout(LOOK_S):
                found = await gatherer.look()
        except ClusterNotInitialised as error:
            self.world.trace.note(HOST, f"{error!r}")
            return None
        self.report.situation("status: looked")
        self._judge(before, found)
        return found

    async def last(self) -> Health:
        """Look once with a new process, as the command does. The life's end judges the result."""
        process = self.world.process(HOST)

        async def once() -> Health:
            runtime = self.world.runtime(process)
            store = await opened(_at_once(self.world.store(process, runtime.rng)))
            gatherer = Gatherer(store, runtime, self.stage.plan.configs.net)
            try:
                return await self.look(gatherer) or unreachable(store.uri, TimeoutError())
            finally:
                await gatherer.close()

        return await self.world.join(process, once(), "status")

    # -- the world

    def _before(self) -> Before:
        now, rules = self.world.loop.time(), self.rules
        lacking = self._note_lacking()
        return Before(
            now,
            [b for b in self.world.machines if self._well(b, SETTLED_S)],
            [b for b in self.world.machines if self._dead(b, SETTLED_S)],
            [b for b in self.world.machines if self._hangs(b)],
            rules.unaccepted_at is None,
            [ledger for ledger, since in rules.marked.items() if now - since > 1.0],
            lacking,
        )

    def _note_lacking(self) -> dict[LedgerId, list[BookieId]]:
        """Return the ledgers of which members have lacked copies for KNOWN_S, with these members."""
        now, lacking = self.world.loop.time(), dict[tuple[LedgerId, BookieId], float]()
        for ledger in list(self.rules.written):
            for bookie in self.rules.lacking(ledger):
                lacking[ledger, bookie] = self._lacking_since.get((ledger, bookie), now)
        self._lacking_since = lacking
        found: dict[LedgerId, list[BookieId]] = {}
        for (ledger, bookie), since in lacking.items():
            if now - since >= KNOWN_S:
                found.setdefault(ledger, []).append(bookie)
        return found

    def _well(self, bookie: BookieId, for_s: float) -> bool:
        """Return whether the bookie has served, and has been registered and a member, for so long."""
        rules, now = self.rules, self.world.loop.time()
        known = rules.is_registered(bookie) and now - rules.registered[bookie] > for_s and bookie in rules.cookies
        return known and rules.serves(bookie, for_s) and self._reachable(bookie)

    def _reachable(self, bookie: BookieId) -> bool:
        fabric, host = self.world.fabric, self.world.machines[bookie].host
        return not fabric.blocked(HOST, host) and not fabric.blocked(host, HOST)

    def _dead(self, bookie: BookieId, for_s: float) -> bool:
        """Return whether the bookie has been a member without a process for so long."""
        machine, now = self.world.machines[bookie], self.world.loop.time()
        member = bookie in self.rules.cookies and now - self.rules.cookies[bookie] > for_s
        gone = machine.process is None or machine.process.dead
        twin = self.world.processes.get(f"{TWIN}{bookie}")  # another process answers under its id, or did just now
        return member and gone and twin is None and not machine.ready and self.world.steady(bookie, now - for_s)

    def _hangs(self, bookie: BookieId) -> bool:
        machine = self.world.machines[bookie]
        return machine.process is not None and machine.process.paused and bookie in self.rules.cookies

    def _metadata_well(self, since: float) -> bool:
        """Return whether the look could read the store all the time."""
        world = self.world
        steady = world.steady(METADATA_HOST, since) and world.steady(HOST, since) and not world.metadata.down
        steady = steady and not self.rules.moving
        return steady and not world.fabric.blocked(HOST, METADATA_HOST) and self.rules.history_at < since

    # -- what is said

    def _judge(self, before: Before, said: Health) -> None:
        names = {finding.state.name for finding in said.findings}
        for name in sorted(names.intersection(SITUATIONS)):
            self.report.situation(f"status: {name}")
        missed = {what for what, _ in said.facts.not_asked}
        if said.facts.unreachable or not self._metadata_well(before.at - 1.0):
            return
        if not before.accepted and self.rules.unaccepted_at is not None:
            told = "restore-not-accepted" in names or "metadata-moved" in names or "metadata history" in missed
            self.report.check("status", told, "status does not say that the metadata wait to be accepted: {}", names)
        elif before.accepted and self.rules.unaccepted_at is None:
            wrong = names & {"restore-not-accepted", "metadata-moved"}
            self.report.check("status", not wrong, "status says {} of accepted metadata", wrong)
        if "bookies" not in missed:
            self._judge_bookies(before, said)
        if "autorecovery" not in missed:
            self._judge_queue(before, said)
        self._judge_copies(before, said, missed)
        self._judge_advice(before, said)

    def _about(self, said: Health, states: tuple[str, ...]) -> dict[BookieId, str]:
        return {finding.where: finding.state.name for finding in said.findings if finding.state.name in states}

    def _judge_bookies(self, before: Before, said: Health) -> None:
        wrong = self._about(said, ("bookie-down", "bookie-silent", "bookie-unregistered"))
        for bookie in before.serving:
            if self._well(bookie, self.world.loop.time() - before.at):
                text = "status says {} of {}, which serves and is registered"
                self.report.check("status", bookie not in wrong, text, wrong.get(bookie), bookie)
        told = self._about(said, ("bookie-down", "bookie-silent", "bookie-returns", "metadata-went-back"))
        for bookie in before.dead:
            if self._dead(bookie, self.world.loop.time() - before.at):
                text = "status does not say that {}, which has no process, is down: {}"
                self.report.check("status", bookie in told, text, bookie, sorted(told))
        for bookie in before.hung:
            if self._hangs(bookie) and self.world.resumed_at(bookie) < before.at:
                text = "status does not say that {}, which hangs, is down or does not answer: {}"
                self.report.check("status", bookie in told, text, bookie, sorted(told))
        for finding in said.findings:
            if finding.state.name == "bookie-down" and "does not answer" in finding.why:
                answers = finding.where in self.world.machines and self._answers(finding.where, before)
                text = "status says that {} does not answer, and it does: {}"
                self.report.check("status", not answers, text, finding.where, finding.why)

    def _answers(self, bookie: BookieId, before: Before) -> bool:
        """Return whether a process has answered for the bookie all the time."""
        passed = self.world.loop.time() - before.at + 1.0
        return self.rules.serves(bookie, passed) and self._reachable(bookie)

    def _judge_queue(self, before: Before, said: Health) -> None:
        queue = {one.ledger for one in said.healing.queue} if said.healing is not None else set()
        left = [one for one in before.marked if one in self.rules.marked and self.rules.marked[one] < before.at - 1.0]
        missing = [one for one in left if one not in queue]
        self.report.check("status", not missing, "ledgers {} are marked, and status lists {}", missing, sorted(queue))

    def _judge_copies(self, before: Before, said: Health, missed: set[str]) -> None:
        """Check that status does not imply that ledgers have all their copies when some have lacked them for long."""
        names = {finding.state.name for finding in said.findings}
        unverified = {one.where for one in said.findings if one.state.name in ("unverified", "degraded")}
        excused = names.intersection(DEFICITS) or "cluster" in unverified or missed & {"autorecovery", "bookies"}
        if excused:
            return
        self.report.situation("status: said that all copies are there")
        still = self._note_lacking()
        absent = self._about(said, ABSENT)
        for ledger, members in before.lacking.items():
            left = [b for b in members if b in still.get(ledger, ()) and b not in unverified and b not in absent]
            text = "status says that nothing is known to lack, and ledger {} has lacked copies on {} for long: {}"
            self.report.check("status", not left, text, ledger, left, sorted(names))

    def _judge_advice(self, before: Before, said: Health) -> None:
        for finding in said.findings:
            if not removes(finding.do):
                continue
            self.report.situation("status: advised a removal")
            waits = not before.accepted and self.rules.unaccepted_at is not None
            text = "status advises {!r} of {} although the metadata wait to be accepted"
            self.report.check("advice", not waits, text, finding.do, finding.where)
            asked = {one.id for one in said.facts.bookies if one.address}
            named = [b for b in self.world.machines if b == finding.where in asked and self._answers(b, before)]
            text = "status advises {!r}, and {} answers"
            self.report.check("advice", not named, text, finding.do, named)


async def _at_once(store: TreeStore) -> TreeStore:
    return store
