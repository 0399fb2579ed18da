"""A run from beginning to end: rounds of faults, healing after each, a bookie lost for good, then the end.

`Run.play` is the thread of faults; `Run.end` waits until all is whole and reads it; the judging is in `verdict`.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from buckram.cluster import Client, connect
from buckram.errors import BuckramError
from buckram.healing.auditing.periodic_checks import COPIES
from buckram.metadata.records.underreplication import Underreplication
from buckram.types import LedgerId
from chaos.cluster import Cluster
from chaos.faults import Faults
from chaos.healed import Healed, Look
from chaos.history import Recorder
from chaos.plan import Happening, Plan
from chaos.verdict.copies import Copies, check_copies
from chaos.verdict.judge import End
from chaos.verdict.state import State, lacking, read_state

HEAL_S = 1200.0
"""Within this every ledger has all its copies again, after the last fault has ended. Two quiet cores need seconds, but
nothing here may fail because others use the machine, too."""
_STEP_S = 0.05
_LOOK_S = 0.5
T = TypeVar("T")


class NotHealed(AssertionError):
    """Ledgers still lack copies long after the last fault ended."""


class Run:
    """`healed_s`: how long it took each time from the loss of a bookie until nothing lacked copies; one for each round
    that was played. No round begins after `seconds`.

    Faults go into the history as events of the actor "chaos"."""

    def __init__(self, cluster: Cluster, plan: Plan, seconds: float) -> None:
        self._cluster, self._plan, self._seconds = cluster, plan, seconds
        self._faults = Faults(cluster)
        self._recorder = Recorder(cluster.folder / "history" / "chaos.jsonl", "chaos")
        self.healed_s: list[float] = []

    def play(self) -> None:
        """Play all rounds that there is time for, at least one. Raises NotHealed, and ProcessFailed if a bookie cannot
        be added."""
        first = time.monotonic()
        for number, happenings in enumerate(self._plan.rounds):
            if number and time.monotonic() - first > self._seconds:
                _say("there is no time for more rounds on this machine")
                break
            _say(f"round {number + 1} of {len(self._plan.rounds)}: {len(happenings)} faults")
            self._round(happenings)
            self._heal()
            began = time.monotonic()
            self._lose(self._plan.lost[number])
            self._heal()
            self.healed_s.append(time.monotonic() - began)
        self._faults.end_all()
        left = [actor for actor in self._cluster.actors if not actor.stop()]
        for actor in left:
            self._recorder.record("would-not-end", who=actor.name)
        self._cluster.actors[:] = left  # those that ended must not be started again while everything is read

    def end(self) -> End:
        """Recover and read everything, wait until every copy is there. Raises NotHealed when something cannot be
        read."""
        _say("the actors have ended; everything is recovered and read")
        state, found = State(), Copies()
        self._until(lambda client: read_state(client, state), "not everything can be read", state.count)
        _say("everything is read; now every copy where it is")
        began = time.monotonic()
        self._look(found, None)
        end = End(state, found, found, 0.0, list(found.differing))
        lacking_now = list(found.lacking)
        while lacking_now and time.monotonic() - began < HEAL_S:
            time.sleep(_LOOK_S)
            self._faults.end_due(time.monotonic())
            end.last = Copies()
            self._look(end.last, lacking_now)
            end.differing += end.last.differing
            lacking_now = list(end.last.lacking)
        end.seconds = time.monotonic() - began
        self._heal(everything=True)
        return end

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._faults.counts)

    def _round(self, happenings: tuple[Happening, ...]) -> None:
        began, left = time.monotonic(), list(happenings)
        while left or self._faults.lasting:
            now = time.monotonic()
            self._faults.end_due(now)
            while left and left[0].at_s <= now - began:
                happening = left.pop(0)
                if whom := self._faults.begin(happening, now):
                    self._recorder.record("fault", fault=happening.fault, whom=whom, seconds=happening.seconds)
            time.sleep(_STEP_S)
        self._faults.end_all()

    def _lose(self, number: int) -> None:
        """Lose a bookie for good and add an empty one in its rack.

        The lost one is started once, under its id and with an empty directory, and must not be let in.
        """
        lost = random.Random(number).choice(self._cluster.bookies)
        self._recorder.record("lost", bookie=lost.name)
        self._cluster.lose_bookie(lost)
        self._recorder.record("came-back-empty", bookie=lost.name, why_not=self._cluster.why_not_let_in(lost))
        fresh = self._cluster.add_bookie(self._cluster.racks[lost.name])
        _say(f"bookie {lost.name} is lost for good, {fresh.name} is new")

    def _heal(self, *, everything: bool = False) -> None:
        """Wait until nothing lacks copies. Raises NotHealed."""
        began, healed, why = time.monotonic(), Healed(everything=everything), ""
        while time.monotonic() - began < HEAL_S:
            self._faults.end_due(time.monotonic())
            try:
                if healed.after(asyncio.run(_awaited(self._ask(self._why_not_whole)))):
                    self._recorder.record("healed", seconds=time.monotonic() - began)
                    return
                why = healed.why
            except BuckramError as error:
                why = f"{type(error).__name__}: {error}"
            time.sleep(_LOOK_S)
        raise NotHealed(f"{HEAL_S:g} s after the last fault: {why}")

    async def _why_not_whole(self, client: Client) -> Look:
        store = client.services.store
        checked = await Underreplication(store.keys, store.root, "").last_run_ms(COPIES)
        found, naming = await lacking(client, self._cluster.lost)
        there = {bookie for bookie, _ in (await client.services.store.bookies()).everybody()}
        away = [child.name for child in self._cluster.bookies if child.name not in there]
        down = [child.name for child in self._cluster.everybody() if not child.running]
        lost = [f"{one.ledger}: {one.why}" for one in found.queue if one.lost]
        wrong = [f"bookies {away} are not registered"] if away else []
        wrong += [f"{down} do not run"] if down else []
        wrong += [] if found.auditor else ["there is no auditor"]
        wrong += [f"entries are lost: {'; '.join(lost[:5])}"] if lost else []
        return Look("; ".join(wrong), {one.ledger for one in found.queue} | set(naming), checked)

    def _look(self, found: Copies, ledgers: Sequence[LedgerId] | None) -> None:
        """Check all copies of these ledgers, or of every one for None."""

        async def look(client: Client) -> None:
            these = [ledger async for ledger in client.list()] if ledgers is None else ledgers
            await check_copies(client, these, found)

        self._until(look, "copies cannot be read", lambda: len(found.seen))

    def _ask(self, work: Callable[[Client], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        async def ask() -> T:
            async with connect(self._cluster.uri) as client:
                return await work(client)

        return ask

    def _until(self, work: Callable[[Client], Awaitable[None]], what: str, done: Callable[[], int]) -> None:
        """Try it until it succeeds. Nothing is wrong with the cluster any more, but the machine may be busy.

        `done` says how much of it is done. Raises NotHealed when that did not grow for HEAL_S.
        """
        so_far, limit = -1, 0.0
        while True:
            try:
                return asyncio.run(_awaited(self._ask(work)))
            except BuckramError as error:
                if done() > so_far:
                    so_far, limit = done(), time.monotonic() + HEAL_S
                if time.monotonic() > limit:
                    text = f"{what} {HEAL_S:g} s after the last fault: {type(error).__name__}: {error}"
                    raise NotHealed(text) from error
            self._faults.end_due(time.monotonic())
            time.sleep(_LOOK_S)


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def folder_of(parent: Path, plan: Plan) -> Path:
    """Return a new folder for this run's files."""
    folder = parent / f"{plan.metadata}-{plan.seed}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True)
    return folder


def forget_data(folder: Path) -> None:
    """Remove the data of a run without violations; its histories, logs and verdict stay."""
    shutil.rmtree(folder / "data", ignore_errors=True)
