"""A run from beginning to end: rounds of faults, healing after each, a bookie lost for good, then the final state.

`Run.play` is the thread of faults; what the cluster is asked at the end is `verdict`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from buckram.chaos.cluster import Cluster
from buckram.chaos.faults import Faults
from buckram.chaos.history import Recorder
from buckram.chaos.plan import Happening, Plan
from buckram.chaos.verdict.state import lacking
from buckram.client.client import connect
from buckram.errors import BuckramError

HEAL_S = 240.0
"""Within this every ledger has all its copies again, after the last fault has ended."""
_STEP_S = 0.05


class NotHealed(AssertionError):
    """Ledgers still lack copies long after the last fault ended."""


class Run:
    """`healed_s`: how long each healing took. Faults go into the history as events of the actor "chaos"."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster, self._plan = cluster, plan
        self._faults = Faults(cluster)
        self._recorder = Recorder(cluster.folder / "history" / "chaos.jsonl", "chaos")
        self.healed_s: list[float] = []

    def play(self) -> None:
        """All rounds. NotHealed; ProcessFailed when a bookie cannot be added."""
        for number, happenings in enumerate(self._plan.rounds):
            _say(f"round {number + 1} of {len(self._plan.rounds)}: {len(happenings)} faults")
            self._round(happenings)
            self._lose(self._plan.lost[number])
            self.healed_s.append(self._heal())
        self._faults.end_all()
        for actor in self._cluster.actors:
            if not actor.stop():
                self._recorder.record("would-not-end", who=actor.name)

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
        """One bookie is gone for good and an empty one comes in its place, once nothing else is missing."""
        self._heal()
        lost = random.Random(number).choice(self._cluster.bookies)
        self._recorder.record("lost", bookie=lost.name)
        self._cluster.lose_bookie(lost)
        fresh = self._cluster.add_bookie()
        _say(f"bookie {lost.name} is lost for good, {fresh.name} is new")

    def _heal(self) -> float:
        """Wait until nothing lacks copies; the seconds that it took."""
        began, why = time.monotonic(), "the cluster did not answer"
        while (took := time.monotonic() - began) < HEAL_S:
            self._faults.end_due(time.monotonic())
            try:
                why = asyncio.run(self._why_not_whole())
            except BuckramError as error:
                why = str(error)
            if not why:
                self._recorder.record("healed", seconds=took)
                return took
            time.sleep(0.5)
        raise NotHealed(f"{HEAL_S:g} s after the last fault: {why}")

    async def _why_not_whole(self) -> str:
        """What lacks copies or an auditor now; empty when all is well."""
        async with connect(self._cluster.uri) as client:
            found, naming = await lacking(client, self._cluster.lost)
        if found.queue:
            rows = [f"{one.ledger} {one.state} {one.why}" for one in found.queue[:10]]
            return f"{len(found.queue)} ledgers lack copies: {'; '.join(rows)}"
        if naming:
            return f"ledgers {naming[:10]} are not marked and name one of the lost {self._cluster.lost}"
        return "" if found.auditor else "there is no auditor"


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def folder_of(parent: Path, plan: Plan) -> Path:
    """A new folder for this run's files."""
    folder = parent / f"{plan.metadata}-{plan.seed}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True)
    return folder
