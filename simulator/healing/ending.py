"""The end of a life of self-healing: each ledger becomes whole, or its reasons why it cannot are true (L12).

Faults are over by then. Not here: what is judged at each change (`rules.py`), and what comes last (`final.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.core.healing.status import WaitingLedger
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.incomplete_copies import noted_members
from buckram.metadata.records.operator_requests import change_wish, read_wishes
from buckram.metadata.records.underreplication import Underreplication
from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.facts import entries_of
from simulator.engine.faults import FaultRunner
from simulator.healing.encore import Encore
from simulator.healing.final import Final
from simulator.healing.workers import Stage

DEADLINE_S = 240.0
"""Deadline of all marks after SETTLE_S, seconds; a look of the auditor may come a minute late."""
SETTLE_S = 100.0
"""Time for auditors to notice the last loss before anything is judged, seconds."""
OPEN_S = 60.0
"""Extra time for a marked open ledger until it is taken for one that stays open, seconds."""


class Ending:
    """Ends one life."""

    def __init__(self, stage: Stage, faults: FaultRunner, tree: Underreplication, board: HealingStatusStore) -> None:
        self.stage, self.world, self.faults = stage, stage.world, faults
        self.tree, self.board, self.report = tree, board, stage.world.report

    async def run(self) -> None:
        world = self.world
        world.trace.note("ending", "heals")
        self.stage.over = True
        self.faults.heal()
        for machine in world.machines.values():
            if machine.name not in self.stage.rules.lost:
                machine.away = False
                for _ in range(20):
                    if machine.ready and machine.running:
                        break
                    await self.faults.restart(machine)
                    await asyncio.sleep(0.5)
                self.report.check("L12", machine.running, "{} does not start: {}", machine.name, machine.refused)
        await self._take_back()
        await self.tree.enable(True)
        await self.tree.set_delay(round(self.stage.healing.config.lost_bookie_delay_s))
        began = world.loop.time()
        marked: list[LedgerId] = []
        while (passed_s := world.loop.time() - began) < SETTLE_S + DEADLINE_S:
            if await self.board.brake() is not None:
                await self.board.proceed()
            elif passed_s > SETTLE_S:
                marked = [ledger async for ledger in self.tree.marked()]
                if await self._is_over(marked, passed_s) and not self._unseen(*await self._told()):
                    break
            await asyncio.sleep(4.0)
        await self._judge(marked)
        encore = Encore(self.stage, self.faults, self.board)
        if not self.report.violations and encore.wanted():
            await encore.run()
        self.stage.finished = True
        final = Final(self.stage)
        final.check_calls()
        if not self.report.violations:
            await final.run()

    async def _take_back(self) -> None:
        """Withdraw the operators' wishes for bookies that live; those that are gone for good stay out."""
        for bookie in await read_wishes(self.stage.store):
            if bookie not in self.stage.rules.lost:
                await change_wish(
                    self.stage.store, bookie, lambda wish: replace(wish, readonly=False, leave=False, target="", rate=0)
                )

    async def _is_over(self, marked: list[LedgerId], passed_s: float) -> bool:
        """Return whether the reasons of each ledger that is still marked are true: faults are over, so they stay true.

        An open ledger is not over before SETTLE_S + OPEN_S: it may still be recovered after its grace period.
        """
        said = {waiting.ledger: waiting async for waiting in self.board.waiting()} if marked else {}
        for ledger in marked:
            metadata = self.world.judge.facts.ledger(ledger).metadata
            if metadata is None or ledger not in said or not (metadata.closed or passed_s > SETTLE_S + OPEN_S):
                return False
            is_true = self.stage.rules.reasons.is_true_at_the_end
            if not all(is_true(said[ledger], metadata, reason) for reason in said[ledger].reasons):
                return False
        return True

    async def _told(self) -> tuple[dict[LedgerId, list[BookieId]], list[BookieId]]:
        """Return the ledgers that clients noted, with the members, and the bookies that are back and not verified.

        A bookie is left out if all that remains to verify are ledgers with an unreadable mark: such a mark cannot be
        extended.
        """
        noted: dict[LedgerId, list[BookieId]] = {}
        for ledger, bookie in await noted_members(self.stage.store):
            noted.setdefault(ledger, []).append(bookie)
        attendance, _ = await self.board.attendance()
        left = {bookie: attendance.away[bookie] for bookie in attendance.unverified}
        hidden = self.stage.rules.marks.is_unreadable
        return noted, [
            bookie for bookie, rest in left.items() if rest.since <= MAX_LEDGER_ID or not all(map(hidden, rest.open))
        ]

    def _unseen(self, noted: dict[LedgerId, list[BookieId]], unverified: list[BookieId]) -> list[BookieId]:
        """Return the living bookies whose copies should have been looked at by now.

        The note of a ledger in recovery stays, since its end is not known before a client opens it. So does the note of
        a ledger with an unreadable mark.
        """
        lost, ledgers = self.stage.rules.lost, self.world.judge.facts.ledger
        found = [*unverified]
        for ledger, members in noted.items():
            metadata = ledgers(ledger).metadata
            if self.stage.rules.marks.is_unreadable(ledger):
                continue
            if metadata is None or metadata.state is not LedgerState.IN_RECOVERY:
                found += members
        return [bookie for bookie in found if bookie not in lost]

    async def _judge(self, marked: list[LedgerId]) -> None:
        self.stage.rules.asked.check_ended()
        said = {waiting.ledger: waiting async for waiting in self.board.waiting()}
        noted, unverified = await self._told()
        text = "long after the faults nobody has looked at {} and {}"
        unseen = self._unseen(noted, unverified)
        self.report.check("H11", not unseen, text, noted, unverified)
        for ledger in self.stage.ledgers:
            metadata = self.world.judge.facts.ledger(ledger).metadata
            if metadata is None:
                left = ledger in marked and ledger not in self.stage.rules.marks.unreadable
                self.report.check("L12", not left, "ledger {} is deleted and stays marked", ledger)
                continue
            lost = self._lost_members(metadata)
            if ledger in marked:
                self.report.situation("a ledger waits at the end")
                self._check_reasons(ledger, metadata, said.get(ledger))
                continue
            self.report.check("L12", not lost, "ledger {} has no mark and still names {}", ledger, lost)
            if metadata.closed and not (
                ledger in self.stage.rules.gone and ledger in self.stage.rules.marks.unreadable
            ):
                told = ledger in noted or any(b in unverified for f in metadata.fragments for b in f.ensemble)
                self._check_copies(ledger, metadata, told)

    def _lost_members(self, metadata: LedgerMetadata) -> list[str]:
        return [b for f in metadata.fragments for b in f.ensemble if b in self.stage.rules.lost]

    def _check_copies(self, ledger: LedgerId, metadata: LedgerMetadata, told: bool) -> None:
        """Check the copies of a closed ledger.

        `told`: the ledger is noted, or one of its bookies is not verified since it was away.
        """
        for entry, members in entries_of(metadata):
            copies = self.stage.rules.copies.count(ledger, entry, members)
            self.report.check(
                "H11",
                told or copies == len(members),
                "entry {} of ledger {} ends with {} copies on {}, and nobody says so",
                entry,
                ledger,
                copies,
                members,
            )
            self.report.check(
                "L12",
                copies >= metadata.ack_quorum,
                "entry {} of ledger {} ends with {} copies on {}",
                entry,
                ledger,
                copies,
                members,
            )

    # -- reasons

    def _check_reasons(self, ledger: LedgerId, metadata: LedgerMetadata, waiting: WaitingLedger | None) -> None:
        self.report.check("reason", waiting is not None, "ledger {} stays marked and nobody says why", ledger)
        if waiting is None:
            return
        for reason in waiting.reasons:
            self.report.check(
                "reason",
                self.stage.rules.reasons.is_true_at_the_end(waiting, metadata, reason),
                "ledger {} waits and it is not true: {}",
                ledger,
                reason,
            )
